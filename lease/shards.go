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
		Stand: n.standAsync, Withdraw: n.withdrawAsync, Sessions: n.roster.Sessions,
		Rank: func(set string, rank func(group, candidate string) (float64, bool)) { n.roster.SetRank(set, rank) },
	}
})

// standAsync starts a campaign that calls done with its outcome.
func (n *Node) standAsync(group string, done func(*tenure.Term, error)) {
	var err error = &store.ArgumentError{Field: "group", Value: group, Rule: "must be in the node's scope"}
	if n.cfg.Scope.Covers(group) {
		err = n.stand(group, false, &waiter{tell: func(o outcome) { done(o.term, o.err) }})
	}
	if err != nil {
		done(nil, err)
	}
}

// withdrawAsync ends a campaign that standAsync has started.
func (n *Node) withdrawAsync(group string) {
	if w := n.withdraw(group, nil); w != nil {
		w.tell(outcome{})
	}
}
