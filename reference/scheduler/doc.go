// Package scheduler fires jobs when they are due, as the leader of a group, and sends the
// firings to workers.
//
// Limitations: a job may be fired late; the delay is measured. Two workers may act on one
// firing: if a worker does not answer for a long time, another gets the firing; and if a leader
// dies before it has recorded a delivery, the next leader sends the firing again, perhaps to
// another worker. A leader that stops in order records the deliveries first.
//
// Guarantees: each firing, a job at an instant, is recorded in the ledger at most once, and no
// instant of a job with misfire "all" is skipped, however often the leader changes. There are
// three reasons. The ledger moves a job and records its firing in one fenced step, and only from
// the instant that the leader has read. A firing is recorded before it is sent, and stays
// pending until a worker has acknowledged it and that was recorded too: a new leader sends what
// is pending. And a worker recognises a firing that it has had before.
//
// A tick, one every [Config].Tick, is one write: the tick itself, whose key is its instant, the
// firings that are due, the deliveries since the last tick, and the cursor. Time is the ledger's
// wall clock, taken from its answers. The clock of the node only measures the time since the
// last answer.
//
// Pure functions and the window decide what is due, what was missed and when the next instant
// is, without a clock and without the ledger.
package scheduler
