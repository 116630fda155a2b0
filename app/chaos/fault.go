package chaos

import (
	"errors"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// Fault is one fault that was set and is healed.
type Fault struct {
	// Name is that of the program's verb, such as kill-leader.
	Name string `json:"name"`
	// Target is the id of the node, Token that of the term in which it was hit.
	Target string      `json:"target"`
	Token  fence.Token `json:"token"`
	// Begun is taken on the line before the fault was set, 0 if nothing was; Healed on the
	// line after nothing of it was left: for a node that was killed or resigned, when that
	// was seen.
	Begun  clock.Instant `json:"begun"`
	Healed clock.Instant `json:"healed"`
	// Set is taken when everything was set, Held on the line before anything was undone:
	// in between it surely stood. Only a process that was killed may have been started
	// again before. Both are 0 if it was not set as a whole.
	Set  clock.Instant `json:"set,omitempty"`
	Held clock.Instant `json:"held,omitempty"`
	// Evidence is what shows that it bit, in words.
	Evidence string `json:"evidence"`
	// Shown is what the fault's targets do that shows it, PIDs are the processes that were
	// hit.
	Shown Shown `json:"shown,omitempty"`
	PIDs  []int `json:"pids,omitempty"`
}

// Shown is what the targets of a fault do that shows it.
type Shown string

// How a fault shows.
const (
	Exited   Shown = "exited"   // the processes ended
	Stopped  Shown = "stopped"  // the processes stood still
	Ended    Shown = "ended"    // the term ended
	Felt     Shown = "felt"     // calls or writes of the target failed, or its term ended
	Measured Shown = "measured" // only a measurement shows it
)

var (
	// ErrNoBite: the fault was set and healed, and nothing shows that it was felt.
	ErrNoBite = errors.New("chaos: the fault did not bite")
	// ErrChanged: another node led by the time the fault was set; what was set is healed.
	ErrChanged = errors.New("chaos: the leader changed while the fault was being set")
	// ErrNoLeader: nobody led for as long as was waited; nothing was set.
	ErrNoLeader = errors.New("chaos: nobody leads")
	// ErrFleet: there is no fleet, more than one, or none that may be hurt.
	ErrFleet = errors.New("chaos: no fleet to work on")
	// ErrCannot: this fleet cannot be given that fault; nothing was set.
	ErrCannot = errors.New("chaos: this fault cannot be set here")
	// ErrNotHealed: something of the fault may be left. The error says what.
	ErrNotHealed = errors.New("chaos: NOT HEALED")
)

// From is what a leader is cut off from.
type From string

// Way is which way nothing gets through, seen from the node: up is what it sends, down
// what it is answered.
type Way string

// What can be cut.
const (
	Engine From = "engine"
	Ledger From = "ledger"
	Peers  From = "peers"

	Both Way = "both"
	Up   Way = "up"
	Down Way = "down"
)

// Partition cuts the leader off. The zero value cuts it off the engine, both ways, for
// twice the TTL.
type Partition struct {
	From From
	Way  Way
	For  time.Duration
	// Until, if given, is called once the leader is cut off; the cut lasts until it has
	// returned too. Its error is passed on.
	Until Until
}

// Pause stops the leader's process, for twice the TTL by default.
type Pause struct {
	For time.Duration
	// Between places the pause between a check and a write: the leader stops itself
	// there.
	Between bool
	// Until, if given, is called once the process stands still; the pause lasts until it
	// has returned too. Its error is passed on.
	Until Until
}

// Skew gives the leader's node a wrong clock, for twice the TTL by default: its wall
// clock is off by Offset, and all its clocks run faster by PPM millionths. Healing sets
// both to zero.
type Skew struct {
	Offset time.Duration
	PPM    int64
	For    time.Duration
	Until  Until
}

// Flap cuts the leader off again and again, for half to one and a half TTL each time,
// with as long in between, at random by the seed. It goes on for For (ten TTL by
// default).
type Flap struct {
	From From
	Way  Way
	For  time.Duration
	Seed uint64
	// Follow lets each cut hit whoever leads when it begins; without, all hit the same
	// node, whoever leads.
	Follow bool
	// Each, if given, is told of each cut when it is healed.
	Each func(Fault)
}

// Churn kills the leader every Every (5s by default) for For (a minute by default).
type Churn struct {
	Every, For time.Duration
	// Each, if given, is told of each kill, also of one that failed.
	Each func(Fault, error)
}
