package check

import "github.com/tenurehq/tenure/fence"

// tokenOrder is G1: of two grants the later has the larger token, and no token belongs
// to two. It looks at what observers saw at the engine, and at the terms of the nodes.
func tokenOrder(f *facts) Verdict {
	t := newTally("G1", "token-order", "grants and terms", "grants", "terms")
	type owner struct {
		holder string
		at     Place
	}
	owners := map[fence.Token]owner{}
	own := func(token fence.Token, holder string, at Place) {
		first, known := owners[token]
		switch {
		case !known:
			owners[token] = owner{holder, at}
		case holder != "" && first.holder != "" && first.holder != holder:
			t.violated([]Place{at, first.at}, "token %d belongs to %s and to %s", token, first.holder, holder)
		}
	}
	highest := map[string]grantAt{}
	for _, g := range f.grants {
		if g.State == Blind {
			continue
		}
		t.count("grants and terms")
		t.count("grants")
		if g.State == Led {
			own(g.Token, g.Holder, g.at)
		}
		// Between observers nothing follows from who saw something first.
		high := highest[g.Observer]
		if g.Token < high.Token {
			t.violated([]Place{g.at, high.at}, "token %d is %s after token %d was seen", g.Token, g.State, high.Token)
		}
		// A vacancy names the token that was: to lead with it again is no new grant.
		if g.State == Led && g.Token == high.Token && high.State == Vacant {
			t.violated([]Place{g.at, high.at}, "token %d leads again after it was vacant", g.Token)
		}
		if g.Token >= high.Token {
			highest[g.Observer] = g
		}
	}
	var last *term
	for _, b := range f.terms {
		t.count("grants and terms")
		t.count("terms")
		own(b.token, b.node, b.beganAt)
		if last != nil && b.token < last.token {
			t.violated([]Place{b.beganAt, last.beganAt}, "a term with token %d began at %s after one with token %d at %s", b.token, b.node, last.token, last.node)
		}
		if last == nil || b.token > last.token {
			last = b
		}
	}
	return t.verdict()
}
