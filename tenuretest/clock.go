package tenuretest

import (
	"time"

	"github.com/tenurehq/tenure/clock"
)

// bubbleClock runs on package time, which is virtual inside a bubble. clock.System would read
// the machine's clock.
type bubbleClock struct{ origin time.Time }

func (c bubbleClock) Now() clock.Instant { return clock.Instant(time.Since(c.origin)) + 1 }

func (c bubbleClock) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }

// nodeClock shows the time, but its timers do not fire while its node is paused.
type nodeClock struct {
	clock.Clock
	gate *gate
}

func (c nodeClock) NewTimer() clock.Timer {
	t := &heldTimer{
		Timer: c.Clock.NewTimer(),
		c:     make(chan struct{}, 1),
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
	}
	go t.forward(c.gate)
	return t
}

type heldTimer struct {
	clock.Timer
	c, stop, done chan struct{}
}

func (t *heldTimer) forward(g *gate) {
	defer close(t.done)
	for {
		select {
		case <-t.Timer.C():
		case <-t.stop:
			return
		}
		if !g.awake(t.stop) {
			return
		}
		select {
		case t.c <- struct{}{}:
		default:
		}
	}
}

func (t *heldTimer) C() <-chan struct{} { return t.c }

func (t *heldTimer) Stop() {
	close(t.stop)
	<-t.done
	t.Timer.Stop()
}
