// Package mem is a lease store in one process: for tests, for experiments, and
// as the plain statement of what a store does.
//
// It keeps every promise of lease.Store while its process lives, and none
// after: records, tokens and epochs are gone with the process, so a resource
// that outlives it must not be fenced by it. There is one copy and no quorum.
//
// There are two layers. [State] is the store as a value: every method takes the
// time, none reads a clock, locks, starts a goroutine or draws a random number,
// so equal calls give equal answers; the simulator drives it directly. [Store]
// puts a mutex, a clock and watches around a State and is what a process uses.
//
// What is handed out shares memory with the store: the terms of a record, the
// metadata of a candidate, a session's scope and attributes are to be read and
// not written to.
package mem
