// Package scheduler fires jobs when they are due, as the leader of a group, and hands
// what was fired to workers.
//
// What is not guaranteed: that a job is fired on time. Late is allowed, and measured.
// Nor that only one worker acts on a firing: one that was sent, and whose answer did not
// come for a long time, is sent to another; and one that a worker took, and whose leader
// died before that was recorded, is sent again by the next, to another worker if the
// first is not the one that the job prefers, or is down. A leader that goes in order
// records what was taken before it goes.
//
// What is: each firing, a job at an instant, is recorded in the ledger at most once,
// and none of a job with misfire "all" is left out, however often the leader changes.
// Three things make it so. The ledger moves a job on and records its firing in one
// fenced step, and only from the instant that the leader read. A firing is recorded
// before it is sent, and is pending until a worker has acknowledged it and that was
// recorded too: a new leader sends what is pending. And a worker knows a firing that
// it has had.
//
// A tick, one every [Config].Tick, is one write: the tick itself, whose key is its
// instant, the firings that are due, what was delivered since the last, and the
// cursor. Time is the ledger's wall clock, learned from its answers: the clock of the
// node only carries it on from one answer to the next.
//
// What is decided (what is due, what was missed, when is next) is decided by pure
// functions and by the window, without a clock and without the ledger.
package scheduler
