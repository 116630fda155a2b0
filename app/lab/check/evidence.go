package check

import (
	"time"

	"github.com/tenurehq/tenure/clock"
)

// evidence: a fault that left none did not bite. What is said of it is taken as said,
// except that a node which was stopped or killed must not have written meanwhile.
type evidence struct {
	*tally
	down []faultAt
	// wake is how long before its end was noted a pause may have been over.
	wake time.Duration
}

// settle is how long a signal may take to arrive, and an instant to be noted.
const settle = 100 * time.Millisecond

func newEvidence(f *facts) *evidence {
	c := &evidence{tally: newTally("evidence", "evidence", "faults", "kinds", "attempts"), wake: f.run.wake()}
	kinds := map[string]bool{}
	for _, x := range f.faults {
		c.count("faults")
		kinds[x.Name] = true
		if x.Evidence == "" {
			c.doubt([]Place{x.at}, "%s of %s left no evidence: it did not bite", x.Name, x.Target)
		}
		if x.Healed == clock.Never {
			c.doubt([]Place{x.at}, "%s of %s was never healed", x.Name, x.Target)
		}
		if x.Healed < x.Begun {
			c.doubt([]Place{x.at}, "%s of %s was healed before it began", x.Name, x.Target)
		}
		if x.Class == ClassKill || x.Class == ClassPause {
			c.down = append(c.down, x)
		}
	}
	c.counts["kinds"] = int64(len(kinds))
	return c
}

func (c *evidence) attempt(a Attempt, at Place) {
	c.count("attempts")
	for _, x := range c.down {
		if x.Target == a.Node && later(x.Begun, settle) < a.At && a.At < x.Healed-clock.Instant(c.wake) {
			c.violated([]Place{at, x.at}, "%s writes while it is down by %s", a.Node, x.Name)
		}
	}
}
