package check

import "github.com/tenurehq/tenure/clock"

// zombies is G4: a term ends once and does not come back, and nobody writes with one
// that has ended. What a leader writes after it gave up by its own will belongs to the
// handover: G5. However a term ends and whatever the clocks say, a node that was told of
// a refusal begins no further write with that token: it steps down before its next
// operation.
type zombies struct {
	*tally
	f       *facts
	strange map[termName]bool
	// told is when a node was first told that a write of its term was refused.
	told map[termName]refusedAt
}

type refusedAt struct {
	end clock.Instant
	at  Place
}

func newZombies(f *facts) *zombies {
	c := &zombies{tally: newTally("G4", "no-zombie", "terms", "attempts", "attempts after a pause", "attempts refused"), f: f, strange: map[termName]bool{}, told: map[termName]refusedAt{}}
	last := map[string]*term{}
	for _, t := range f.terms {
		c.count("terms")
		before := last[t.node]
		if before != nil {
			if t.token <= before.token {
				c.violated([]Place{t.beganAt, before.beganAt}, "%s began a term with token %d after one with token %d", t.node, t.token, before.token)
			}
			if before.ended > t.began {
				c.violated([]Place{t.beganAt, before.beganAt}, "%s began a term with token %d while that with token %d had not ended", t.node, t.token, before.token)
			}
		}
		if t.ended < t.began {
			c.doubt([]Place{t.endedAt, t.beganAt}, "the term of %s with token %d ended before it began", t.node, t.token)
		}
		last[t.node] = t
	}
	for _, b := range f.reopened {
		c.violated([]Place{b.at, b.before}, "the term of %s with token %d began twice", b.Node, b.Token)
	}
	for _, b := range f.strays {
		c.doubt([]Place{b.at}, "the term of %s with token %d ended, and its beginning is not in the history", b.Node, b.Token)
	}
	return c
}

func (c *zombies) attempt(a Attempt, at Place) {
	c.count("attempts")
	name := termName{a.Node, a.Token}
	t := c.f.byName[name]
	if t == nil {
		if !c.strange[name] && len(c.strange) < maxFacts {
			c.strange[name] = true
			c.doubt([]Place{at}, "%s writes with token %d, and the beginning of that term is not in the history", a.Node, a.Token)
		}
		return
	}
	c.refused(a, at)
	if a.At < t.began {
		c.violated([]Place{at, t.beganAt}, "%s writes with token %d, %v before its term began", a.Node, a.Token, t.began.Sub(a.At))
		return
	}
	late := c.f.run.late()
	if t.cause == killed {
		late = max(late, settle)
	}
	if orderly(t.cause) || a.At <= later(t.ended, late) {
		return
	}
	if c.f.paused(a.Node, a.At) {
		c.count("attempts after a pause")
		return
	}
	c.violated([]Place{at, t.endedAt}, "%s writes with token %d, %v after its term ended (%s)", a.Node, a.Token, a.At.Sub(t.ended), t.cause)
}

// refused is told every attempt in the order of their beginnings, so that one which ended
// before this began is known.
func (c *zombies) refused(a Attempt, at Place) {
	name := termName{a.Node, a.Token}
	first, told := c.told[name]
	if told && a.At > first.end {
		c.violated([]Place{at, first.at}, "%s writes with token %d, %v after it was told that a write with it was refused", a.Node, a.Token, a.At.Sub(first.end))
	}
	if a.Outcome != OutcomeRefused {
		return
	}
	c.count("attempts refused")
	if a.End > 0 && (!told || a.End < first.end) && (told || len(c.told) < maxFacts) {
		c.told[name] = refusedAt{a.End, at}
	}
}

// killed is the cause of a term's end that its process could not tell.
const killed = "killed"

// orderly reports whether a term ended by the leader's own will.
func orderly(cause string) bool {
	return cause == "resigned" || cause == "transferred" || cause == "unhealthy"
}
