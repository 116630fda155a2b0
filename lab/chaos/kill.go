package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// endProcesses kills processes, all at once, or asks them to end ("stop"). It has an
// effect when they are gone. Processes that were named are healed when whoever runs the
// fleet has started them again; a leader may stay away.
func endProcesses(how string) func(*Fleet, Spec, []Target) (*procedure, error) {
	signal, what := (*os.Process).Kill, "killed"
	if how == "stop" {
		signal, what = terminate, "asked to end"
	}
	return func(f *Fleet, s Spec, targets []Target) (*procedure, error) {
		done, back := false, ""
		started := func(ctx context.Context) error {
			if !done || back != "" || s.Kind != Kill {
				return nil
			}
			again, err := f.back(ctx, targets)
			if err == nil {
				back = pids(again) + " back"
			}
			return err
		}
		w := &procedure{
			silent: how == "kill", deposes: true, pids: numbers(targets), heal: started,
			set: func(ctx context.Context) (string, clock.Instant, error) {
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
				begun := f.host.Now()
				done = true
				var err error
				for i, p := range all {
					err = errors.Join(err, allowed(targets[i], signal(p)))
				}
				return fmt.Sprintf("%s (%s)", what, pids(targets)), begun, err
			},
			hold: func(ctx context.Context, _ clock.Instant) error {
				if err := f.gone(ctx, targets); err != nil {
					return err
				}
				_ = started(ctx) // healing tries again and returns the error
				return nil
			},
			felt: func(_ context.Context, healed bool) string {
				switch {
				case slices.ContainsFunc(targets, func(t Target) bool { return alive(t.PID) }):
					return ""
				case s.Kind != Kill:
					return pids(targets) + " is gone"
				case !healed:
					return pids(targets) + " gone"
				}
				return joinWords(pids(targets)+" gone", back)
			},
		}
		if s.Kind == Kill {
			w.healed = "runs again"
		}
		return w, nil
	}
}

// gone waits until processes have ended.
func (f *Fleet) gone(ctx context.Context, targets []Target) error {
	most := 5*time.Second + 2*f.ttl // one that was asked to end hands over first
	for end := f.host.Now().Add(most); ; {
		i := slices.IndexFunc(targets, func(t Target) bool { return alive(t.PID) })
		switch {
		case i < 0:
			return nil
		case f.host.Now() > end:
			return fmt.Errorf("%w: %s (pid %d) lives on", ErrNoBite, targets[i].ID, targets[i].PID)
		case !pause(ctx, pollEvery/10):
			return nil
		}
	}
}

// back waits until processes that ended have been started again.
func (f *Fleet) back(ctx context.Context, targets []Target) ([]Target, error) {
	const most = time.Minute
	for end := f.host.Now().Add(most); ; {
		file, err := f.file()
		if err != nil {
			return nil, err
		}
		var again []Target
		for _, now := range processes(file) {
			if slices.ContainsFunc(targets, func(t Target) bool { return t.ID == now.ID && t.PID != now.PID }) && alive(now.PID) {
				again = append(again, now)
			}
		}
		switch {
		case len(again) == len(targets):
			return again, nil
		case f.host.Now() > end:
			return nil, fmt.Errorf("nobody has started it again within %v: %s", most, pids(targets))
		case !pause(ctx, pollEvery):
			return nil, fmt.Errorf("nobody has started it again: %s (%w)", pids(targets), context.Cause(ctx))
		}
	}
}
