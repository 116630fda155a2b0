package check

import (
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
)

// tokenOrder is G1: a later grant has a larger token, and no token belongs to two holders.
// It compares what observers saw at the engine, and the terms of the nodes.
func tokenOrder(v *Verdict, f *facts) watcher {
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
			v.violated(at{line, first.at}, "token %d belongs to %s and to %s", token, first.holder, holder)
		}
	}
	highest := map[string]history.Grant{} // by observer: two observers may see a grant in different order
	for _, g := range f.grants {
		if g.State == history.Blind {
			continue
		}
		v.count("grants and terms")
		v.count("grants")
		if g.State == history.Led {
			own(g.Token, g.Holder, g.Line)
		}
		high := highest[g.Observer]
		if g.Token < high.Token {
			v.violated(at{g.Line, high.Line}, "token %d is %s after token %d was seen", g.Token, g.State, high.Token)
		}
		// A vacancy has the token of the term before it.
		if g.State == history.Led && g.Token == high.Token && high.State == history.Vacant {
			v.violated(at{g.Line, high.Line}, "token %d leads again after it was vacant", g.Token)
		}
		if g.Token >= high.Token {
			highest[g.Observer] = g
		}
	}
	var last *term
	for _, b := range f.terms {
		v.count("grants and terms")
		v.count("terms")
		own(b.token, b.node, b.beganAt)
		if last != nil && b.token < last.token {
			v.violated(at{b.beganAt, last.beganAt}, "a term with token %d began at %s after one with token %d at %s", b.token, b.node, last.token, last.node)
		}
		if last == nil || b.token > last.token {
			last = b
		}
	}
	return watcher{}
}
