package check

import (
	"maps"
	"slices"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
)

// fencing is G2. What the ledger accepted has tokens that never fall, so that the
// times in which two tokens took effect do not interleave. Within one thing that is
// written the ledger's own order counts, between two of them its clock. Every effect has
// an attempt of its token, every acknowledged attempt its effects, and every refused
// attempt its refusal in the ledger.
type fencing struct {
	*tally
	streams map[stream]effectAt
	effects map[fence.Token]*effectSpan
	ordered map[fence.Token]*okSpan
	seals   map[fence.Token]sealAt

	// took are the effects of the sequence that callers take numbers from, others all
	// further ones with how often they were tried, file is where they are.
	took   allocations
	others map[write]*effectTried
	file   string
	// refused are the refusals of a term, of the ledger and of its leader.
	refused map[termName]*refusals
	whole   bool // the history has effects and attempts
}

// write is an effect and what an attempt asks for.
type write struct {
	Write
	token fence.Token
}

type effectTried struct {
	at    Place
	tried bool
}

// refusals counts the writes of a term that the ledger refused, the attempts that were
// told so, and those whose outcome is not known.
type refusals struct{ listed, told, open int64 }

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
		others: map[write]*effectTried{}, refused: map[termName]*refusals{}, whole: f.whole(),
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
		c.refusal(termName{e.Holder, e.Token}).listed++
		if e.Refused == "stale" && e.Token >= e.Current {
			c.violated([]Place{at}, "token %d was refused as stale although the mark was %d", e.Token, e.Current)
		}
		return
	}
	c.count("effects accepted")
	if e.Applied && e.Token < e.Current {
		c.violated([]Place{at}, "token %d of %s took effect after token %d: fencing was off", e.Token, e.Holder, e.Current)
	}
	c.account(e, at)
	now := effectAt{e, at}
	if e.N > 0 {
		name := stream{e.What, e.Name}
		last, known := c.streams[name]
		switch {
		case e.What == EffectSequence && (e.First == 0 || e.Last < e.First || e.First <= last.Last):
			c.violated([]Place{at, last.at}, "%s %s %d has the range %d to %d after one that ends with %d", e.What, e.Name, e.N, e.First, e.Last, last.Last)
		case e.What == EffectSequence && e.N > last.N+1:
			c.doubt([]Place{at, last.at}, "%s %s %d follows %d: effects are missing", e.What, e.Name, e.N, last.N)
		}
		switch {
		case known && e.N <= last.N:
			c.doubt([]Place{at, last.at}, "%s %s %d stands after %d: the lines are not in the ledger's order", e.What, e.Name, e.N, last.N)
		case known && e.Token < last.Token:
			c.violated([]Place{at, last.at}, "%s %s %d took effect with token %d after %d with token %d", e.What, e.Name, e.N, e.Token, last.N, last.Token)
		}
		if known || !c.tooMany(len(c.streams), maxFacts, at) {
			c.streams[name] = now
		}
	}
	s := c.effects[e.Token]
	switch {
	case s == nil && c.tooMany(len(c.effects), maxFacts, at):
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

// account keeps an effect, to be compared with the attempts.
func (c *fencing) account(e Effect, at Place) {
	switch w := (write{Write{e.What, e.Name, e.First, e.Last, e.InstantMS}, e.Token}); {
	case !c.whole || e.Applied:
	case e.What == EffectSequence && e.Name == api.Sequence:
		if c.file = at.File; !c.tooMany(c.took.n, maxAllocations, at) {
			c.took.add(e.Token, allocation{numbers: numbers{e.First, e.Last}, line: at.Line})
		}
	case !c.tooMany(len(c.others), maxFacts, at):
		c.others[w] = &effectTried{at: at}
	}
}

// tried compares an attempt with the effects.
func (c *fencing) tried(a Attempt, at Place) {
	switch a.Outcome {
	case OutcomeRefused:
		c.refusal(termName{a.Node, a.Token}).told++
	case OutcomeUnknown, "":
		c.refusal(termName{a.Node, a.Token}).open++
	}
	for _, w := range a.Writes {
		if w.What != EffectSequence || w.Name != api.Sequence {
			if e := c.others[write{w, a.Token}]; e != nil {
				e.tried = true
			}
			continue
		}
		if x := c.took.holding(a.Token, w.First, w.Last); x != nil && x.numbers == (numbers{w.First, w.Last}) {
			x.tried = true
		} else if a.Outcome == OutcomeOK {
			c.violated([]Place{at}, "the write of %d to %d by %s with token %d was acknowledged, and no effect in the history has that range", w.First, w.Last, a.Node, a.Token)
		}
	}
}

func (c *fencing) refusal(of termName) *refusals {
	n := c.refused[of]
	if n == nil {
		n = &refusals{}
		if !c.tooMany(len(c.refused), maxFacts) {
			c.refused[of] = n
		}
	}
	return n
}

// untried finds effects without an attempt, and refusals that only one side knows of.
func (c *fencing) untried() {
	for _, token := range sorted(c.took.byToken) {
		for _, x := range c.took.byToken[token] {
			if !x.tried {
				c.violated([]Place{{c.file, x.line}}, "%d to %d took effect with token %d, and no attempt to write them is in the history", x.first, x.last, token)
			}
		}
	}
	for w, e := range c.others {
		if !e.tried {
			c.violated([]Place{e.at}, "%s %s took effect with token %d, and no attempt to write it is in the history", w.What, w.Name, w.token)
		}
	}
	for of, n := range c.refused {
		// A seal that is refused is no attempt: before its seal a term may have refusals.
		s, sealed := c.seals[of.token]
		switch {
		case n.told > n.listed:
			c.violated(nil, "%s was refused %d writes with token %d, and the ledger lists %d", of.node, n.told, of.token, n.listed)
		case n.listed > n.told+n.open && sealed && s.Node == of.node:
			c.violated(nil, "the ledger lists %d refused writes of %s with token %d, and the history has %d attempts", n.listed, of.node, of.token, n.told+n.open)
		}
	}
}

func (c *fencing) attempt(a Attempt, at Place) {
	if s, known := c.seals[a.Token]; known && a.At < s.End {
		c.violated([]Place{at, s.at}, "%s writes with token %d before the ledger was sealed with it", a.Node, a.Token)
	}
	if c.whole {
		c.tried(a, at)
	}
	if a.Outcome != OutcomeOK || a.End == 0 {
		return
	}
	c.count("attempts acknowledged")
	s := c.ordered[a.Token]
	switch {
	case s == nil && c.tooMany(len(c.ordered), maxFacts, at):
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
	if c.whole {
		c.untried()
	}
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

func sorted[V any](m map[fence.Token]V) []fence.Token { return slices.Sorted(maps.Keys(m)) }
