package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// oneBeliever is G3: no two nodes believe at the same time, and nobody writes as the leader
// while another with a higher token believes. The guarantee excepts a node that is paused,
// whose clock is beyond the bound, or whose session was closed by force.
func oneBeliever(v *verdict.Verdict, f *facts.Facts) watcher {
	spans := map[string][]facts.Span{}
	excused := func(node string) []facts.Span {
		all, known := spans[node]
		if !known {
			all = f.Excused(node)
			spans[node] = all
		}
		return all
	}
	var raw, counted []facts.Part
	for _, t := range f.Terms {
		v.Add("terms")
		whole := facts.Span{From: t.Began, To: t.Ended}
		raw = append(raw, facts.Part{Span: whole, Term: t})
		for _, part := range whole.Without(excused(t.Node)) {
			counted = append(counted, facts.Part{Span: part, Term: t})
		}
	}
	meet := facts.Overlaps(counted)
	for _, o := range meet {
		v.Violated(at{o[1].BeganAt, o[0].BeganAt}, "%s (token %d) and %s (token %d) believe at the same time for %v",
			o[1].Node, o[1].Token, o[0].Node, o[0].Token, min(o[0].To, o[1].To).Sub(o[1].From))
	}
	*v.Counter("excepted") = int64(max(0, len(facts.Overlaps(raw))-len(meet)))

	// first[i] are the first two nodes to believe with the token of terms[i] or a higher one.
	terms := slices.Clone(f.Terms)
	slices.SortStableFunc(terms, func(a, b *facts.Term) int { return cmp.Compare(b.Token, a.Token) })
	first := make([][2]*facts.Term, len(terms))
	var two [2]*facts.Term
	for i, t := range terms {
		switch {
		case two[0] == nil || t.Node == two[0].Node && t.Began < two[0].Began:
			two[0] = t
		case t.Node == two[0].Node:
		case t.Began < two[0].Began:
			two = [2]*facts.Term{t, two[0]}
		case two[1] == nil || t.Began < two[1].Began:
			two[1] = t
		}
		first[i] = two
	}
	return watcher{attempt: func(a history.Attempt) {
		v.Add("attempts")
		above, _ := slices.BinarySearchFunc(terms, a.Token, func(t *facts.Term, token fence.Token) int { return cmp.Compare(token, t.Token) })
		if above == 0 {
			return
		}
		for _, t := range first[above-1] {
			if t == nil || t.Node == a.Node || a.At < t.Began {
				continue
			}
			if slices.ContainsFunc(excused(a.Node), func(s facts.Span) bool { return s.From <= a.At && a.At <= s.To }) {
				v.Add("excepted")
			} else {
				v.Violated(at{a.Line, t.BeganAt}, "%s tries to write with token %d, %v after %s began to believe with token %d",
					a.Node, a.Token, a.At.Sub(t.Began), t.Node, t.Token)
			}
			return
		}
	}}
}

// settle is how long a signal may take to arrive, and an instant to be recorded.
const settle = 100 * time.Millisecond

// noZombie is G4: a term ends once and does not return, and nobody writes with one that has
// ended. Writes after the leader ended the term itself belong to the handover (G5). However
// a term ends, a node that was told of a refusal begins no further write with that token.
func noZombie(v *verdict.Verdict, f *facts.Facts) watcher {
	last := map[string]*facts.Term{}
	for _, t := range f.Terms {
		v.Add("terms")
		if before := last[t.Node]; before != nil {
			if t.Token <= before.Token {
				v.Violated(at{t.BeganAt, before.BeganAt}, "%s began a term with token %d after one with token %d", t.Node, t.Token, before.Token)
			}
			if before.Ended > t.Began {
				v.Violated(at{t.BeganAt, before.BeganAt}, "%s began a term with token %d before its term with token %d ended", t.Node, t.Token, before.Token)
			}
		}
		if t.Ended < t.Began {
			v.Doubt(at{t.EndedAt, t.BeganAt}, "the term of %s with token %d ended before it began", t.Node, t.Token)
		}
		last[t.Node] = t
	}
	for _, b := range f.Reopened {
		v.Violated(at{b.Line, f.ByName[facts.TermName{Node: b.Node, Token: b.Token}].BeganAt}, "the term of %s with token %d began twice", b.Node, b.Token)
	}
	for _, b := range f.Strays {
		v.Doubt(at{b.Line}, "the term of %s with token %d ended, and the history does not have its beginning", b.Node, b.Token)
	}
	strange := map[facts.TermName]bool{}
	told := map[facts.TermName]history.Attempt{} // the refusal that a node was told first
	return watcher{attempt: func(a history.Attempt) {
		v.Add("attempts")
		name := facts.TermName{Node: a.Node, Token: a.Token}
		t := f.ByName[name]
		if t == nil {
			if !strange[name] && f.Room(len(strange)+1, facts.Max) {
				strange[name] = true
				v.Doubt(at{a.Line}, "%s writes with token %d, and the history does not have the beginning of that term", a.Node, a.Token)
			}
			return
		}
		// Attempts come in the order of their beginnings, so a refusal that the node knew of is
		// known here.
		first, known := told[name]
		if known && a.At > first.End {
			v.Violated(at{a.Line, first.Line}, "%s writes with token %d, %v after it was told that a write with it was refused", a.Node, a.Token, a.At.Sub(first.End))
		}
		if a.Outcome == history.OutcomeRefused {
			v.Add("attempts refused")
			if a.End > 0 && (!known || a.End < first.End) && (known || f.Room(len(told)+1, facts.Max)) {
				told[name] = a
			}
		}
		late := f.Run.Late()
		if t.Cause == facts.Killed {
			late = max(late, settle)
		}
		switch {
		case a.At < t.Began:
			v.Violated(at{a.Line, t.BeganAt}, "%s writes with token %d, %v before its term began", a.Node, a.Token, t.Began.Sub(a.At))
		case facts.Orderly(t.Cause) || a.At <= facts.Later(t.Ended, late):
		case f.Paused(a.Node, a.At):
			v.Add("attempts after a pause")
		default:
			v.Violated(at{a.Line, t.EndedAt}, "%s writes with token %d, %v after its term ended (%s)", a.Node, a.Token, a.At.Sub(t.Ended), t.Cause)
		}
	}}
}

// handover is G5: after an orderly handover the old leader's last attempt to write comes
// before the new leader's first, and before its term. G5 does not apply to a leader that
// was stopped during the handover, since its session may have expired, or to one that gave
// up because a write was refused, since it had been deposed.
func handover(v *verdict.Verdict, f *facts.Facts) watcher {
	return watcher{attempt: func(history.Attempt) { v.Add("attempts") }, end: func() {
		terms := map[fence.Token]*facts.Term{}
		for _, t := range f.Terms {
			if o := terms[t.Token]; o == nil || !facts.Orderly(o.Cause) || facts.Orderly(t.Cause) {
				terms[t.Token] = t
			}
		}
		var least, most time.Duration
		tokens := facts.Sorted(f.Attempts)
		for i, token := range tokens[:max(0, len(tokens)-1)] {
			t, b := terms[token], terms[tokens[i+1]]
			if t == nil || !facts.Orderly(t.Cause) {
				continue
			}
			told, old, next := f.Attempts[token].Told, f.Attempts[token].Last, f.Attempts[tokens[i+1]].First
			gap := next.At.Sub(old.At)
			began := clock.Never
			if b != nil {
				began = b.Began
			}
			switch {
			case told > 0 && told <= t.Ended:
				v.Add("deposed")
				continue
			case (gap < 0 || began < old.At) && f.Paused(old.Node, old.At):
				v.Add("excepted")
				continue
			case gap < 0:
				v.Violated(at{old.Line, next.Line}, "%s writes with token %d, %v after %s began to write with token %d", old.Node, token, -gap, next.Node, tokens[i+1])
			case began < old.At:
				v.Violated(at{old.Line, b.BeganAt}, "%s writes with token %d, %v after the term of %s with token %d began", old.Node, token, old.At.Sub(began), b.Node, b.Token)
			}
			if v.Count("handovers") == 0 || gap < least {
				least = gap
			}
			most = max(most, gap)
			v.Add("handovers")
		}
		if v.Count("handovers") > 0 {
			v.Note = "gaps from " + tidy(least) + " to " + tidy(most)
		}
	}}
}

// tokenOrder is G1: a later grant has a larger token, and no token belongs to two holders.
// It compares what observers saw at the engine, and the terms of the nodes.
func tokenOrder(v *verdict.Verdict, f *facts.Facts) watcher {
	type owner struct {
		holder string
		at     history.Place
	}
	owners := map[fence.Token]owner{}
	own := func(token fence.Token, holder string, line history.Place) {
		first, known := owners[token]
		switch {
		case !known:
			owners[token] = owner{holder, line}
		case holder != "" && first.holder != "" && first.holder != holder:
			v.Violated(at{line, first.at}, "token %d belongs to %s and to %s", token, first.holder, holder)
		}
	}
	highest := map[string]history.Grant{} // by observer: two observers may see a grant in different order
	for _, g := range f.Grants {
		if g.State == history.Blind {
			continue
		}
		v.Add("grants and terms")
		v.Add("grants")
		if g.State == history.Led {
			own(g.Token, g.Holder, g.Line)
		}
		high := highest[g.Observer]
		if g.Token < high.Token {
			v.Violated(at{g.Line, high.Line}, "token %d is %s after token %d was seen", g.Token, g.State, high.Token)
		}
		// A vacancy has the token of the term before it.
		if g.State == history.Led && g.Token == high.Token && high.State == history.Vacant {
			v.Violated(at{g.Line, high.Line}, "token %d leads again after it was vacant", g.Token)
		}
		if g.Token >= high.Token {
			highest[g.Observer] = g
		}
	}
	var last *facts.Term
	for _, b := range f.Terms {
		v.Add("grants and terms")
		v.Add("terms")
		own(b.Token, b.Node, b.BeganAt)
		if last != nil && b.Token < last.Token {
			v.Violated(at{b.BeganAt, last.BeganAt}, "a term with token %d began at %s after one with token %d at %s", b.Token, b.Node, last.Token, last.Node)
		}
		if last == nil || b.Token > last.Token {
			last = b
		}
	}
	return watcher{}
}
