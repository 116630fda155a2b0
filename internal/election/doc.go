// Package election decides what the election service does for its callers: one campaign
// for each call, and the renewal and the end of a term.
//
// A [Campaign] steps a machine.Machine, which decides everything about sessions and acquires.
// It adds what only a call has: a deadline, an answer, and a client that may disconnect. It is
// pure, as the machine is: events and the time go in, actions come out. [Renew] and [Resign]
// call a store.Store.
//
// # Limitations
//
// A campaign that opens its own session has one group. Otherwise, when it ends without an
// answer, it could not know whether it may close the session.
package election
