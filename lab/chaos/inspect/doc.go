// Package inspect looks at a running fleet: its processes and their states, who leads, the
// metrics of its nodes, and the faults in effect. It finds the processes that package chaos
// injects faults into.
//
// # Limitations
//
// Only fleets of a lab on this machine are opened. A process may change after it was looked
// at: [Fleet.Handle] checks again.
package inspect

import "errors"

var (
	// ErrChanged: another node led by the time the fault was set; what was set is healed.
	ErrChanged = errors.New("chaos: the leader changed while the fault was being set")
	// ErrNoLeader: no node led within the time limit; nothing was set.
	ErrNoLeader = errors.New("chaos: nobody leads")
	// ErrFleet: there is no fleet, there are several, or the fleet is not a lab's.
	ErrFleet = errors.New("chaos: no fleet to work on")
	// ErrCannot: this fleet cannot have that fault; nothing was set.
	ErrCannot = errors.New("chaos: cannot set this fault")
)
