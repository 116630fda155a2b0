package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/chaos/process"
)

// Fleet is a fleet to inject faults into. Several faults may be set at the same time.
type Fleet struct {
	*inspect.Fleet
	// Event, if set before the first fault, is called with messages for people. Several
	// goroutines may call it.
	Event func(at clock.Instant, what string)

	found func(inspect.Target) // for tests: called between finding the leader and setting the fault
	cuts  atomic.Int64         // part of their names
}

const healTime = 10 * time.Second // for healing

var errSlow = fmt.Errorf("it took more than %v", healTime)

func now() clock.Instant { return clock.System().Now() }

// Open opens a fleet as inspect.Open does.
func Open(path string) (*Fleet, error) {
	f, err := inspect.Open(path)
	if err != nil {
		return nil, err
	}
	return &Fleet{Fleet: f}, nil
}

func (f *Fleet) say(at clock.Instant, format string, args ...any) {
	if f.Event != nil {
		f.Event(at, fmt.Sprintf(format, args...))
	}
}

// targets finds the processes that a fault hits.
func (f *Fleet) targets(ctx context.Context, k Kind, s Spec) ([]inspect.Target, error) {
	switch {
	case !k.Named:
		l, err := f.Leader(ctx, 0)
		return []inspect.Target{l}, err
	case k.Name == DiskSync || k.Name == DiskFull:
		return f.Named(ctx, []string{inspect.LedgerID}, 0)
	}
	return f.Named(ctx, s.Targets, s.Nth)
}

// Heal undoes what faults of other processes may have left: our cuts, pauses, wrong clocks.
func (f *Fleet) Heal(ctx context.Context) error {
	file, err := f.File()
	if err != nil {
		return err
	}
	var all error
	for _, n := range file.Nodes {
		cuts, err := f.Cuts(ctx, file, n)
		all = errors.Join(all, err)
		for _, c := range cuts {
			if !strings.HasPrefix(c.Name, ours) {
				continue
			}
			err := f.remove(ctx, c.At)
			if all = errors.Join(all, err); err == nil {
				f.say(now(), "healed: %s was %s", n.ID, c.What)
			}
		}
	}
	for _, t := range inspect.Processes(file) {
		all = errors.Join(all, f.wake(t))
		if t.Kind == inspect.IsNode && process.Alive(t.PID) {
			_ = f.Call(ctx, inspect.CallTime, http.MethodDelete, t.URL+"/lab/pause", nil, nil, nil) // the node may have none
			all = errors.Join(all, f.SetClock(ctx, t.URL, 0, 0))
		}
	}
	if all != nil {
		return fmt.Errorf("%w: %w", ErrNotHealed, all)
	}
	return nil
}

// wake resumes a stopped process, if it is still a process of the fleet.
func (f *Fleet) wake(t inspect.Target) error {
	if !process.IsStopped(t.PID) || !process.StartedFor(t.PID, t.URL) {
		return nil
	}
	p, err := os.FindProcess(t.PID)
	if err == nil {
		err = child.Resume(p)
		_ = p.Release()
	}
	if err == nil {
		f.say(now(), "healed: %s is resumed (pid %d)", t.ID, t.PID)
	}
	return err
}
