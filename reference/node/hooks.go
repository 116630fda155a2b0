package node

import (
	"net/http"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// Hooks let an experiment observe and disturb a node. In production Config.Hooks is nil.
type Hooks interface {
	// Clock is the clock that leases are measured on.
	Clock() clock.Clock
	// Lease and Raft change the configuration of the elector.
	Lease(lease.Config) lease.Config
	Raft(raft.Config) raft.Config
	// Reached is called at each moment of a term (api.MomentGranted and so on). The node
	// waits until it returns.
	Reached(moment string)
	// Observe is called for each event. The node waits until it returns.
	Observe(Event)
	// Handler wraps the handler of the node.
	Handler(http.Handler) http.Handler
}

// Event is something that a node did or saw. Times are on the host's clock.
type Event struct {
	Kind  string // api.TraceAttempt and so on
	At    clock.Instant
	End   clock.Instant // of a write or a seal
	Token fence.Token
	// What is the outcome of a write (ok, refused, unknown, failed), why a term ended, who
	// leads, why a keep-alive failed, or which call of the engine is made.
	What string
	// Writes are what an attempt sends to the ledger.
	Writes []ledgerapi.Write
}

func (n *Node) trace(e Event) {
	if n.Config.Hooks != nil {
		n.Config.Hooks.Observe(e)
	}
}

func (n *Node) reached(moment string) {
	if n.Config.Hooks != nil {
		n.Config.Hooks.Reached(moment)
	}
}
