package auth

import (
	"context"
	"sync/atomic"
	"time"
)

// lane is a number of places for requests under way, and a line for those that find
// none, which is short in number and in time: who waits longer is better told so.
type lane struct {
	places   chan struct{}
	line     atomic.Int64
	longest  int64
	patience time.Duration
}

func newLane(places, line int, patience time.Duration) *lane {
	return &lane{places: make(chan struct{}, places), longest: int64(line), patience: patience}
}

// enter takes a place, or reports that there was none.
func (l *lane) enter(ctx context.Context) bool {
	select {
	case l.places <- struct{}{}:
		return true
	default:
	}
	defer l.line.Add(-1)
	if l.line.Add(1) > l.longest {
		return false
	}
	t := time.NewTimer(l.patience)
	defer t.Stop()
	select {
	case l.places <- struct{}{}:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

func (l *lane) leave() { <-l.places }

func (l *lane) used() int { return len(l.places) }
