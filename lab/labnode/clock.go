package labnode

import (
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/labapi"
)

// skewedClock runs at another rate than the host's clock, and has a wrong wall clock. Both
// can be changed while they run.
//
// The instants never go back and never jump: the offset applies to the wall clock only. A
// node makes no decision by a wall clock, unless that bug is planted.
type skewedClock struct {
	host  clock.Clock
	jumps bool // planted: the instants are the wall clock's

	mu     sync.Mutex
	rate   float64       // seconds of this clock per second of the host's
	at     clock.Instant // when the rate was set, on the host's clock
	is     clock.Instant // the same moment on this clock
	skew   time.Duration
	timers map[*skewedTimer]struct{}
}

func newClock(host clock.Clock, skew time.Duration, drift float64) *skewedClock {
	now := host.Now()
	return &skewedClock{host: host, rate: 1 + drift, at: now, is: now, skew: skew, timers: map[*skewedTimer]struct{}{}}
}

// Now implements clock.Clock.
func (c *skewedClock) Now() clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

func (c *skewedClock) now() clock.Instant {
	return c.steady().Add(c.jump())
}

// steady is the clock without the planted bug.
func (c *skewedClock) steady() clock.Instant {
	return c.is.Add(time.Duration(float64(c.host.Now().Sub(c.at)) * c.rate))
}

func (c *skewedClock) jump() time.Duration {
	if c.jumps {
		return c.skew
	}
	return 0
}

// wall is the node's wall clock.
func (c *skewedClock) wall(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Add(c.skew + c.steady().Sub(c.host.Now()))
}

// set changes the clock from now on.
func (c *skewedClock) set(to labapi.Clock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.is, c.at = c.steady(), c.host.Now()
	c.rate = 1 + float64(to.DriftPPM)/1e6
	c.skew = time.Duration(to.SkewMS) * time.Millisecond
	for t := range c.timers {
		t.arm()
	}
}

// onHost converts an instant of this clock to the host's clock.
func (c *skewedClock) onHost(at clock.Instant) clock.Instant {
	if at == clock.Never {
		return clock.Never
	}
	return c.at.Add(time.Duration(float64(at.Sub(c.is.Add(c.jump()))) / c.rate))
}

// NewTimer implements clock.Clock.
func (c *skewedClock) NewTimer() clock.Timer {
	t := &skewedTimer{clock: c, timer: c.host.NewTimer(), set: clock.Never}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers[t] = struct{}{}
	return t
}

type skewedTimer struct {
	clock *skewedClock
	timer clock.Timer
	set   clock.Instant
}

func (t *skewedTimer) C() <-chan struct{} { return t.timer.C() }

func (t *skewedTimer) Set(at clock.Instant) {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.set = at
	t.arm()
}

// arm sets the host's timer; the clock is locked. Readings are rounded down, so the timer
// fires a little late: a receiver that woke up early would set it again repeatedly.
func (t *skewedTimer) arm() {
	at := t.clock.onHost(t.set)
	if at != clock.Never {
		at = at.Add(time.Microsecond)
	}
	t.timer.Set(at)
}

func (t *skewedTimer) Stop() {
	t.clock.mu.Lock()
	delete(t.clock.timers, t)
	t.clock.mu.Unlock()
	t.timer.Stop()
}
