package check

import (
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// fencing is G2: the tokens of the writes that the ledger accepted never fall. Writes of
// one kind and name are compared in the ledger's order, all others by its clock. Every
// effect has an attempt with its token, every acknowledged attempt has its effects, and
// every refused attempt is listed in the ledger.
func fencing(v *verdict.Verdict, f *facts.Facts) watcher {
	c := &fenceCheck{
		Verdict: v, f: f, streams: map[[2]string]history.Effect{}, effects: map[fence.Token]*effectSpan{},
		acknowledged: map[fence.Token]*okSpan{}, seals: map[fence.Token]history.Seal{},
		others: map[tokenWrite]*otherEffect{}, refused: map[facts.TermName]*refusals{},
	}
	for _, s := range f.Seals {
		c.Add("seals")
		if o, known := c.seals[s.Token]; !known || s.End < o.End {
			c.seals[s.Token] = s
			c.acknowledged[s.Token] = &okSpan{ended: history.Attempt{Source: s.Source, Node: s.Node, Token: s.Token, At: s.At, End: s.End}}
		}
	}
	return watcher{effect: c.effect, attempt: c.attempt, end: c.end}
}

type fenceCheck struct {
	*verdict.Verdict
	f            *facts.Facts
	streams      map[[2]string]history.Effect // the last effect of a kind and name
	effects      map[fence.Token]*effectSpan
	acknowledged map[fence.Token]*okSpan
	seals        map[fence.Token]history.Seal
	others       map[tokenWrite]*otherEffect // effects that are not in facts.accepted
	refused      map[facts.TermName]*refusals
}

type (
	// effectSpan has the first and the last effect of a token, by the ledger's clock.
	effectSpan struct{ first, last history.Effect }
	// okSpan is the first acknowledgement to a token, its seal included, and its last
	// acknowledged attempt.
	okSpan     struct{ ended, started history.Attempt }
	tokenWrite struct {
		history.Write
		token fence.Token
	}
	otherEffect struct {
		line  history.Place
		tried bool
	}
	// refusals counts the writes of a term that the ledger refused, the attempts that were
	// told so, and those with unknown outcome.
	refusals struct{ listed, told, open int64 }
)

func (c *fenceCheck) refusal(of facts.TermName) *refusals {
	if c.refused[of] == nil {
		if !c.f.Room(len(c.refused)+1, facts.Max) {
			return &refusals{}
		}
		c.refused[of] = &refusals{}
	}
	return c.refused[of]
}

func (c *fenceCheck) effect(e history.Effect) {
	if !e.Accepted() {
		c.Add("effects refused")
		c.refusal(facts.TermName{Node: e.Holder, Token: e.Token}).listed++
		if e.Refused == "stale" && e.Token >= e.Current {
			c.Violated(at{e.Line}, "token %d was refused as stale although the mark was %d", e.Token, e.Current)
		}
		return
	}
	c.Add("effects accepted")
	if e.Applied && e.Token < e.Current {
		c.Violated(at{e.Line}, "token %d of %s took effect after token %d: fencing was off", e.Token, e.Holder, e.Current)
	}
	if c.f.Whole() && !e.Applied && !facts.OfNumbers(e.What, e.Name) && c.f.Room(len(c.others)+1, facts.Max) {
		write := history.Write{What: e.What, Name: e.Name, First: e.First, Last: e.Last, InstantMS: e.InstantMS}
		c.others[tokenWrite{write, e.Token}] = &otherEffect{line: e.Line}
	}
	if e.N > 0 {
		c.inStream(e)
	}
	switch s := c.effects[e.Token]; {
	case s == nil:
		if c.f.Room(len(c.effects)+1, facts.Max) {
			c.effects[e.Token] = &effectSpan{e, e}
		}
	case e.AtMS < s.first.AtMS:
		s.first = e
	case e.AtMS > s.last.AtMS:
		s.last = e
	}
}

// inStream compares an effect with the one before it of the same kind and name.
func (c *fenceCheck) inStream(e history.Effect) {
	name := [2]string{e.What, e.Name}
	last, known := c.streams[name]
	both := at{e.Line, last.Line}
	switch {
	case e.What == history.EffectSequence && (e.First == 0 || e.Last < e.First || e.First <= last.Last):
		c.Violated(both, "%s %s %d has the range %d to %d after one that ends with %d", e.What, e.Name, e.N, e.First, e.Last, last.Last)
	case e.What == history.EffectSequence && e.N > last.N+1:
		c.Doubt(both, "%s %s %d follows %d: effects are missing", e.What, e.Name, e.N, last.N)
	}
	switch {
	case known && e.N <= last.N:
		c.Doubt(both, "%s %s %d is listed after %d: the lines are not in the ledger's order", e.What, e.Name, e.N, last.N)
	case known && e.Token < last.Token:
		c.Violated(both, "%s %s %d took effect with token %d after %d with token %d", e.What, e.Name, e.N, e.Token, last.N, last.Token)
	}
	if known || c.f.Room(len(c.streams)+1, facts.Max) {
		c.streams[name] = e
	}
}

func (c *fenceCheck) attempt(a history.Attempt) {
	if s, known := c.seals[a.Token]; known && a.At < s.End {
		c.Violated(at{a.Line, s.Line}, "%s writes with token %d before the ledger was sealed with it", a.Node, a.Token)
	}
	if c.f.Whole() {
		c.compare(a)
	}
	if a.Outcome != history.OutcomeOK || a.End == 0 {
		return
	}
	c.Add("attempts acknowledged")
	s := c.acknowledged[a.Token]
	if s == nil {
		if c.f.Room(len(c.acknowledged)+1, facts.Max) {
			c.acknowledged[a.Token] = &okSpan{a, a}
		}
		return
	}
	if a.End < s.ended.End {
		s.ended = a
	}
	if a.At > s.started.At {
		s.started = a
	}
}

// compare compares an attempt with the effects.
func (c *fenceCheck) compare(a history.Attempt) {
	switch a.Outcome {
	case history.OutcomeRefused:
		c.refusal(facts.TermName{Node: a.Node, Token: a.Token}).told++
	case history.OutcomeUnknown, "":
		c.refusal(facts.TermName{Node: a.Node, Token: a.Token}).open++
	}
	for _, w := range a.Writes {
		if !facts.OfNumbers(w.What, w.Name) {
			if e := c.others[tokenWrite{w, a.Token}]; e != nil {
				e.tried = true
			}
		} else if x := c.f.Accepted.Holding(a.Token, w.First, w.Last); x != nil && x.Numbers == (facts.Numbers{First: w.First, Last: w.Last}) {
			x.Tried = true
		} else if a.Outcome == history.OutcomeOK {
			c.Violated(at{a.Line}, "the write of %d to %d by %s with token %d was acknowledged, and no effect in the history has that range", w.First, w.Last, a.Node, a.Token)
		}
	}
}

// untried finds effects without an attempt, and refusals that only one side recorded.
func (c *fenceCheck) untried() {
	for _, token := range facts.Sorted(c.f.Accepted.ByToken) {
		for _, x := range c.f.Accepted.ByToken[token] {
			if !x.Tried {
				c.Violated(at{x.Line}, "%d to %d took effect with token %d, and the history has no attempt to write them", x.First, x.Last, token)
			}
		}
	}
	for w, e := range c.others {
		if !e.tried {
			c.Violated(at{e.line}, "%s %s took effect with token %d, and the history has no attempt to write it", w.What, w.Name, w.token)
		}
	}
	for of, n := range c.refused {
		// A refused seal is not an attempt, so before its seal a term may have more refusals.
		s, sealed := c.seals[of.Token]
		switch {
		case n.told > n.listed:
			c.Violated(nil, "%s was refused %d writes with token %d, and the ledger lists %d", of.Node, n.told, of.Token, n.listed)
		case n.listed > n.told+n.open && sealed && s.Node == of.Node:
			c.Violated(nil, "the ledger lists %d refused writes of %s with token %d, and the history has %d attempts", n.listed, of.Node, of.Token, n.told+n.open)
		}
	}
}

func (c *fenceCheck) end() {
	if c.f.Whole() {
		c.untried()
	}
	*c.Counter("tokens") = int64(len(c.effects))
	var last *history.Effect
	for _, token := range facts.Sorted(c.effects) {
		s := c.effects[token]
		if last != nil && last.AtMS > s.first.AtMS {
			c.Violated(at{last.Line, s.first.Line}, "token %d took effect %d ms after token %d had", last.Token, last.AtMS-s.first.AtMS, token)
		}
		if last == nil || s.last.AtMS > last.AtMS {
			last = &s.last
		}
	}
	var prev *history.Attempt
	for _, token := range facts.Sorted(c.acknowledged) {
		s := c.acknowledged[token]
		if _, known := c.seals[token]; !known {
			c.Doubt(at{s.ended.Line}, "a write had token %d, and the history has no seal with it", token)
		}
		if prev != nil && prev.At > s.ended.End {
			c.Violated(at{prev.Line, s.ended.Line}, "%s began a write with token %d %v after a seal or write with token %d was acknowledged, and it was acknowledged too",
				prev.Node, prev.Token, prev.At.Sub(s.ended.End), token)
		}
		if prev == nil || s.started.At > prev.At {
			prev = &s.started
		}
	}
}
