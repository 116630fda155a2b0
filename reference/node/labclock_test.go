package node

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/api"
)

// A wall clock that is set back moves no instant and no timer. Where a lease on the wall
// clock is planted it moves both, or the experiment that must see that would prove
// nothing.
func TestLabClockJumps(t *testing.T) {
	t.Parallel()
	const back, slack = time.Hour, 30 * time.Minute
	for _, planted := range []bool{false, true} {
		c := newLabClock(clock.System(), 0, 0)
		c.jumps = planted
		before := c.Now()
		c.set(api.LabClock{SkewMS: -back.Milliseconds()})
		moved := before.Sub(c.Now())
		if want := planted; (moved > slack) != want {
			t.Errorf("planted %v: the instants went back by %v", planted, moved)
		}
		if off := time.Until(c.wall(time.Now())); (off + back).Abs() > slack {
			t.Errorf("planted %v: the wall clock is off by %v", planted, off)
		}
		// An instant that is to come: when is that?
		if in := c.onHost(before).Sub(clock.System().Now()); (in > slack) != planted {
			t.Errorf("planted %v: a timer would wait for %v", planted, in)
		}
	}
	if (Config{}).byWallClock() {
		t.Error("a wall clock that nobody planted")
	}
}
