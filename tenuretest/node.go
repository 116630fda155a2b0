package tenuretest

import (
	"context"
	"fmt"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

// Node is one process among the candidates, with everything that can go wrong
// with a process: a lease.Node with a clock and a road to the store of its own.
// Its methods are safe for concurrent use, and those that set a fault or mend it
// do nothing when it is so already.
type Node struct {
	id   string
	node *lease.Node
	gate *gate
	road *road
}

// NewNode starts a node on any store and on the time of cfg.Clock. A test that
// runs on virtual time uses Kit.Node; this one is for real time. Close or Crash
// it when done.
func NewNode(st store.Store, cfg lease.Config) (*Node, error) {
	n := &Node{id: cfg.Candidate.ID, gate: newGate()}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	cfg.Clock = nodeClock{cfg.Clock, n.gate}
	if st == nil {
		return nil, &store.ArgumentError{Field: "store", Rule: "must not be nil"}
	}
	n.road = &road{store: st, gate: n.gate, patience: cfg.Timing.Resolve().CallTimeout}
	var err error
	n.node, err = lease.New(n.road, cfg)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// ID returns the candidate's name.
func (n *Node) ID() string { return n.id }

// Elector returns the node's elector for a group. A group that the node cannot
// stand for is a mistake in the test: it panics.
func (n *Node) Elector(group string) tenure.Elector {
	e, err := n.node.Elector(group)
	if err != nil {
		panic(fmt.Sprintf("tenuretest: node %q: %v", n.id, err))
	}
	return e
}

// Expire ends the node's session at the store, as if its TTL had run out. The
// node is not told: it finds out by its watch or its next beat, or not at all
// while it is paused or cut off. A node that has no session, because nothing of
// it campaigns yet, is a mistake in the test: it panics.
func (n *Node) Expire() {
	had, err := n.road.expire(context.Background())
	switch {
	case err != nil:
		panic(fmt.Sprintf("tenuretest: node %q: the store does not end its session: %v", n.id, err))
	case !had:
		panic(fmt.Sprintf("tenuretest: node %q has no session to expire: let it campaign, and settle, before", n.id))
	}
}

// Partition cuts the node off from the store, both ways: calls get no answer
// before their deadline, watches fall silent and break after a while. The node
// itself runs on.
func (n *Node) Partition() { n.gate.set(func(f *fault) { f.cut = true }) }

// Heal ends a partition.
func (n *Node) Heal() { n.gate.set(func(f *fault) { f.cut = false }) }

// Pause freezes the node as a stop signal or a long garbage collection would:
// its timers do not fire and what the store says is not heard, while time goes
// on. The test plays the part of the work that runs on or wakes up first:
// Term.Check still reads the clock, and a term whose context has not ended yet
// may be long over. That is a zombie.
//
// What the test asks of the node in the meantime (to campaign, to resign) is
// taken note of, but reaches the store after Resume only. Such a question wakes
// the node for a moment, in which it ends what has run out; so does its Health
// check, if it has one.
func (n *Node) Pause() { n.gate.set(func(f *fault) { f.paused = true }) }

// Resume ends a pause: everything that was due in it happens now.
func (n *Node) Resume() { n.gate.set(func(f *fault) { f.paused = false }) }

// Crash ends the node without a word to the store: what it led stays its own
// until its session expires. Goroutines cannot be killed, so its terms end and
// its campaigns fail with lease.ErrClosed for work to return. A process that is
// started again is a new Node.
func (n *Node) Crash() {
	n.gate.set(func(f *fault) { f.dead = true })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	// The error says that it was not closed in order.
	_ = n.node.Close(ctx)
}

// Close ends the node in order, as lease.Node.Close does. A paused node has to
// be resumed for it.
func (n *Node) Close(ctx context.Context) error { return n.node.Close(ctx) }
