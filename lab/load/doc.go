// Package load calls POST /next of a fleet as fast as it answers, or at a rate, and
// says how long the calls took.
//
// At a rate, calls are due at fixed instants whatever became of the ones before, and
// their latency is counted from when they were due: a fleet that stands still for a
// second is seen as slow by every call that should have been made in that second.
//
// It is meant to share a machine with what it measures: requests are bytes that were
// made once, on connections that are kept, and of an answer it reads only what it
// needs. It follows the leader as package client does, and like it never repeats a
// call whose outcome is unknown.
package load
