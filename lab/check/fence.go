package check

import (
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
)

// fencing is G2: the tokens of the writes that the ledger accepted never fall. Writes of
// one kind and name are compared in the ledger's order, all others by its clock. Every
// effect has an attempt with its token, every acknowledged attempt has its effects, and
// every refused attempt is listed in the ledger.
func fencing(v *Verdict, f *facts) watcher {
	type (
		stream     struct{ what, name string }
		effectSpan struct{ first, last history.Effect } // of a token, by the ledger's clock
		// okSpan is the first acknowledgement to a token, its seal included, and its last
		// acknowledged attempt.
		okSpan struct{ ended, started history.Attempt }
		write  struct {
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
	streams := map[stream]history.Effect{}
	effects := map[fence.Token]*effectSpan{}
	acknowledged := map[fence.Token]*okSpan{}
	seals := map[fence.Token]history.Seal{}
	others := map[write]*otherEffect{} // effects that are not in f.accepted
	refused := map[termName]*refusals{}
	for _, s := range f.seals {
		v.count("seals")
		if o, known := seals[s.Token]; !known || s.End < o.End {
			seals[s.Token] = s
			acknowledged[s.Token] = &okSpan{ended: history.Attempt{Source: s.Source, Node: s.Node, Token: s.Token, At: s.At, End: s.End}}
		}
	}
	refusal := func(of termName) *refusals {
		if refused[of] == nil {
			if !f.room(len(refused)+1, maxFacts) {
				return &refusals{}
			}
			refused[of] = &refusals{}
		}
		return refused[of]
	}

	// inStream compares an effect with the one before it of the same kind and name.
	inStream := func(e history.Effect) {
		name := stream{e.What, e.Name}
		last, known := streams[name]
		both := at{e.Line, last.Line}
		switch {
		case e.What == history.EffectSequence && (e.First == 0 || e.Last < e.First || e.First <= last.Last):
			v.violated(both, "%s %s %d has the range %d to %d after one that ends with %d", e.What, e.Name, e.N, e.First, e.Last, last.Last)
		case e.What == history.EffectSequence && e.N > last.N+1:
			v.doubt(both, "%s %s %d follows %d: effects are missing", e.What, e.Name, e.N, last.N)
		}
		switch {
		case known && e.N <= last.N:
			v.doubt(both, "%s %s %d is listed after %d: the lines are not in the ledger's order", e.What, e.Name, e.N, last.N)
		case known && e.Token < last.Token:
			v.violated(both, "%s %s %d took effect with token %d after %d with token %d", e.What, e.Name, e.N, e.Token, last.N, last.Token)
		}
		if known || f.room(len(streams)+1, maxFacts) {
			streams[name] = e
		}
	}
	effect := func(e history.Effect) {
		if !e.Accepted() {
			v.count("effects refused")
			refusal(termName{e.Holder, e.Token}).listed++
			if e.Refused == "stale" && e.Token >= e.Current {
				v.violated(at{e.Line}, "token %d was refused as stale although the mark was %d", e.Token, e.Current)
			}
			return
		}
		v.count("effects accepted")
		if e.Applied && e.Token < e.Current {
			v.violated(at{e.Line}, "token %d of %s took effect after token %d: fencing was off", e.Token, e.Holder, e.Current)
		}
		if f.whole() && !e.Applied && !ofNumbers(e.What, e.Name) && f.room(len(others)+1, maxFacts) {
			others[write{history.Write{What: e.What, Name: e.Name, First: e.First, Last: e.Last, InstantMS: e.InstantMS}, e.Token}] = &otherEffect{line: e.Line}
		}
		if e.N > 0 {
			inStream(e)
		}
		switch s := effects[e.Token]; {
		case s == nil:
			if f.room(len(effects)+1, maxFacts) {
				effects[e.Token] = &effectSpan{e, e}
			}
		case e.AtMS < s.first.AtMS:
			s.first = e
		case e.AtMS > s.last.AtMS:
			s.last = e
		}
	}

	// compare compares an attempt with the effects.
	compare := func(a history.Attempt) {
		switch a.Outcome {
		case history.OutcomeRefused:
			refusal(termName{a.Node, a.Token}).told++
		case history.OutcomeUnknown, "":
			refusal(termName{a.Node, a.Token}).open++
		}
		for _, w := range a.Writes {
			if !ofNumbers(w.What, w.Name) {
				if e := others[write{w, a.Token}]; e != nil {
					e.tried = true
				}
			} else if x := f.accepted.holding(a.Token, w.First, w.Last); x != nil && x.numbers == (numbers{w.First, w.Last}) {
				x.tried = true
			} else if a.Outcome == history.OutcomeOK {
				v.violated(at{a.Line}, "the write of %d to %d by %s with token %d was acknowledged, and no effect in the history has that range", w.First, w.Last, a.Node, a.Token)
			}
		}
	}
	attempt := func(a history.Attempt) {
		if s, known := seals[a.Token]; known && a.At < s.End {
			v.violated(at{a.Line, s.Line}, "%s writes with token %d before the ledger was sealed with it", a.Node, a.Token)
		}
		if f.whole() {
			compare(a)
		}
		if a.Outcome != history.OutcomeOK || a.End == 0 {
			return
		}
		v.count("attempts acknowledged")
		s := acknowledged[a.Token]
		if s == nil {
			if f.room(len(acknowledged)+1, maxFacts) {
				acknowledged[a.Token] = &okSpan{a, a}
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

	// untried finds effects without an attempt, and refusals that only one side recorded.
	untried := func() {
		for _, token := range sorted(f.accepted.byToken) {
			for _, x := range f.accepted.byToken[token] {
				if !x.tried {
					v.violated(at{x.line}, "%d to %d took effect with token %d, and the history has no attempt to write them", x.first, x.last, token)
				}
			}
		}
		for w, e := range others {
			if !e.tried {
				v.violated(at{e.line}, "%s %s took effect with token %d, and the history has no attempt to write it", w.What, w.Name, w.token)
			}
		}
		for of, n := range refused {
			// A refused seal is not an attempt, so before its seal a term may have more refusals.
			s, sealed := seals[of.token]
			switch {
			case n.told > n.listed:
				v.violated(nil, "%s was refused %d writes with token %d, and the ledger lists %d", of.node, n.told, of.token, n.listed)
			case n.listed > n.told+n.open && sealed && s.Node == of.node:
				v.violated(nil, "the ledger lists %d refused writes of %s with token %d, and the history has %d attempts", n.listed, of.node, of.token, n.told+n.open)
			}
		}
	}
	end := func() {
		if f.whole() {
			untried()
		}
		*v.counter("tokens") = int64(len(effects))
		var last *history.Effect
		for _, token := range sorted(effects) {
			s := effects[token]
			if last != nil && last.AtMS > s.first.AtMS {
				v.violated(at{last.Line, s.first.Line}, "token %d took effect %d ms after token %d had", last.Token, last.AtMS-s.first.AtMS, token)
			}
			if last == nil || s.last.AtMS > last.AtMS {
				last = &s.last
			}
		}
		var prev *history.Attempt
		for _, token := range sorted(acknowledged) {
			s := acknowledged[token]
			if _, known := seals[token]; !known {
				v.doubt(at{s.ended.Line}, "a write had token %d, and the history has no seal with it", token)
			}
			if prev != nil && prev.At > s.ended.End {
				v.violated(at{prev.Line, s.ended.Line}, "%s began a write with token %d %v after a seal or write with token %d was acknowledged, and it was acknowledged too",
					prev.Node, prev.Token, prev.At.Sub(s.ended.End), token)
			}
			if prev == nil || s.started.At > prev.At {
				prev = &s.started
			}
		}
	}
	return watcher{effect: effect, attempt: attempt, end: end}
}
