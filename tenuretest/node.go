package tenuretest

import (
	"context"
	"fmt"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

// Node is one candidate process with all faults that a process can have: a lease.Node with
// its own clock and its own connection to the store. Its methods are safe for concurrent use.
// Setting or healing a fault twice does nothing.
type Node struct {
	id   string
	node *lease.Node
	gate *gate
	link *link
}

// NewNode starts a node on any store, with the time of cfg.Clock. It is for tests on real
// time; a test on virtual time uses Kit.Node. Close or Crash it at the end.
func NewNode(st store.Store, cfg lease.Config) (*Node, error) {
	n := &Node{id: cfg.Candidate.ID, gate: newGate()}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	cfg.Clock = nodeClock{cfg.Clock, n.gate}
	if st == nil {
		return nil, &store.ArgumentError{Field: "store", Rule: "must not be nil"}
	}
	n.link = &link{store: st, gate: n.gate, patience: cfg.Timing.Resolve().CallTimeout}
	var err error
	n.node, err = lease.New(n.link, cfg)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// ID returns the candidate's id.
func (n *Node) ID() string { return n.id }

// Elector returns the node's elector for a group. It panics if the node cannot be a candidate
// of the group, because that is a mistake in the test.
func (n *Node) Elector(group string) tenure.Elector {
	e, err := n.node.Elector(group)
	if err != nil {
		panic(fmt.Sprintf("tenuretest: node %q: %v", n.id, err))
	}
	return e
}

// Expire ends the node's session at the store, as if its TTL had passed. The node finds out
// from its watch or its next keep-alive, or not at all while it is paused or cut off. Expire
// panics if the node has no session because it has not campaigned yet: that is a mistake in
// the test.
func (n *Node) Expire() {
	had, err := n.link.expire(context.Background())
	switch {
	case err != nil:
		panic(fmt.Sprintf("tenuretest: node %q: the store does not end its session: %v", n.id, err))
	case !had:
		panic(fmt.Sprintf("tenuretest: node %q has no session to expire: let it campaign, and settle, before", n.id))
	}
}

// Partition cuts the node off from the store in both directions: calls get no answer before
// their deadline, and watches receive nothing and break after a while. The node itself still
// runs.
func (n *Node) Partition() { n.gate.set(func(f *fault) { f.cut = true }) }

// Heal ends a partition.
func (n *Node) Heal() { n.gate.set(func(f *fault) { f.cut = false }) }

// Pause freezes the node as a stop signal or a long garbage collection would: its timers do
// not fire and it receives nothing from the store, while time goes on. The goroutines of the
// test act as work that continues or resumes first: Term.Check still reads the clock, and a
// term whose context has not ended may be over for a long time. Such a leader is a zombie.
//
// A call to the node during the pause (to campaign, to resign) is recorded, but reaches the
// store only after Resume. Such a call wakes the node for a moment, in which it ends expired
// terms; so does its Health check, if it has one.
func (n *Node) Pause() { n.gate.set(func(f *fault) { f.paused = true }) }

// Resume ends a pause: everything that became due during it happens now.
func (n *Node) Resume() { n.gate.set(func(f *fault) { f.paused = false }) }

// Crash ends the node without any call to the store: it holds its groups until its session
// expires. Goroutines cannot be killed, so its terms end and its campaigns fail with
// lease.ErrClosed, so that work can return. A restarted process is a new Node.
func (n *Node) Crash() {
	n.gate.set(func(f *fault) { f.dead = true })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	// The error says that it was not closed in order.
	_ = n.node.Close(ctx)
}

// Close stops the node in order, as lease.Node.Close does. A paused node must be resumed
// first.
func (n *Node) Close(ctx context.Context) error { return n.node.Close(ctx) }
