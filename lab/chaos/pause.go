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
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/chaos/process"
	"github.com/tenurehq/tenure/reference/api"
)

// stopProcesses stops processes, all at once, and resumes them. It has an effect when all
// were seen to be stopped. Only the leader can be stopped between a check and a write.
func stopProcesses(f *Fleet, s Spec, targets []inspect.Target) (*procedure, error) {
	leader, at, where := s.Kind == PauseLeader, "", ""
	if (s.Between || s.Sending) && !leader {
		return nil, fmt.Errorf("%w: only the leader can be stopped between a check and a write", inspect.ErrCannot)
	}
	switch {
	case s.Between:
		at, where = api.MomentWrite, " between a check and a write"
	case s.Sending:
		at, where = api.MomentSend, " before it sent an order"
	}
	var stops stops
	var before inspect.Metrics
	seen := ""
	p := &procedure{
		silent: true, pids: inspect.PIDs(targets), healed: "is resumed", heal: stops.heal,
		set: func(ctx context.Context) (_ string, begun clock.Instant, err error) {
			if leader {
				if before, err = f.Metrics(ctx, targets[0]); err != nil {
					return "", 0, err
				}
			}
			for _, t := range targets {
				one := &stop{fleet: f, target: t, at: at}
				stops = append(stops, one)
				began, err := one.begin(ctx)
				if err == nil {
					err = one.stopped(ctx)
				}
				if at != "" && began != 0 {
					began = now() // it stopped itself only now
				}
				if begun == 0 {
					begun = began
				}
				if err != nil {
					return "", begun, err
				}
			}
			return fmt.Sprintf("stopped%s for %v (%s)", where, s.For, inspect.PIDWords(targets)), begun, nil
		},
		felt: func(ctx context.Context, healed bool) string {
			if !healed && len(stops) == len(targets) && !slices.ContainsFunc(targets, func(t inspect.Target) bool { return !process.IsStopped(t.PID) }) {
				seen = inspect.PIDWords(targets) + " was stopped (state T)"
			}
			if !healed || !leader {
				return seen
			}
			now, err := f.Metrics(ctx, targets[0])
			if err != nil {
				return seen
			}
			own := ""
			if longest := now["tenure_pause_max_seconds"]; longest > before["tenure_pause_max_seconds"] {
				own = fmt.Sprintf("it noticed a pause of %.3fs", longest)
			}
			return joinWords(seen, own, now.Refused(before), now.Grown(before, "tenure_terms_ended_total", "reason", "terms ended"))
		},
	}
	if leader {
		// An answer may still arrive. Wait longer for the refusal of a write after a newer term
		// began.
		p.settle = func(evidence string) time.Duration {
			if s.Between && f.Highest() > targets[0].Token && !strings.Contains(evidence, inspect.RefusedWords) {
				return 2 * time.Second
			}
			return 200 * time.Millisecond
		}
	}
	return p, nil
}

// stop is a process that is stopped by a signal or, if at is given, stops itself at that
// moment.
type stop struct {
	fleet  *Fleet
	target inspect.Target
	at     string

	process *os.Process // nil: nothing to heal
	guard   *process.Guard
	armed   bool // the process stops itself, and was not seen to
}

type stops []*stop

func (all *stops) heal(ctx context.Context) (err error) {
	for _, one := range *all {
		err = errors.Join(err, one.heal(ctx))
	}
	return err
}

// begin stops the process, or arms it to stop itself.
func (s *stop) begin(ctx context.Context) (begun clock.Instant, err error) {
	p, err := s.fleet.Handle(ctx, s.target)
	if err != nil {
		return 0, err
	}
	if s.guard, err = process.NewGuard(s.target.PID, s.at != ""); err != nil {
		_ = p.Release()
		return 0, fmt.Errorf("%w: start the guard that resumes the process if this one dies: %w", inspect.ErrCannot, err)
	}
	s.process, begun = p, now()
	if s.at == "" {
		return begun, inspect.Allowed(s.target, child.Pause(p))
	}
	s.armed = true
	if err := s.fleet.Call(context.WithoutCancel(ctx), inspect.CallTime, http.MethodPost, s.target.URL+"/lab/pause?at="+s.at, nil, nil, nil); err != nil {
		return begun, fmt.Errorf("arm the pause: %w", err)
	}
	return begun, nil
}

// stopped waits until the process is stopped.
func (s *stop) stopped(ctx context.Context) error {
	bound := time.Second
	if s.at != "" {
		bound = 10 * time.Second // it writes with every tick
	}
	if !inspect.Poll(ctx, bound, time.Millisecond, func() bool { return process.IsStopped(s.target.PID) }) {
		if c := context.Cause(ctx); c != nil {
			return c
		}
		return fmt.Errorf("%w: %s (pid %d) did not stop within %v", ErrNoEffect, s.target.ID, s.target.PID, bound)
	}
	s.armed = false
	return nil
}

// heal resumes the process and waits until it runs. It may be called again.
func (s *stop) heal(ctx context.Context) (err error) {
	p, pid := s.process, s.target.PID
	if p == nil {
		return nil
	}
	s.process = nil
	defer func() { _ = p.Release() }()
	defer s.guard.End()
	if s.armed {
		err = s.disarm(ctx)
	}
	var rerr error
	if !inspect.Poll(ctx, time.Hour, time.Millisecond, func() bool {
		rerr = child.Resume(p)
		return errors.Is(rerr, os.ErrProcessDone) || rerr == nil && !process.IsStopped(pid)
	}) {
		err = errors.Join(err, rerr, fmt.Errorf("pid %d is still stopped; kill -CONT %d resumes it", pid, pid))
	}
	return err
}

// disarm cancels a pause that has not happened. If the node cannot be reached, a write makes
// the pause happen.
func (s *stop) disarm(ctx context.Context) error {
	f, pid := s.fleet, s.target.PID
	over := func() bool { return process.IsStopped(pid) || !process.Alive(pid) }
	if inspect.Poll(ctx, 3*time.Second, inspect.PollEvery, func() bool {
		if over() || f.Call(ctx, inspect.CallTime, http.MethodDelete, s.target.URL+"/lab/pause", nil, nil, nil) == nil {
			return true
		}
		asked, cancel := context.WithTimeout(ctx, inspect.AskTime/4)
		defer cancel()
		_ = f.Call(asked, inspect.CallTime, http.MethodPost, s.target.URL+"/next", nil, nil, nil)
		return false
	}) || over() {
		return nil
	}
	return fmt.Errorf("%s is still armed: it will stop itself when it leads again; then kill -CONT %d resumes it, or restart it", s.target.ID, pid)
}

// stopAtMoment makes the leader change, and a node stops itself at a moment of that change
// that a signal from outside would miss. Then it is killed, or stays stopped until the fault
// ends. The leader comes to the moment of resigning, a follower to the others.
func stopAtMoment(kill bool) func(*Fleet, Spec, []inspect.Target) (*procedure, error) {
	return func(f *Fleet, s Spec, targets []inspect.Target) (*procedure, error) {
		if !slices.Contains(Moments(), s.At) {
			return nil, fmt.Errorf("%w: moment %q is not one of %s", inspect.ErrCannot, s.At, strings.Join(Moments(), ", "))
		}
		leader := targets[0]
		var stops stops
		seen := ""
		p := &procedure{silent: true, deposes: true, healed: "is resumed", heal: stops.heal}
		p.set = func(ctx context.Context) (_ string, _ clock.Instant, err error) {
			all := targets
			if s.At != api.MomentResigning {
				if all, err = f.Followers(ctx); err != nil {
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
			p.hit, p.stopped = &hit.target, now()
			seen = fmt.Sprintf("pid %d stopped itself when %s (state T)", hit.target.PID, s.At)
			if !kill {
				return "stopped itself when " + s.At, p.stopped, nil
			}
			begun := now()
			return "killed when " + s.At, begun, inspect.Allowed(hit.target, hit.process.Kill())
		}
		lasting := f.lasting(s, leader)
		p.hold = func(ctx context.Context, begun clock.Instant) error {
			if kill {
				return f.gone(ctx, []inspect.Target{*p.hit})
			}
			err := lasting(ctx, begun)
			if !process.IsStopped(p.hit.PID) {
				err = errors.Join(err, fmt.Errorf("%w: %s did not stay stopped", ErrNoEffect, p.hit.ID))
			}
			return err
		}
		p.felt = func(context.Context, bool) string {
			switch {
			case !kill:
				return seen
			case process.Alive(p.hit.PID):
				return ""
			}
			return fmt.Sprintf("%s, and pid %d is gone", seen, p.hit.PID)
		}
		return p, nil
	}
}

// change makes the leader change and waits until one of the nodes has stopped itself; the
// others are disarmed then. It looks from the beginning, since another fault may make the
// leader change first.
func (f *Fleet) change(ctx context.Context, s Spec, leader inspect.Target, stops stops) (hit *stop, err error) {
	changing, enough := context.WithCancel(ctx)
	defer enough()
	var failed error
	var trigger sync.WaitGroup
	trigger.Go(func() {
		if s.Trigger != ByKill {
			failed = f.Call(changing, inspect.CallTime, http.MethodPost, leader.URL+"/resign", ofTerm(leader), nil, nil)
			return
		}
		// A kill that has begun is not cancelled: the caller must know its outcome.
		if _, failed = f.Leader(changing, 0); failed == nil {
			var killed Fault
			killed, failed = f.Inject(ctx, Spec{Kind: KillLeader})
			if s.Each != nil {
				s.Each(killed, failed)
			}
		}
	})
	bound := 2*f.TTL + 4*time.Second
	inspect.Poll(ctx, bound, time.Millisecond, func() bool {
		if i := slices.IndexFunc(stops, func(one *stop) bool { return process.IsStopped(one.target.PID) }); i >= 0 {
			hit = stops[i]
			hit.armed = false
		}
		return hit != nil
	})
	enough()
	if hit == nil {
		trigger.Wait()
		if failed != nil {
			return nil, fmt.Errorf("%w: %w", inspect.ErrChanged, failed)
		}
		return nil, fmt.Errorf("%w: no node came to that moment within %v", ErrNoEffect, bound)
	}
	// The next node to be granted the group must not stop too, and the trigger may take until
	// then: a kill waits for a leader.
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
