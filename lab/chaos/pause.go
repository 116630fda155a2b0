package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/api"
)

// stopProcesses stops processes, all at once, and lets them go on. It has an effect when
// all were seen to be stopped. Only the leader can be stopped between a check and a write.
func stopProcesses(f *Fleet, s Spec, targets []Target) (*procedure, error) {
	leader, at, where := s.Kind == PauseLeader, "", ""
	if s.Between {
		if !leader {
			return nil, fmt.Errorf("%w: only the leader stops itself between a check and a write", ErrCannot)
		}
		at, where = api.MomentWrite, " between a check and a write"
	}
	var stops []*stop
	var before reading
	seen := ""
	w := &procedure{
		silent: true, pids: numbers(targets), healed: "goes on",
		set: func(ctx context.Context) (_ string, begun clock.Instant, err error) {
			if leader {
				if before, err = f.read(ctx, targets[0]); err != nil {
					return "", 0, err
				}
			}
			for _, t := range targets {
				one := &stop{fleet: f, target: t, at: at}
				stops = append(stops, one)
				begin, err := one.begin(ctx)
				if err == nil {
					err = one.stopped(ctx)
				}
				if at != "" && begin != 0 {
					begin = f.host.Now() // it stopped itself only now
				}
				if begun == 0 {
					begun = begin
				}
				if err != nil {
					return "", begun, err
				}
			}
			return fmt.Sprintf("stands still%s for %v (%s)", where, s.For, pids(targets)), begun, nil
		},
		heal: func(ctx context.Context) (err error) {
			for _, one := range stops {
				err = errors.Join(err, one.heal(ctx))
			}
			return err
		},
		felt: func(ctx context.Context, healed bool) string {
			if !healed && len(stops) == len(targets) && !slices.ContainsFunc(targets, func(t Target) bool { return !isStopped(t.PID) }) {
				seen = pids(targets) + " stood still (state T)"
			}
			if !healed || !leader {
				return seen
			}
			now, err := f.read(ctx, targets[0])
			if err != nil {
				return seen
			}
			own := ""
			if longest := now["tenure_pause_max_seconds"]; longest > before["tenure_pause_max_seconds"] {
				own = fmt.Sprintf("it noticed a pause of %.3fs", longest)
			}
			return joinWords(seen, own, refusals(now, before), counted(now.grown(before, "tenure_terms_ended_total", "reason"), "terms ended"))
		},
	}
	if leader {
		// The answer to what was under way takes a moment. A write that another's term has
		// overtaken is waited for.
		w.settle = func(evidence string) time.Duration {
			if s.Between && f.highest() > targets[0].Token && !strings.Contains(evidence, refusedWords) {
				return 2 * time.Second
			}
			return 200 * time.Millisecond
		}
	}
	return w, nil
}

// stop is a process that is stopped by a signal or, if at is given, stops itself at that
// moment.
type stop struct {
	fleet  *Fleet
	target Target
	at     string

	process *os.Process // nil: nothing to heal
	guard   *guard
	armed   bool // the process stops itself, and was not seen to
}

// begin stops the process, or arms it to stop itself.
func (s *stop) begin(ctx context.Context) (begun clock.Instant, err error) {
	p, err := s.fleet.handle(ctx, s.target)
	if err != nil {
		return 0, err
	}
	if s.guard, err = newGuard(s.target.PID, s.at != ""); err != nil {
		_ = p.Release()
		return 0, fmt.Errorf("%w: nobody would let the process go on if this one died: %w", ErrCannot, err)
	}
	s.process, begun = p, s.fleet.host.Now()
	if s.at == "" {
		return begun, allowed(s.target, suspend(p))
	}
	s.armed = true
	if err := s.fleet.call(context.WithoutCancel(ctx), http.MethodPost, s.target.URL+"/lab/pause?at="+s.at, nil, nil, nil); err != nil {
		return begun, fmt.Errorf("the pause cannot be armed: %w", err)
	}
	return begun, nil
}

// stopped waits until the process is stopped.
func (s *stop) stopped(ctx context.Context) error {
	bound := time.Second
	if s.at != "" {
		bound = 10 * time.Second // it writes with every tick
	}
	for end := s.fleet.host.Now().Add(bound); !isStopped(s.target.PID); {
		if s.fleet.host.Now() > end {
			return fmt.Errorf("%w: %s (pid %d) did not stop within %v", ErrNoBite, s.target.ID, s.target.PID, bound)
		}
		if !pause(ctx, time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	s.armed = false
	return nil
}

// heal lets the process go on and waits until it does. It may be called again.
func (s *stop) heal(ctx context.Context) error {
	p := s.process
	if p == nil {
		return nil
	}
	s.process = nil
	defer func() { _ = p.Release() }()
	defer s.guard.end()
	var err error
	if s.armed {
		err = s.disarm(ctx)
	}
	for {
		rerr := resume(p)
		if errors.Is(rerr, os.ErrProcessDone) || rerr == nil && !isStopped(s.target.PID) {
			return err
		}
		if !pause(ctx, time.Millisecond) {
			return errors.Join(err, rerr, fmt.Errorf("pid %d stands still; kill -CONT %d lets it go on", s.target.PID, s.target.PID))
		}
	}
}

// disarm takes back a pause that has not come. If the node cannot be told, it is made to
// write, which brings the pause.
func (s *stop) disarm(ctx context.Context) error {
	f, pid := s.fleet, s.target.PID
	const bound = 3 * time.Second
	for end := f.host.Now().Add(bound); f.host.Now() < end && ctx.Err() == nil; pause(ctx, pollEvery) {
		if isStopped(pid) || !alive(pid) || f.call(ctx, http.MethodDelete, s.target.URL+"/lab/pause", nil, nil, nil) == nil {
			return nil
		}
		asked, cancel := context.WithTimeout(ctx, askTime/4)
		_ = f.call(asked, http.MethodPost, s.target.URL+"/next", nil, nil, nil)
		cancel()
	}
	if isStopped(pid) || !alive(pid) {
		return nil
	}
	return fmt.Errorf("%s is armed still: it will stop itself when it leads again; kill -CONT %d lets it go on then, or start it anew", s.target.ID, pid)
}

// stopAtMoment brings about a change of leader in which a node stops itself at a moment
// that no signal from outside would hit. There it is killed, or it stays stopped until
// the fault ends. The leader comes to the moment of resigning, the others to those of the
// next leader.
func stopAtMoment(kill bool) func(*Fleet, Spec, []Target) (*procedure, error) {
	return func(f *Fleet, s Spec, targets []Target) (*procedure, error) {
		if !slices.Contains(Moments(), s.At) {
			return nil, fmt.Errorf("%w: moment %q: one of %s", ErrCannot, s.At, strings.Join(Moments(), ", "))
		}
		leader := targets[0]
		var stops []*stop
		seen := ""
		w := &procedure{silent: true, deposes: true, healed: "goes on"}
		w.heal = func(ctx context.Context) (err error) {
			for _, one := range stops {
				err = errors.Join(err, one.heal(ctx))
			}
			return err
		}
		w.set = func(ctx context.Context) (string, clock.Instant, error) {
			all := targets
			if s.At != api.MomentResigning {
				var err error
				if all, err = f.followers(ctx); err != nil {
					return "", 0, err
				}
			}
			for _, t := range all {
				one := &stop{fleet: f, target: t, at: s.At}
				stops = append(stops, one)
				if _, err := one.begin(ctx); err != nil {
					return "", 0, err
				}
			}
			hit, err := f.change(ctx, s, leader, stops)
			if err != nil {
				return "", 0, err
			}
			w.hit, w.stopped = &hit.target, f.host.Now()
			seen = fmt.Sprintf("pid %d stopped itself when %s (state T)", hit.target.PID, s.At)
			if !kill {
				return "stopped itself when " + s.At, w.stopped, nil
			}
			begun := f.host.Now()
			return "killed when " + s.At, begun, allowed(hit.target, hit.process.Kill())
		}
		lasting := f.lasting(s, leader)
		w.hold = func(ctx context.Context, begun clock.Instant) error {
			if kill {
				return f.gone(ctx, []Target{*w.hit})
			}
			err := lasting(ctx, begun)
			if !isStopped(w.hit.PID) {
				err = errors.Join(err, fmt.Errorf("%w: %s did not stand still to the end", ErrNoBite, w.hit.ID))
			}
			return err
		}
		w.felt = func(context.Context, bool) string {
			switch {
			case !kill:
				return seen
			case alive(w.hit.PID):
				return ""
			}
			return fmt.Sprintf("%s, and pid %d is gone", seen, w.hit.PID)
		}
		return w, nil
	}
}

// change makes the leader change and waits until one of the nodes has stopped itself; the
// others are disarmed then. It looks from the beginning, because another fault may make
// the leader change before.
func (f *Fleet) change(ctx context.Context, s Spec, leader Target, stops []*stop) (hit *stop, err error) {
	changing, enough := context.WithCancel(ctx)
	defer enough()
	var failed error
	var trigger sync.WaitGroup
	trigger.Go(func() {
		if s.Trigger != ByKill {
			failed = f.call(changing, http.MethodPost, leader.URL+"/resign", ofTerm(leader), nil, nil)
			return
		}
		// A kill that has begun is not given up: whether it was made must be known.
		if _, failed = f.Leader(changing, 0); failed == nil {
			var killed Fault
			killed, failed = f.Inject(ctx, Spec{Kind: KillLeader})
			if s.Each != nil {
				s.Each(killed, failed)
			}
		}
	})
	bound := 2*f.ttl + 4*time.Second
	for end := f.host.Now().Add(bound); hit == nil && f.host.Now() < end && pause(ctx, time.Millisecond); {
		if i := slices.IndexFunc(stops, func(one *stop) bool { return isStopped(one.target.PID) }); i >= 0 {
			hit = stops[i]
			hit.armed = false
		}
	}
	enough()
	if hit == nil {
		trigger.Wait()
		if failed != nil {
			return nil, fmt.Errorf("%w: %w", ErrChanged, failed)
		}
		return nil, fmt.Errorf("%w: nobody came to that moment within %v", ErrNoBite, bound)
	}
	// The next to be granted the group must not stop too, and the trigger may take until
	// then: a kill waits for somebody who leads.
	hctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), healTime, errSlow)
	defer cancel()
	for _, one := range stops {
		if one == hit {
			continue
		}
		if herr := one.heal(hctx); herr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", ErrNotHealed, herr))
		}
	}
	trigger.Wait()
	return hit, err
}
