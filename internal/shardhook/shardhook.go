// Package shardhook lets package shard use a node of package lease in ways that its users must not:
// to stand for thousands of groups without a goroutine for each, and to order the candidates.
package shardhook

import (
	"log/slog"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
)

// Node is what a shard needs of a lease.Node.
type Node struct {
	Candidate tenure.Candidate
	Scope     store.Scope
	Store     store.Store
	Clock     clock.Clock
	Log       *slog.Logger
	// Stand campaigns for a group and calls back once: with a term, or why there is none. The
	// callback must not wait.
	Stand func(group string, done func(*tenure.Term, error))
	// Withdraw ends a campaign. Its callback is called with a nil term and a nil error, unless it
	// was called already.
	Withdraw func(group string)
	// Rank orders the candidates of the groups for which ok is true: the largest number first.
	// A nil rank removes the one of that set.
	Rank func(set string, rank func(group, candidate string) (number float64, ok bool))
	// Sessions lists the living sessions that the node's watch has shown.
	Sessions func() []store.Session
}

// Of returns the hooks of a *lease.Node. Package lease sets it.
var Of func(node any) Node

// Set sets Of.
func Set(of func(node any) Node) struct{} {
	Of = of
	return struct{}{}
}
