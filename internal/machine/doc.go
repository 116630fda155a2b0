// Package machine decides everything that a candidate does: when to open a session, to
// send a keep-alive, to try for a vacant group and how long to wait for candidates ahead;
// on which record a term begins, when it ends, when a group is released and to whom; and
// how to continue after a call with an unknown outcome.
//
// [Machine] is pure: events and the time go in, actions come out. Its type comment lists its
// invariants, M1 to M5. Each file in testdata is one recorded conversation with it.
//
// Three shells drive it: lease.Node in a process, internal/election for the calls of the
// service, and package sim through bad networks and clocks.
package machine
