// Package load calls POST /next of a fleet, as fast as it answers or at a rate, and measures
// how long the calls take.
//
// At a rate, calls are due at fixed instants whatever the calls before them do, and their
// latency counts from when they were due. So if a fleet does not answer for a second, every
// call that was due in that second is slow.
//
// It shares a machine with what it measures, so it is cheap: it prepares a request once,
// keeps connections open, and parses only what it needs of an answer. It follows the leader as
// package client does, and like it never repeats a call whose outcome is unknown.
package load
