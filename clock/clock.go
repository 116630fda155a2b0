// Package clock reads the time that leases are measured on.
//
// A lease must end while a machine is suspended. So the system clock is CLOCK_BOOTTIME on Linux:
// Go's own monotonic clock stops during a suspend, and a leader that measured its trust on it
// would wake up believing that it leads.
//
// Time is an input everywhere in this module. Tests and experiments with skew and drift pass
// another [Clock].
//
// # Limitations
//
// On other systems the system clock is Go's monotonic clock, and a suspend is noticed late. A
// sink still refuses what such a leader writes. Instants of different clocks, or from before and
// after a reboot, cannot be compared.
package clock

import (
	"math"
	"time"
)

// Instant is a reading of one clock, in nanoseconds. Readings of different
// clocks, or of one clock before and after a reboot, do not compare.
type Instant int64

// Never is later than every reading.
const Never Instant = math.MaxInt64

// Add returns the instant d after i; Never stays Never.
func (i Instant) Add(d time.Duration) Instant {
	if i == Never {
		return Never
	}
	return i + Instant(d)
}

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Clock tells the time and wakes its callers. Implementations are safe for
// concurrent use and never go back.
type Clock interface {
	Now() Instant
	// NewTimer returns a timer that is not set.
	NewTimer() Timer
}

// Timer wakes one goroutine. A wake-up may come early or twice, so the
// receiver reads the clock; it never comes late by more than the system is.
type Timer interface {
	// C receives after the instant that was set. It is buffered by one.
	C() <-chan struct{}
	// Set replaces what was set before. Never means not at all.
	Set(at Instant)
	// Stop ends the timer for good and waits for what it had started.
	Stop()
}

// System returns the clock of this machine.
func System() Clock { return system{} }

type system struct{}

func (system) NewTimer() Timer {
	if t := newSystemTimer(); t != nil {
		return t
	}
	return NewRuntimeTimer(system{})
}

// NewRuntimeTimer returns a Timer for a clock that runs at the rate of Go's
// monotonic clock: the runtime's timers wake it.
func NewRuntimeTimer(c Clock) Timer {
	t := &runtimeTimer{clock: c, c: make(chan struct{}, 1)}
	t.timer = time.AfterFunc(math.MaxInt64, t.fire)
	t.timer.Stop()
	return t
}

type runtimeTimer struct {
	clock Clock
	timer *time.Timer
	c     chan struct{}
}

func (t *runtimeTimer) fire() {
	select {
	case t.c <- struct{}{}:
	default:
	}
}

func (t *runtimeTimer) C() <-chan struct{} { return t.c }

func (t *runtimeTimer) Set(at Instant) {
	if at == Never {
		t.timer.Stop()
		return
	}
	t.timer.Reset(max(0, at.Sub(t.clock.Now())))
}

func (t *runtimeTimer) Stop() { t.timer.Stop() }
