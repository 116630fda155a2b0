package tenuretest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var (
	errCrashed = errors.New("tenuretest: the node has crashed")
	errSilent  = errors.New("tenuretest: the store has been silent for too long: the node is cut off from it")
)

// fault has the faults of a node.
type fault struct{ paused, cut, dead bool }

func (f fault) String() string {
	switch {
	case f.dead:
		return "crashed"
	case f.paused:
		return "paused"
	case f.cut:
		return "cut off"
	default:
		return "well"
	}
}

// gate blocks everything that a faulty node would send, receive or be woken by.
type gate struct {
	mu      sync.Mutex
	fault   fault
	changed chan struct{} // closed at the next change
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

func (g *gate) set(change func(*fault)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.fault)
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gate) read() (fault, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fault, g.changed
}

// pass waits until the node can send or receive again, or ctx ends. With frozen, a pause also
// delays the end of ctx: a process that does not run notices no deadline.
func (g *gate) pass(ctx context.Context, frozen bool) error {
	for {
		f, changed := g.read()
		done := ctx.Done()
		switch {
		case f.dead:
			return errCrashed
		case f.paused && frozen:
			done = nil
		case f.paused, f.cut:
		default:
			return nil
		}
		select {
		case <-changed:
		case <-done:
			return fmt.Errorf("tenuretest: no answer, the node is %v: %w", f, context.Cause(ctx))
		}
	}
}

// awake waits until the node is not paused, and returns false if stop comes first.
func (g *gate) awake(stop <-chan struct{}) bool {
	for {
		f, changed := g.read()
		if !f.paused || f.dead {
			return true
		}
		select {
		case <-changed:
		case <-stop:
			return false
		}
	}
}

// severed returns errSilent when the node has been cut off for that long, and errCrashed when
// it has crashed. It ends streams that receive nothing.
func (g *gate) severed(ctx context.Context, patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		f, changed := g.read()
		var silent <-chan time.Time
		switch {
		case f.dead:
			return errCrashed
		case f.cut && !f.paused:
			timer.Reset(patience)
			silent = timer.C
		}
		select {
		case <-changed:
		case <-silent:
			return errSilent
		case <-ctx.Done():
			return nil
		}
	}
}
