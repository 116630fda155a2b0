// Package ledger is the fenced resource as a process: a write of a leader takes effect if and
// only if no newer leader has written before.
//
// A ledger keeps resources. Each has a mark (package fence) and, protected by it, a log of
// ticks, sequences of numbers, checkpoints, versioned records, and jobs with their firings.
// Every write carries a stamp. The check and the write are one transaction of the database,
// SQLite in the process or PostgreSQL by URL. Package sqlfence keeps the marks. A mark is
// durable before an answer is sent.
//
// Limitations: tokens protect against mistakes, not against attackers; everybody who can reach
// the ledger can write to it. A database that is restored from a backup has lost marks and
// numbers. The ledger notices that only from callers that have seen more (see Lost data). Reads
// are not fenced. The list of refused writes keeps the newest and counts the rest; requests
// without a valid stamp are only counted, in the metrics.
//
// # Jobs
//
// A job is due at an instant. The leader fires it: one transaction records the firing, once for
// each job and instant, and moves the job to its next instant or deletes it. Only the leader
// knows what the schedule means. A firing stays pending until it was delivered, so that the next
// leader knows what to deliver. Jobs are read through an index by the instant at which they are
// due, and counted as they are added and deleted, so ten million are as fast as ten thousand.
//
// Answers carry the ledger's wall clock, so that leaders agree on the time whatever their own
// clocks show. Each of several ledgers on one database has its own clock.
//
// # Lost data
//
// A ledger has an id and a revision that rises with every commit. Clients send the last ones
// they have seen. A ledger with a lower revision, or another id, accepts no writes until an
// operator accepts its state ([Ledger.Accept]). The same holds for a ledger whose file was
// deleted or replaced while it was served.
//
// # Shared records
//
// A shared record belongs to a deployment and to no resource, and needs no leader. Its version
// protects it instead of a token: a writer says which version it has read, and of two writers
// with the same version one succeeds. A writer that gives no version overwrites.
//
// # Group commit
//
// Callers that arrive together share one transaction and one fsync: while one group is
// committed, the next gathers. Each batch of a group is checked after those before it, and a
// refused one changes nothing for the others. If a commit fails, the whole group gets
// [api.ErrUnknown]. Nothing is cached between groups.
//
// # Several ledgers
//
// One process serves a SQLite file, and holds a lock beside it. On PostgreSQL several ledgers
// may serve one database: each group holds the marks of its resources until its transaction
// ends. Each ledger counts in its metrics only its own writes. A ledger in the same schema as
// other users of sqlfence shares their table of marks, so their resources must have other names.
//
// # Where to find what
//
//   - A write: package ledgerhttp or [Ledger.Apply], then queue.go (waits for its group),
//     commit.go (one transaction per group), and package state (the rule and the writes).
//   - A read: read.go.
//   - The database: package database.
//   - Lost data: identity.go. Health checks: health.go.
package ledger
