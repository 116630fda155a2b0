package lease

import (
	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/shardhook"
	"github.com/tenurehq/tenure/store"
)

var _ = shardhook.Set(func(node any) shardhook.Node {
	n := node.(*Node)
	return shardhook.Node{
		Candidate: n.cfg.Candidate, Scope: n.cfg.Scope, Store: n.store, Clock: n.cfg.Clock, Log: n.cfg.Log,
		Stand: n.standBack, Withdraw: n.withdrawBack, Sessions: n.roster.Sessions,
		Rank: func(set string, rank func(group, candidate string) (float64, bool)) { n.roster.SetRank(set, rank) },
	}
})

// standBack is a campaign that calls back.
func (n *Node) standBack(group string, done func(*tenure.Term, error)) {
	var err error = &store.ArgumentError{Field: "group", Value: group, Rule: "must be in the node's scope"}
	if n.cfg.Scope.Covers(group) {
		err = n.stand(group, false, &waiter{tell: func(o outcome) { done(o.term, o.err) }})
	}
	if err != nil {
		done(nil, err)
	}
}

// withdrawBack ends a campaign that was begun by standBack.
func (n *Node) withdrawBack(group string) {
	if w := n.withdraw(group, nil); w != nil {
		w.tell(outcome{})
	}
}
