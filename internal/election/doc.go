// Package election decides what the election service does for its callers: one campaign
// for each call, and the renewal and the end of a term.
//
// A [Campaign] steps a machine.Machine, which decides everything about sessions and tries,
// and adds what a call has and a process has not: a deadline, an answer, and a client that
// may go away. It is pure, as the machine is: events and the time go in, actions come out.
// [Renew] and [Resign] are straight-line code over a store.Store.
//
// # Limitations
//
// A campaign in a session of its own has one group: only then is it known, when it ends
// without an answer, whether the session may be closed.
package election
