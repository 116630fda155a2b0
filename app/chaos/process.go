package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/clock"
)

// process is a handle on the process that answers as the target: the pid may have
// become another's since the leader was found, so it is asked once more after the handle
// was taken.
func (f *Fleet) process(ctx context.Context, target Leader) (*os.Process, error) {
	p, err := os.FindProcess(target.PID)
	if err != nil {
		return nil, fmt.Errorf("the process of %s: %w", target.ID, err)
	}
	s, err := f.status(ctx, target.URL)
	switch {
	case err != nil:
	case s.PID != target.PID || s.NodeID != target.ID:
		err = fmt.Errorf("%w: pid %d is no longer that of %s", ErrChanged, target.PID, target.ID)
	case s.Role != api.Leader || s.FenceToken != target.Token:
		err = fmt.Errorf("%w: %s no longer leads with token %d; nothing was set", ErrChanged, target.ID, target.Token)
	}
	if err != nil {
		_ = p.Release()
		return nil, err
	}
	return p, nil
}

// allowed says what to do when a process may not be signalled.
func allowed(target Leader, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %s (pid %d) is another user's: run this as the user who runs the fleet: %w", ErrCannot, target.ID, target.PID, err)
	}
	return err
}

// KillLeader ends the leader's process with SIGKILL. It has bitten when the process is
// gone. Nothing is to be healed: whoever runs the fleet may start the node again.
func (f *Fleet) KillLeader(ctx context.Context) (Fault, error) {
	return f.strike(ctx, func(target Leader) (work, error) {
		return f.ending(target, "kill-leader", "killed", (*os.Process).Kill), nil
	})
}

// StopLeader asks the leader's process to end, with SIGTERM: it hands over first. It has
// bitten when the process is gone. Nothing is to be healed, as with KillLeader.
func (f *Fleet) StopLeader(ctx context.Context) (Fault, error) {
	return f.strike(ctx, func(target Leader) (work, error) {
		w := f.ending(target, "stop-leader", "asked to end", terminate)
		w.silent = false
		return w, nil
	})
}

// ending is the end of the leader's process.
func (f *Fleet) ending(target Leader, name, what string, signal func(*os.Process) error) work {
	return work{
		name: name, silent: true, deposes: true, shown: Exited, pids: []int{target.PID},
		set: func(ctx context.Context, target Leader) (string, clock.Instant, error) {
			p, err := f.process(ctx, target)
			if err != nil {
				return "", 0, err
			}
			defer func() { _ = p.Release() }()
			begun := f.host.Now()
			return fmt.Sprintf("%s (pid %d)", what, target.PID), begun, allowed(target, signal(p))
		},
		hold: func(ctx context.Context, target Leader, _ clock.Instant) error {
			return f.gone(ctx, []Leader{target})
		},
		heal: func(context.Context) error { return nil },
		felt: func(_ context.Context, target Leader, _ bool) string {
			if alive(target.PID) {
				return ""
			}
			return fmt.Sprintf("pid %d is gone", target.PID)
		},
	}
}

// PauseLeader stops the leader's process and lets it go on. It has bitten when the
// process was seen standing still.
func (f *Fleet) PauseLeader(ctx context.Context, p Pause) (Fault, error) {
	p.For = or(p.For, 2*f.ttl)
	return f.strike(ctx, func(target Leader) (work, error) {
		s := &stop{fleet: f, between: p.Between}
		return work{
			name: "gc-pause-leader", silent: true, shown: Stopped, pids: []int{target.PID}, healed: "goes on",
			set: func(ctx context.Context, target Leader) (string, clock.Instant, error) {
				begun, err := s.set(ctx, target)
				where := ""
				if p.Between {
					where = " between a check and a write"
				}
				return fmt.Sprintf("stands still%s for %v (pid %d)", where, p.For, target.PID), begun, err
			},
			hold:   f.lasting(p.For, p.Until),
			heal:   s.heal,
			felt:   s.felt,
			settle: s.settle,
		}, nil
	})
}

// stop is a pause of a process.
type stop struct {
	fleet   *Fleet
	between bool
	named   bool // it need not lead, nor be a node

	target  Leader
	process *os.Process
	guard   *guard
	armed   bool // the process stops itself, and has not been seen to
	before  reading
	seen    string // that it stood still
}

func (s *stop) set(ctx context.Context, target Leader) (begun clock.Instant, err error) {
	s.target = target
	take := s.fleet.handle
	if !s.named {
		take = s.fleet.process
		if s.before, err = s.fleet.read(ctx, target); err != nil {
			return 0, err
		}
	}
	p, err := take(ctx, target)
	if err != nil {
		return 0, err
	}
	if s.guard, err = newGuard(target.PID, s.between); err != nil {
		_ = p.Release()
		return 0, fmt.Errorf("%w: nobody would let the process go on if this one died: %w", ErrCannot, err)
	}
	s.process = p
	if !s.between {
		begun = s.fleet.host.Now()
		if err := allowed(target, suspend(p)); err != nil {
			return begun, err
		}
		return begun, s.stopped(ctx, time.Second)
	}
	s.armed, begun = true, s.fleet.host.Now()
	if err := s.fleet.call(context.WithoutCancel(ctx), http.MethodPost, target.URL+"/lab/pause", nil, nil, nil); err != nil {
		return begun, fmt.Errorf("the pause cannot be armed: %w", err)
	}
	const bound = 10 * time.Second // it writes with every tick
	err = s.stopped(ctx, bound)
	return s.fleet.host.Now(), err
}

// stopped waits until the process stands still.
func (s *stop) stopped(ctx context.Context, bound time.Duration) error {
	for end := s.fleet.host.Now().Add(bound); ; {
		if still(s.target.PID) {
			s.armed = false
			return nil
		}
		if s.fleet.host.Now() > end {
			return fmt.Errorf("%w: %s (pid %d) did not stop within %v", ErrNoBite, s.target.ID, s.target.PID, bound)
		}
		if !pause(ctx, time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// heal lets the process go on and sees that it does.
func (s *stop) heal(ctx context.Context) error {
	if s.process == nil {
		return nil
	}
	defer func() { _ = s.process.Release() }()
	defer s.guard.end()
	var err error
	if s.armed {
		err = s.disarm(ctx)
	}
	for {
		rerr := resume(s.process)
		if errors.Is(rerr, os.ErrProcessDone) || rerr == nil && !still(s.target.PID) {
			return err
		}
		if !pause(ctx, time.Millisecond) {
			return errors.Join(err, rerr, fmt.Errorf("pid %d stands still; kill -CONT %d lets it go on", s.target.PID, s.target.PID))
		}
	}
}

// disarm takes back a pause that has not come. A node that cannot be told so is made to
// write, which brings the pause.
func (s *stop) disarm(ctx context.Context) error {
	if still(s.target.PID) {
		return nil
	}
	if s.fleet.call(ctx, http.MethodDelete, s.target.URL+"/lab/pause", nil, nil, nil) == nil {
		return nil
	}
	const bound = 3 * time.Second
	for end := s.fleet.host.Now().Add(bound); s.fleet.host.Now() < end && ctx.Err() == nil && alive(s.target.PID); pause(ctx, look) {
		if still(s.target.PID) {
			return nil
		}
		nctx, cancel := context.WithTimeout(ctx, askTime/4)
		_ = s.fleet.call(nctx, http.MethodPost, s.target.URL+"/next", nil, nil, nil)
		cancel()
	}
	if !alive(s.target.PID) {
		return nil
	}
	return fmt.Errorf("%s is armed still: it will stop itself at its first write when it leads again; kill -CONT %d lets it go on then, or start it anew", s.target.ID, s.target.PID)
}

// settle leaves time for the answer to what was under way when the process stopped. A
// write that another's term has overtaken is waited for.
func (s *stop) settle(evidence string) time.Duration {
	const moment, most = 200 * time.Millisecond, 2 * time.Second
	if s.between && s.fleet.highest() > s.target.Token && !strings.Contains(evidence, refusedWords) {
		return most
	}
	return moment
}

// felt is that the process stands still, and afterwards what it says about it itself.
func (s *stop) felt(ctx context.Context, target Leader, healed bool) string {
	if !healed {
		if still(target.PID) {
			s.seen = fmt.Sprintf("pid %d stood still (state T)", target.PID)
		}
		return s.seen
	}
	now, err := s.fleet.read(ctx, target)
	if err != nil {
		return s.seen
	}
	own := ""
	if longest := now["tenure_pause_max_seconds"]; longest > s.before["tenure_pause_max_seconds"] {
		own = fmt.Sprintf("it noticed a pause of %.3fs", longest)
	}
	return words(s.seen, own, refusals(now, s.before), counted(now.grown(s.before, "tenure_terms_ended_total", "reason"), "terms ended"))
}
