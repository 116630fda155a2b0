package node

import (
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/api"
)

// labClock is a clock that runs at another rate than the host's, and a wall clock that
// is off beside it. Both can be changed while they run.
//
// The instants never go back and never jump: an offset belongs to a wall clock, and
// nothing in a node decides by one, unless that is planted.
type labClock struct {
	host  clock.Clock
	jumps bool // planted: the instants are the wall clock's

	mu     sync.Mutex
	rate   float64       // of this clock's seconds to the host's
	at     clock.Instant // on the host's clock, when the rate was set,
	is     clock.Instant // and on this one
	skew   time.Duration
	timers map[*labTimer]struct{}
}

func newLabClock(host clock.Clock, skew time.Duration, drift float64) *labClock {
	now := host.Now()
	return &labClock{host: host, rate: 1 + drift, at: now, is: now, skew: skew, timers: map[*labTimer]struct{}{}}
}

// Now implements clock.Clock.
func (c *labClock) Now() clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

func (c *labClock) now() clock.Instant {
	return c.steady().Add(c.jump())
}

// steady is the clock without what is planted.
func (c *labClock) steady() clock.Instant {
	return c.is.Add(time.Duration(float64(c.host.Now().Sub(c.at)) * c.rate))
}

func (c *labClock) jump() time.Duration {
	if c.jumps {
		return c.skew
	}
	return 0
}

// wall is what this node takes for the time of day.
func (c *labClock) wall(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Add(c.skew + c.steady().Sub(c.host.Now()))
}

// set changes the clock from now on.
func (c *labClock) set(to api.LabClock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.is, c.at = c.steady(), c.host.Now()
	c.rate = 1 + float64(to.DriftPPM)/1e6
	c.skew = time.Duration(to.SkewMS) * time.Millisecond
	for t := range c.timers {
		t.arm()
	}
}

// onHost is when an instant of this clock comes, on the host's.
func (c *labClock) onHost(at clock.Instant) clock.Instant {
	if at == clock.Never {
		return clock.Never
	}
	return c.at.Add(time.Duration(float64(at.Sub(c.is.Add(c.jump()))) / c.rate))
}

// NewTimer implements clock.Clock.
func (c *labClock) NewTimer() clock.Timer {
	t := &labTimer{clock: c, timer: c.host.NewTimer(), set: clock.Never}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers[t] = struct{}{}
	return t
}

type labTimer struct {
	clock *labClock
	timer clock.Timer
	set   clock.Instant
}

func (t *labTimer) C() <-chan struct{} { return t.timer.C() }

func (t *labTimer) Set(at clock.Instant) {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.set = at
	t.arm()
}

// arm sets the host's timer; the clock is locked. A reading is rounded down, so a
// wake-up must not come that little early, or its receiver would set it again and again.
func (t *labTimer) arm() {
	at := t.clock.onHost(t.set)
	if at != clock.Never {
		at = at.Add(time.Microsecond)
	}
	t.timer.Set(at)
}

func (t *labTimer) Stop() {
	t.clock.mu.Lock()
	delete(t.clock.timers, t)
	t.clock.mu.Unlock()
	t.timer.Stop()
}
