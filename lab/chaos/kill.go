package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
)

// endProcesses kills processes, all at once, or asks them to exit ("stop"). It has an effect
// when they are gone. Named processes are healed when the fleet has restarted them; a leader
// may stay away.
func endProcesses(how string) func(*Fleet, Spec, []inspect.Target) (*procedure, error) {
	signal, what := (*os.Process).Kill, "killed"
	if how == "stop" {
		signal, what = child.Interrupt, "asked to exit"
	}
	return func(f *Fleet, s Spec, targets []inspect.Target) (*procedure, error) {
		restarts := s.Kind == Kill
		done, back := false, ""
		restarted := func(ctx context.Context) error {
			if !done || back != "" || !restarts {
				return nil
			}
			again, err := f.Restarted(ctx, targets)
			if err == nil {
				back = inspect.PIDWords(again) + " back"
			}
			return err
		}
		p := &procedure{
			silent: how == "kill", deposes: true, pids: inspect.PIDs(targets), heal: restarted,
			set: func(ctx context.Context) (_ string, _ clock.Instant, err error) {
				var all []*os.Process
				defer func() {
					for _, p := range all {
						_ = p.Release()
					}
				}()
				for _, t := range targets {
					p, err := f.Handle(ctx, t)
					if err != nil {
						return "", 0, err
					}
					all = append(all, p)
				}
				begun := now()
				done = true
				for i, p := range all {
					err = errors.Join(err, inspect.Allowed(targets[i], signal(p)))
				}
				return fmt.Sprintf("%s (%s)", what, inspect.PIDWords(targets)), begun, err
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
				case inspect.AnyAlive(targets):
					return ""
				case !restarts:
					return inspect.PIDWords(targets) + " is gone"
				case !healed:
					return inspect.PIDWords(targets) + " gone"
				}
				return joinWords(inspect.PIDWords(targets)+" gone", back)
			},
		}
		if restarts {
			p.healed = "runs again"
		}
		return p, nil
	}
}

// gone waits until processes have ended.
func (f *Fleet) gone(ctx context.Context, targets []inspect.Target) error {
	bound := 5*time.Second + 2*f.TTL // a leader that is asked to exit hands over first
	if !inspect.Poll(ctx, bound, inspect.PollEvery/10, func() bool { return !inspect.AnyAlive(targets) }) && ctx.Err() == nil {
		return fmt.Errorf("%w: of %s (%s) some still run after %v", ErrNoEffect, inspect.IDs(targets), inspect.PIDWords(targets), bound)
	}
	return nil
}
