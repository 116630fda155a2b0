package check

import (
	"slices"

	"github.com/tenurehq/tenure/fence"
)

// fencing is G2: what the ledger accepted has tokens that never fall, so that the
// times in which two tokens took effect do not interleave. Within one thing that is
// written the ledger's own order counts, between two of them its clock.
type fencing struct {
	*tally
	streams map[stream]effectAt
	effects map[fence.Token]*effectSpan
	ordered map[fence.Token]*okSpan
	seals   map[fence.Token]sealAt
	full    bool
}

type stream struct{ what, name string }

type effectAt struct {
	Effect
	at Place
}

// effectSpan is from when to when a token took effect, by the ledger's clock.
type effectSpan struct{ first, last effectAt }

// okSpan is the first end of what was acknowledged to a token, its seal included, and the
// last start of its acknowledged attempts.
type okSpan struct {
	ended, started     Attempt
	endedAt, startedAt Place
}

func newFencing(f *facts) *fencing {
	c := &fencing{
		tally:   newTally("G2", "fence", "effects accepted", "effects refused", "attempts acknowledged", "seals", "tokens"),
		streams: map[stream]effectAt{}, effects: map[fence.Token]*effectSpan{}, ordered: map[fence.Token]*okSpan{}, seals: map[fence.Token]sealAt{},
	}
	for _, s := range f.seals {
		c.count("seals")
		if o, known := c.seals[s.Token]; !known || s.End < o.End {
			c.seals[s.Token] = s
			c.ordered[s.Token] = &okSpan{ended: Attempt{Node: s.Node, Token: s.Token, At: s.At, End: s.End}, endedAt: s.at}
		}
	}
	return c
}

func (c *fencing) effect(e Effect, at Place) {
	if e.Refused != "" && !e.Applied {
		c.count("effects refused")
		if e.Refused == "stale" && e.Token >= e.Current {
			c.violated([]Place{at}, "token %d was refused as stale although the mark was %d", e.Token, e.Current)
		}
		return
	}
	c.count("effects accepted")
	if e.Applied && e.Token < e.Current {
		c.violated([]Place{at}, "token %d of %s took effect after token %d: fencing was off", e.Token, e.Holder, e.Current)
	}
	now := effectAt{e, at}
	if e.N > 0 {
		name := stream{e.What, e.Name}
		last, known := c.streams[name]
		switch {
		case known && e.N <= last.N:
			c.doubt([]Place{at, last.at}, "%s %s %d stands after %d: the lines are not in the ledger's order", e.What, e.Name, e.N, last.N)
		case known && e.Token < last.Token:
			c.violated([]Place{at, last.at}, "%s %s %d took effect with token %d after %d with token %d", e.What, e.Name, e.N, e.Token, last.N, last.Token)
		}
		if known || len(c.streams) < maxFacts {
			c.streams[name] = now
		} else {
			c.tooMany(at)
		}
	}
	s := c.effects[e.Token]
	switch {
	case s == nil && len(c.effects) >= maxFacts:
		c.tooMany(at)
	case s == nil:
		c.effects[e.Token] = &effectSpan{now, now}
	default:
		if e.AtMS < s.first.AtMS {
			s.first = now
		}
		if e.AtMS > s.last.AtMS {
			s.last = now
		}
	}
}

func (c *fencing) tooMany(at Place) {
	if !c.full {
		c.full = true
		c.doubt([]Place{at}, "more than %d things to keep apart", maxFacts)
	}
}

func (c *fencing) attempt(a Attempt, at Place) {
	if s, known := c.seals[a.Token]; known && a.At < s.End {
		c.violated([]Place{at, s.at}, "%s writes with token %d before the ledger was sealed with it", a.Node, a.Token)
	}
	if a.Outcome != OutcomeOK || a.End == 0 {
		return
	}
	c.count("attempts acknowledged")
	s := c.ordered[a.Token]
	switch {
	case s == nil && len(c.ordered) >= maxFacts:
		c.tooMany(at)
	case s == nil:
		c.ordered[a.Token] = &okSpan{a, a, at, at}
	default:
		if a.End < s.ended.End {
			s.ended, s.endedAt = a, at
		}
		if a.At > s.started.At {
			s.started, s.startedAt = a, at
		}
	}
}

func (c *fencing) verdict() Verdict {
	tokens := sorted(c.effects)
	c.counts["tokens"] = int64(len(tokens))
	var last *effectAt
	for _, token := range tokens {
		s := c.effects[token]
		if last != nil && last.AtMS > s.first.AtMS {
			c.violated([]Place{last.at, s.first.at}, "token %d took effect %d ms after token %d had", last.Token, last.AtMS-s.first.AtMS, token)
		}
		if last == nil || s.last.AtMS > last.AtMS {
			last = &s.last
		}
	}
	var prev *okSpan
	for _, token := range sorted(c.ordered) {
		s := c.ordered[token]
		if _, known := c.seals[token]; !known {
			c.doubt([]Place{s.endedAt}, "token %d was written with, and no seal of it is in the history", token)
		}
		if prev != nil && prev.started.At > s.ended.End {
			c.violated([]Place{prev.startedAt, s.endedAt}, "a write with token %d was begun by %s %v after a seal or write with token %d was acknowledged, and acknowledged too",
				prev.started.Token, prev.started.Node, prev.started.At.Sub(s.ended.End), token)
		}
		if prev == nil || s.started.At > prev.started.At {
			prev = s
		}
	}
	return c.tally.verdict()
}

func sorted[V any](m map[fence.Token]V) []fence.Token {
	tokens := make([]fence.Token, 0, len(m))
	for token := range m {
		tokens = append(tokens, token)
	}
	slices.Sort(tokens)
	return tokens
}
