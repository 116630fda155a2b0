package check

import (
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// baton is G5: after a handover in order the old leader's last attempt to write comes
// before the new leader's first, and before its term. A leader that was stopped while it
// handed over may have lost its session meanwhile: of terms that expire G5 says nothing.
// Nor of one that gave up because a write was refused: it had been deposed before.
type baton struct {
	*tally
	f     *facts
	spans map[fence.Token]*attemptSpan
}

type attemptSpan struct {
	first, last     Attempt
	firstAt, lastAt Place
	n, refused      int64
	refusedAt       []Attempt
	// told is when the node was first told of a refusal; 0: it was not.
	told clock.Instant
}

// maxRefused is how many refused attempts of a term are kept for pictures.
const maxRefused = 64

func newBaton(f *facts) *baton {
	return &baton{tally: newTally("G5", "baton", "handovers", "attempts", "excepted", "deposed"), f: f, spans: map[fence.Token]*attemptSpan{}}
}

func (c *baton) attempt(a Attempt, at Place) {
	c.count("attempts")
	s := c.spans[a.Token]
	if s == nil {
		if c.tooMany(len(c.spans), maxFacts, at) {
			return
		}
		s = &attemptSpan{first: a, last: a, firstAt: at, lastAt: at}
		c.spans[a.Token] = s
	}
	s.n++
	if a.At < s.first.At {
		s.first, s.firstAt = a, at
	}
	if a.At > s.last.At {
		s.last, s.lastAt = a, at
	}
	if a.Outcome == OutcomeRefused {
		s.refused++
		if a.End > 0 && (s.told == 0 || a.End < s.told) {
			s.told = a.End
		}
		if len(s.refusedAt) < maxRefused {
			s.refusedAt = append(s.refusedAt, a)
		}
	}
}

func (c *baton) verdict() Verdict {
	begins, handed := map[fence.Token]*term{}, map[fence.Token]*term{}
	for _, t := range c.f.terms {
		begins[t.token] = t
		if orderly(t.cause) {
			handed[t.token] = t
		}
	}
	tokens := sorted(c.spans)
	var least, most time.Duration
	for i, token := range tokens[:max(0, len(tokens)-1)] {
		if handed[token] == nil {
			continue
		}
		old, next := c.spans[token], c.spans[tokens[i+1]]
		if old.told > 0 && old.told <= handed[token].ended {
			c.count("deposed")
			continue
		}
		b := begins[tokens[i+1]]
		if (next.first.At < old.last.At || b != nil && b.began < old.last.At) && c.f.paused(old.last.Node, old.last.At) {
			c.count("excepted")
			continue
		}
		gap := next.first.At.Sub(old.last.At)
		if c.counts["handovers"] == 0 || gap < least {
			least = gap
		}
		most = max(most, gap)
		c.count("handovers")
		if gap < 0 {
			c.violated([]Place{old.lastAt, next.firstAt}, "%s writes with token %d, %v after %s began to write with token %d", old.last.Node, token, -gap, next.first.Node, tokens[i+1])
		} else if b != nil && b.began < old.last.At {
			c.violated([]Place{old.lastAt, b.beganAt}, "%s writes with token %d, %v after the term of %s with token %d began", old.last.Node, token, old.last.At.Sub(b.began), b.node, b.token)
		}
	}
	if c.counts["handovers"] > 0 {
		c.v.Note = "gaps from " + tidy(least) + " to " + tidy(most)
	}
	return c.tally.verdict()
}

func tidy(d time.Duration) string {
	if d.Abs() >= time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}
