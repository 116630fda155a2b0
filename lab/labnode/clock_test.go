package labnode

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/labapi"
)

// A wall clock that is set back moves no instant and no timer. With the planted bug of a
// lease on the wall clock it moves both; otherwise the experiment that must see that would
// prove nothing.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	const back, slack = time.Hour, 30 * time.Minute
	for _, planted := range []bool{false, true} {
		c := newClock(clock.System(), 0, 0)
		c.jumps = planted
		before := c.Now()
		c.set(labapi.Clock{SkewMS: -back.Milliseconds()})
		moved := before.Sub(c.Now())
		if want := planted; (moved > slack) != want {
			t.Errorf("planted %v: the instants went back by %v", planted, moved)
		}
		if off := time.Until(c.wall(time.Now())); (off + back).Abs() > slack {
			t.Errorf("planted %v: the wall clock is off by %v", planted, off)
		}
		// Where is a future instant on the host's clock?
		if in := c.onHost(before).Sub(clock.System().Now()); (in > slack) != planted {
			t.Errorf("planted %v: a timer would wait for %v", planted, in)
		}
	}
	if (Config{}).byWallClock() {
		t.Error("a wall clock that nobody planted")
	}
}

// handClock is a clock that the test advances; its timers never fire.
type handClock struct{ at atomic.Int64 }

func handAt(at clock.Instant) *handClock {
	c := &handClock{}
	c.at.Store(int64(at))
	return c
}

func (c *handClock) Now() clock.Instant    { return clock.Instant(c.at.Load()) }
func (c *handClock) pass(d time.Duration)  { c.at.Add(int64(d)) }
func (c *handClock) NewTimer() clock.Timer { return &handTimer{} }

type handTimer struct{ at clock.Instant }

func (t *handTimer) C() <-chan struct{}   { return nil }
func (t *handTimer) Set(at clock.Instant) { t.at = at }
func (t *handTimer) Stop()                {}

// The lab's clock runs at the rate that was set, without a jump, and its timers follow. An
// offset affects only its wall clock.
func TestClock(t *testing.T) {
	host := handAt(1000)
	c := newClock(host, time.Hour, 0.5)
	timer, _ := c.NewTimer().(*skewedTimer)
	under, _ := timer.timer.(*handTimer)
	timer.Set(c.Now().Add(3 * time.Second))
	if want := host.Now().Add(2*time.Second + time.Microsecond); under.at != want {
		t.Errorf("a timer of 3 s on a clock that is half as fast again is set to %v, want %v", under.at, want)
	}
	host.pass(time.Second)
	if got := c.Now().Sub(1000); got != 1500*time.Millisecond {
		t.Errorf("after a second of the host it is %v later", got)
	}
	c.set(labapi.Clock{SkewMS: -5000, DriftPPM: -500_000})
	if got := c.Now().Sub(1000); got != 1500*time.Millisecond {
		t.Errorf("it jumped to %v when it was set", got)
	}
	if want := host.Now().Add(3*time.Second + time.Microsecond); under.at != want {
		t.Errorf("what was left of the timer, 1.5 s at half the rate, is set to %v, want %v", under.at, want)
	}
	host.pass(time.Second)
	if got := c.Now().Sub(1000); got != 2*time.Second {
		t.Errorf("at half the rate it is %v later", got)
	}
	now := time.Unix(1000, 0)
	if got := c.wall(now).Sub(now); got != -5*time.Second {
		t.Errorf("the wall clock is off by %v", got)
	}
	timer.Set(clock.Never)
	if under.at != clock.Never {
		t.Error("Never is not never")
	}
	timer.Stop()
	if len(c.timers) != 0 {
		t.Error("a timer that was stopped is kept")
	}
}
