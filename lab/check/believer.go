package check

import (
	"cmp"
	"slices"
	"sort"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// believers is G3: no two nodes believe at once, and nobody writes as the leader while
// another with a higher token believes. Excepted is what the guarantee excepts: a node
// while it is paused, its clock beyond the bound, its session closed by force.
type believers struct {
	*tally
	f *facts
	// above[i] are the first two nodes to believe with tokens[i] or a higher one.
	tokens []fence.Token
	above  [][2]*term
	all    map[string][]span
}

// belief is a part of a term that counts.
type belief struct {
	span
	*term
}

func newBelievers(f *facts) *believers {
	c := &believers{
		tally: newTally("G3", "one-believer", "terms", "attempts", "excepted"),
		f:     f, all: map[string][]span{},
	}
	var raw, counted []belief
	for _, t := range f.terms {
		c.count("terms")
		whole := span{t.began, t.ended}
		raw = append(raw, belief{whole, t})
		if _, known := c.all[t.node]; !known {
			c.all[t.node] = f.excused(t.node)
		}
		for _, part := range whole.less(c.all[t.node]) {
			counted = append(counted, belief{part, t})
		}
	}
	meet := overlaps(counted)
	for _, o := range meet {
		c.violated([]Place{o[1].beganAt, o[0].beganAt}, "%s (token %d) believes beside %s (token %d) for %v",
			o[1].node, o[1].token, o[0].node, o[0].token, min(o[0].to, o[1].to).Sub(o[1].from))
	}
	c.counts["excepted"] = int64(max(0, len(overlaps(raw))-len(meet)))
	c.index()
	return c
}

// overlaps are pairs of different nodes at once: for each part one that began before it
// and has not ended, if there is one.
func overlaps(parts []belief) [][2]belief {
	slices.SortStableFunc(parts, func(a, b belief) int { return cmp.Compare(a.from, b.from) })
	var pairs [][2]belief
	// The part that lasts longest so far, and the one that does of all other nodes.
	var longest, other belief
	for _, p := range parts {
		if p.from >= p.to {
			continue
		}
		beside := longest
		if longest.term != nil && longest.node == p.node {
			beside = other
		}
		if beside.term != nil && beside.to > p.from {
			pairs = append(pairs, [2]belief{beside, p})
		}
		switch {
		case longest.term == nil:
			longest = p
		case p.to > longest.to:
			if longest.node != p.node {
				other = longest
			}
			longest = p
		case p.node != longest.node && (other.term == nil || p.to > other.to):
			other = p
		}
	}
	return pairs
}

func (c *believers) index() {
	terms := slices.Clone(c.f.terms)
	slices.SortStableFunc(terms, func(a, b *term) int { return cmp.Compare(b.token, a.token) })
	var first [2]*term
	for _, t := range terms {
		switch {
		case first[0] == nil:
			first[0] = t
		case t.node == first[0].node:
			if t.began < first[0].began {
				first[0] = t
			}
		case t.began < first[0].began:
			first[0], first[1] = t, first[0]
		case first[1] == nil || t.began < first[1].began:
			first[1] = t
		}
		c.tokens = append(c.tokens, t.token)
		c.above = append(c.above, first)
	}
}

func (c *believers) attempt(a Attempt, at Place) {
	c.count("attempts")
	// Tokens descend: the last above the attempt's.
	i := sort.Search(len(c.tokens), func(i int) bool { return c.tokens[i] <= a.Token }) - 1
	if i < 0 {
		return
	}
	for _, t := range c.above[i] {
		if t == nil || t.node == a.Node || a.At < t.began {
			continue
		}
		if c.excepted(a.Node, a.At) {
			c.count("excepted")
		} else {
			c.violated([]Place{at, t.beganAt}, "%s tries to write with token %d, %v after %s began to believe with token %d",
				a.Node, a.Token, a.At.Sub(t.began), t.node, t.token)
		}
		return
	}
}

func (c *believers) excepted(node string, at clock.Instant) bool {
	all, known := c.all[node]
	if !known {
		all = c.f.excused(node)
		c.all[node] = all
	}
	for _, s := range all {
		if s.from <= at && at <= s.to {
			return true
		}
	}
	return false
}
