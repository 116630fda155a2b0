package check

import (
	"time"

	"github.com/tenurehq/tenure/clock"
)

// evidence: a fault that left none did not bite. What is said of it is taken as said,
// except that a node which was stopped or killed must not have written meanwhile. A
// fault that is known to have missed, and what is part of another, are not counted.
type evidence struct {
	*tally
	down []downtime
}

// downtime is a part of time in which a node surely did not run.
type downtime struct {
	faultAt
	span
}

const (
	// settle is how long a signal may take to arrive, and an instant to be noted.
	settle = 100 * time.Millisecond
	// restart is how long before its end was noted a killed process may have been
	// started again.
	restart = 500 * time.Millisecond
)

func newEvidence(f *facts) *evidence {
	c := &evidence{tally: newTally("evidence", "evidence", "faults", "kinds", "missed", "attempts")}
	kinds := map[string]bool{}
	for _, x := range f.faults {
		switch {
		case x.PartOf != "":
			if !f.whole(x) {
				c.doubt([]Place{x.at}, "%s of %s is said to be part of %s, and there was none at that time", x.Name, x.Target, x.PartOf)
			}
		case x.Missed != "":
			c.count("missed")
		default:
			c.count("faults")
			kinds[x.Name] = true
			if x.Evidence == "" {
				c.doubt([]Place{x.at}, "%s of %s left no evidence: it did not bite", x.Name, x.Target)
			}
		}
		if x.Healed == clock.Never {
			c.doubt([]Place{x.at}, "%s of %s was never healed", x.Name, x.Target)
		}
		if x.Healed < x.Begun {
			c.doubt([]Place{x.at}, "%s of %s was healed before it began", x.Name, x.Target)
		}
		if x.Missed == "" {
			c.stopped(x, f.run)
		}
	}
	c.counts["kinds"] = int64(len(kinds))
	return c
}

// whole reports whether the fault that another is a part of is in the history.
func (f *facts) whole(part faultAt) bool {
	for _, x := range f.faults {
		if x.Name == part.PartOf && x.PartOf == "" && x.Begun <= part.Healed && part.Begun <= x.Healed {
			return true
		}
	}
	return false
}

// stopped notes when a fault kept a node from running.
func (c *evidence) stopped(x faultAt, r Run) {
	s := span{later(x.Begun, settle), 0}
	switch {
	case x.Class == ClassPause && x.Held != 0:
		s.to = x.Held
	case x.Class == ClassPause:
		s.to = x.Healed - clock.Instant(r.wake())
	case x.Class == ClassKill:
		s.to = x.Healed - clock.Instant(restart)
	}
	if x.Class == ClassPause && x.Set != 0 {
		s.from = later(x.Set, r.late())
	}
	if s.from < s.to {
		c.down = append(c.down, downtime{x, s})
	}
}

func (c *evidence) attempt(a Attempt, at Place) {
	c.count("attempts")
	for _, x := range c.down {
		if x.Target == a.Node && x.from < a.At && a.At < x.to {
			c.violated([]Place{at, x.at}, "%s writes while it is down by %s", a.Node, x.Name)
		}
	}
}
