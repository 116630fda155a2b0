package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
)

// endProcesses kills processes, all at once, or asks them to exit ("stop"). It has an effect
// when they are gone. Named processes are healed when the fleet has restarted them; a leader
// may stay away.
func endProcesses(how string) func(*Fleet, Spec, []Target) (*procedure, error) {
	signal, what := (*os.Process).Kill, "killed"
	if how == "stop" {
		signal, what = child.Interrupt, "asked to exit"
	}
	return func(f *Fleet, s Spec, targets []Target) (*procedure, error) {
		restarts := s.Kind == Kill
		done, back := false, ""
		restarted := func(ctx context.Context) error {
			if !done || back != "" || !restarts {
				return nil
			}
			again, err := f.restarted(ctx, targets)
			if err == nil {
				back = pids(again) + " back"
			}
			return err
		}
		p := &procedure{
			silent: how == "kill", deposes: true, pids: numbers(targets), heal: restarted,
			set: func(ctx context.Context) (_ string, _ clock.Instant, err error) {
				var all []*os.Process
				defer func() {
					for _, p := range all {
						_ = p.Release()
					}
				}()
				for _, t := range targets {
					p, err := f.handle(ctx, t)
					if err != nil {
						return "", 0, err
					}
					all = append(all, p)
				}
				begun := now()
				done = true
				for i, p := range all {
					err = errors.Join(err, allowed(targets[i], signal(p)))
				}
				return fmt.Sprintf("%s (%s)", what, pids(targets)), begun, err
			},
			hold: func(ctx context.Context, _ clock.Instant) error {
				if err := f.gone(ctx, targets); err != nil {
					return err
				}
				_ = restarted(ctx) // healing tries again and returns the error
				return nil
			},
			felt: func(_ context.Context, healed bool) string {
				switch {
				case anyAlive(targets):
					return ""
				case !restarts:
					return pids(targets) + " is gone"
				case !healed:
					return pids(targets) + " gone"
				}
				return joinWords(pids(targets)+" gone", back)
			},
		}
		if restarts {
			p.healed = "runs again"
		}
		return p, nil
	}
}

// gone waits until processes have ended.
func (f *Fleet) gone(ctx context.Context, targets []Target) error {
	bound := 5*time.Second + 2*f.ttl // a leader that is asked to exit hands over first
	if !poll(ctx, bound, pollEvery/10, func() bool { return !anyAlive(targets) }) && ctx.Err() == nil {
		return fmt.Errorf("%w: of %s (%s) some still run after %v", ErrNoEffect, ids(targets), pids(targets), bound)
	}
	return nil
}

// restarted waits until processes that ended have been restarted.
func (f *Fleet) restarted(ctx context.Context, targets []Target) (again []Target, err error) {
	const bound = time.Minute
	if !poll(ctx, bound, pollEvery, func() bool {
		file, ferr := f.file()
		if err = ferr; err != nil {
			return true
		}
		again = slices.DeleteFunc(processes(file), func(now Target) bool {
			return !alive(now.PID) || !slices.ContainsFunc(targets, func(t Target) bool { return t.ID == now.ID && t.PID != now.PID })
		})
		return len(again) == len(targets)
	}) {
		err = fmt.Errorf("not restarted within %v: %s", bound, pids(targets))
		if c := context.Cause(ctx); c != nil {
			err = fmt.Errorf("not restarted: %s: %w", pids(targets), c)
		}
	}
	return again, err
}
