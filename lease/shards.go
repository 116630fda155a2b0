package lease

import (
	"fmt"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/internal/shardhook"
	"github.com/tenurehq/tenure/store"
)

var _ = shardhook.Set(func(node any) shardhook.Node {
	n := node.(*Node)
	return shardhook.Node{
		Candidate: n.cfg.Candidate, Scope: n.cfg.Scope, Store: n.store, Clock: n.cfg.Clock, Log: n.cfg.Log,
		Stand: n.stand, Withdraw: n.withdraw, Sessions: n.roster.Sessions,
		Rank: func(set string, rank func(group, candidate string) (float64, bool)) { n.roster.SetRank(set, rank) },
	}
})

// stand is a campaign that calls back.
func (n *Node) stand(group string, done func(*tenure.Term, error)) {
	var err error
	n.mu.Lock()
	switch {
	case !n.cfg.Scope.Covers(group):
		err = &store.ArgumentError{Field: "group", Value: group, Rule: "must be in the node's scope"}
	case n.closing:
		err = ErrClosed
	case n.waiters[group] != nil:
		err = fmt.Errorf("group %q: %w", group, ErrCampaigning)
	default:
		n.waiters[group] = &waiter{call: done}
		n.queue = append(n.queue, machine.Event{Kind: machine.OnCampaign, Group: group})
	}
	n.mu.Unlock()
	n.poke()
	if err != nil {
		done(nil, err)
	}
}

// withdraw ends a campaign that was begun by stand.
func (n *Node) withdraw(group string) {
	n.mu.Lock()
	w := n.waiters[group]
	if w != nil {
		delete(n.waiters, group)
		n.queue = append(n.queue, machine.Event{Kind: machine.OnWithdraw, Group: group})
	}
	n.mu.Unlock()
	n.poke()
	if w != nil {
		w.tell(outcome{})
	}
}
