package check

import (
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// recovery is G7: while nothing is broken, no longer than the bound passes without a
// write that takes effect, counted from when the last fault was healed.
type recovery struct {
	*tally
	bound   time.Duration
	quiet   []quiet
	i       int
	last    clock.Instant // the last success or the beginning of the quiet time
	lastAt  Place
	judged  bool
	longest time.Duration
	// end is when somebody tried last.
	end   clock.Instant
	endAt Place
}

// quiet is a time in which nothing is broken.
type quiet struct {
	span
	after Place // the fault whose healing began it
}

func newRecovery(f *facts) *recovery {
	c := &recovery{tally: newTally("G7", "recovery", "quiet times", "faults", "successes"), bound: f.run.RecoveryBound()}
	if slices.ContainsFunc(f.faults, func(x faultAt) bool { return x.Class == ClassSilent }) {
		c.bound += silentWatch
	}
	now, after := f.run.At, f.runAt
	for _, x := range f.faults {
		if x.Counts() {
			c.count("faults")
		}
		if x.Begun > now {
			c.quiet = append(c.quiet, quiet{span{now, x.Begun}, after})
		}
		if x.Healed >= now {
			now, after = x.Healed, x.at
		}
	}
	if now < clock.Never {
		c.quiet = append(c.quiet, quiet{span{now, clock.Never}, after})
	} else {
		c.doubt([]Place{after}, "the last fault was never healed")
	}
	if len(c.quiet) > 0 {
		c.last, c.lastAt = c.quiet[0].from, c.quiet[0].after
	}
	return c
}

// tried is told every call and attempt in the order of time, and whether it took
// effect.
func (c *recovery) tried(when clock.Instant, at Place, ok bool) {
	if when > c.end {
		c.end, c.endAt = when, at
	}
	for c.i < len(c.quiet) && when >= c.quiet[c.i].to {
		c.pass(c.quiet[c.i].to, c.lastAt)
	}
	if !ok || c.i == len(c.quiet) || when < c.last {
		return
	}
	c.count("successes")
	c.without(when, at)
	c.last, c.lastAt, c.judged = when, at, true
}

// pass ends a quiet time.
func (c *recovery) pass(end clock.Instant, at Place) {
	if c.without(end, at); c.judged || end.Sub(c.last) > c.bound {
		c.count("quiet times")
	}
	c.i, c.judged = c.i+1, false
	if c.i < len(c.quiet) {
		c.last, c.lastAt = c.quiet[c.i].from, c.quiet[c.i].after
	}
}

// without judges the time from the last success to now.
func (c *recovery) without(now clock.Instant, at Place) {
	took := now.Sub(c.last)
	if took > c.bound {
		c.violated([]Place{at, c.lastAt, c.quiet[c.i].after}, "nothing took effect for %v although nothing was broken; the bound is %v", took, c.bound)
	}
	c.longest = max(c.longest, took)
}

func (c *recovery) verdict() Verdict {
	if last := len(c.quiet) - 1; last >= 0 && c.quiet[last].to == clock.Never {
		for c.i < last {
			c.pass(c.quiet[c.i].to, c.lastAt)
		}
		if !c.judged && c.end.Sub(c.last) <= c.bound {
			c.doubt([]Place{c.quiet[last].after}, "the history ends %v after the last fault, before the bound of %v, and nothing had taken effect", max(0, c.end.Sub(c.last)), c.bound)
		}
		c.pass(max(c.end, c.last), c.endAt)
	}
	c.v.Note = "bound " + tidy(c.bound) + ", longest " + tidy(c.longest)
	return c.tally.verdict()
}
