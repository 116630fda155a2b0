package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
)

// belief is a part of a term that counts.
type belief struct {
	span
	*term
}

// oneBeliever is G3: no two nodes believe at the same time, and nobody writes as the leader
// while another with a higher token believes. The guarantee excepts a node that is paused,
// whose clock is beyond the bound, or whose session was closed by force.
func oneBeliever(v *Verdict, f *facts) watcher {
	spans := map[string][]span{}
	excused := func(node string) []span {
		all, known := spans[node]
		if !known {
			all = f.excused(node)
			spans[node] = all
		}
		return all
	}
	var raw, counted []belief
	for _, t := range f.terms {
		v.count("terms")
		whole := span{t.began, t.ended}
		raw = append(raw, belief{whole, t})
		for _, part := range whole.without(excused(t.node)) {
			counted = append(counted, belief{part, t})
		}
	}
	meet := overlaps(counted)
	for _, o := range meet {
		v.violated(at{o[1].beganAt, o[0].beganAt}, "%s (token %d) and %s (token %d) believe at the same time for %v",
			o[1].node, o[1].token, o[0].node, o[0].token, min(o[0].to, o[1].to).Sub(o[1].from))
	}
	*v.counter("excepted") = int64(max(0, len(overlaps(raw))-len(meet)))

	// first[i] are the first two nodes to believe with the token of terms[i] or a higher one.
	terms := slices.Clone(f.terms)
	slices.SortStableFunc(terms, func(a, b *term) int { return cmp.Compare(b.token, a.token) })
	first := make([][2]*term, len(terms))
	var two [2]*term
	for i, t := range terms {
		switch {
		case two[0] == nil || t.node == two[0].node && t.began < two[0].began:
			two[0] = t
		case t.node == two[0].node:
		case t.began < two[0].began:
			two = [2]*term{t, two[0]}
		case two[1] == nil || t.began < two[1].began:
			two[1] = t
		}
		first[i] = two
	}
	return watcher{attempt: func(a history.Attempt) {
		v.count("attempts")
		above, _ := slices.BinarySearchFunc(terms, a.Token, func(t *term, token fence.Token) int { return cmp.Compare(token, t.token) })
		if above == 0 {
			return
		}
		for _, t := range first[above-1] {
			if t == nil || t.node == a.Node || a.At < t.began {
				continue
			}
			if slices.ContainsFunc(excused(a.Node), func(s span) bool { return s.from <= a.At && a.At <= s.to }) {
				v.count("excepted")
			} else {
				v.violated(at{a.Line, t.beganAt}, "%s tries to write with token %d, %v after %s began to believe with token %d",
					a.Node, a.Token, a.At.Sub(t.began), t.node, t.token)
			}
			return
		}
	}}
}

// overlaps returns pairs of different nodes that believe at the same time: for each part
// one that began before it and has not ended, if there is one.
func overlaps(parts []belief) (pairs [][2]belief) {
	slices.SortStableFunc(parts, func(a, b belief) int { return cmp.Compare(a.from, b.from) })
	// The part that lasts longest so far, and the longest of all other nodes.
	longest, other := belief{term: &term{}}, belief{term: &term{}}
	for _, p := range parts {
		if p.from >= p.to {
			continue
		}
		beside := longest
		if longest.node == p.node {
			beside = other
		}
		if beside.to > p.from {
			pairs = append(pairs, [2]belief{beside, p})
		}
		switch {
		case p.to > longest.to:
			if longest.node != p.node {
				other = longest
			}
			longest = p
		case p.node != longest.node && p.to > other.to:
			other = p
		}
	}
	return pairs
}

// settle is how long a signal may take to arrive, and an instant to be recorded.
const settle = 100 * time.Millisecond

// noZombie is G4: a term ends once and does not return, and nobody writes with one that has
// ended. Writes after the leader ended the term itself belong to the handover (G5). However
// a term ends, a node that was told of a refusal begins no further write with that token.
func noZombie(v *Verdict, f *facts) watcher {
	last := map[string]*term{}
	for _, t := range f.terms {
		v.count("terms")
		if before := last[t.node]; before != nil {
			if t.token <= before.token {
				v.violated(at{t.beganAt, before.beganAt}, "%s began a term with token %d after one with token %d", t.node, t.token, before.token)
			}
			if before.ended > t.began {
				v.violated(at{t.beganAt, before.beganAt}, "%s began a term with token %d before its term with token %d ended", t.node, t.token, before.token)
			}
		}
		if t.ended < t.began {
			v.doubt(at{t.endedAt, t.beganAt}, "the term of %s with token %d ended before it began", t.node, t.token)
		}
		last[t.node] = t
	}
	for _, b := range f.reopened {
		v.violated(at{b.Line, f.byName[termName{b.Node, b.Token}].beganAt}, "the term of %s with token %d began twice", b.Node, b.Token)
	}
	for _, b := range f.strays {
		v.doubt(at{b.Line}, "the term of %s with token %d ended, and the history does not have its beginning", b.Node, b.Token)
	}
	strange := map[termName]bool{}
	told := map[termName]history.Attempt{} // the refusal that a node was told first
	return watcher{attempt: func(a history.Attempt) {
		v.count("attempts")
		name := termName{a.Node, a.Token}
		t := f.byName[name]
		if t == nil {
			if !strange[name] && f.room(len(strange)+1, maxFacts) {
				strange[name] = true
				v.doubt(at{a.Line}, "%s writes with token %d, and the history does not have the beginning of that term", a.Node, a.Token)
			}
			return
		}
		// Attempts come in the order of their beginnings, so a refusal that the node knew of is
		// known here.
		first, known := told[name]
		if known && a.At > first.End {
			v.violated(at{a.Line, first.Line}, "%s writes with token %d, %v after it was told that a write with it was refused", a.Node, a.Token, a.At.Sub(first.End))
		}
		if a.Outcome == history.OutcomeRefused {
			v.count("attempts refused")
			if a.End > 0 && (!known || a.End < first.End) && (known || f.room(len(told)+1, maxFacts)) {
				told[name] = a
			}
		}
		late := f.run.Late()
		if t.cause == killed {
			late = max(late, settle)
		}
		switch {
		case a.At < t.began:
			v.violated(at{a.Line, t.beganAt}, "%s writes with token %d, %v before its term began", a.Node, a.Token, t.began.Sub(a.At))
		case orderly(t.cause) || a.At <= later(t.ended, late):
		case f.paused(a.Node, a.At):
			v.count("attempts after a pause")
		default:
			v.violated(at{a.Line, t.endedAt}, "%s writes with token %d, %v after its term ended (%s)", a.Node, a.Token, a.At.Sub(t.ended), t.cause)
		}
	}}
}

// handover is G5: after an orderly handover the old leader's last attempt to write comes
// before the new leader's first, and before its term. G5 does not apply to a leader that
// was stopped during the handover, since its session may have expired, or to one that gave
// up because a write was refused, since it had been deposed.
func handover(v *Verdict, f *facts) watcher {
	return watcher{attempt: func(history.Attempt) { v.count("attempts") }, end: func() {
		terms := map[fence.Token]*term{}
		for _, t := range f.terms {
			if o := terms[t.token]; o == nil || !orderly(o.cause) || orderly(t.cause) {
				terms[t.token] = t
			}
		}
		var least, most time.Duration
		tokens := sorted(f.attempts)
		for i, token := range tokens[:max(0, len(tokens)-1)] {
			t, b := terms[token], terms[tokens[i+1]]
			if t == nil || !orderly(t.cause) {
				continue
			}
			told, old, next := f.attempts[token].told, f.attempts[token].last, f.attempts[tokens[i+1]].first
			gap := next.At.Sub(old.At)
			began := clock.Never
			if b != nil {
				began = b.began
			}
			switch {
			case told > 0 && told <= t.ended:
				v.count("deposed")
				continue
			case (gap < 0 || began < old.At) && f.paused(old.Node, old.At):
				v.count("excepted")
				continue
			case gap < 0:
				v.violated(at{old.Line, next.Line}, "%s writes with token %d, %v after %s began to write with token %d", old.Node, token, -gap, next.Node, tokens[i+1])
			case began < old.At:
				v.violated(at{old.Line, b.beganAt}, "%s writes with token %d, %v after the term of %s with token %d began", old.Node, token, old.At.Sub(began), b.node, b.token)
			}
			if v.Count("handovers") == 0 || gap < least {
				least = gap
			}
			most = max(most, gap)
			v.count("handovers")
		}
		if v.Count("handovers") > 0 {
			v.Note = "gaps from " + tidy(least) + " to " + tidy(most)
		}
	}}
}
