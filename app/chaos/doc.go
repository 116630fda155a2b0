// Package chaos puts faults into a fleet that runs, aimed at its leader: it is killed,
// cut off, paused, given a wrong clock, asked to go. Any other process (a member of the
// engine, the ledger, a node) can be named, killed, paused and cut off, several at once,
// and the ledger's disk can be made to fail.
//
// A fault is a call that returns when the fault is over. It is healed at its end, when
// the context ends, and when the caller panics; a process that was paused goes on even
// if the one that paused it is killed. A fault says on one clock (clock.System, which
// all processes of a host share) when it began and when it was healed, and what shows
// that it bit: one that left no trace is an error, ErrNoBite.
//
// Only fleets of a lab are touched, and no privileges are needed: what is cut is cut at
// the proxies that the lab has put before each node's connections.
package chaos
