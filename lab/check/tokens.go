package check

import (
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

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
