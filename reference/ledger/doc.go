// Package ledger is the fenced resource as a process of its own: what a leader
// writes to it takes effect if and only if no newer leader was there before.
//
// A ledger keeps resources. Each has a mark (package fence) and, guarded by it, a
// log of ticks, sequences of numbers, checkpoints, versioned records, and jobs with
// their firings. Every write carries a stamp; the check and the write are one transaction of the database,
// SQLite in the process or PostgreSQL by URL. The marks are those of package sqlfence. The
// mark is durable before an answer is sent.
//
// What is not guaranteed: tokens guard against mistakes, not attackers; whoever can
// reach the ledger can write to it. A database that is restored from a backup has
// lost marks and numbers; the ledger finds out from callers that have seen more (see
// Lost data), and only from them. Reads are not fenced. The list of refused writes keeps
// the newest and counts the rest; what could not be read as a stamp at all is only
// counted, in the metrics.
//
// # Jobs
//
// A job is due at an instant. The leader fires it: in one transaction the firing is
// recorded, once by job and instant, and the job moves on to its next instant or is
// deleted. What the schedule means is the leader's business. A firing stays pending
// until it was delivered, so that the next leader knows what the last one owed. Jobs are
// found through an index by the instant at which they are due, and counted as they
// come and go: ten million are no slower to begin with than ten thousand.
//
// Answers carry the ledger's wall clock, so that leaders agree about the time whatever
// their own clocks say. Several ledgers on one database have a clock each.
//
// # Lost data
//
// A ledger has an id and a revision that rises with every commit. Clients send what they
// have seen last. A ledger that is behind that, or is another one, takes no writes until
// an operator accepts its state ([Ledger.Accept]). So does one whose file was deleted or
// replaced while it was served.
//
// # Shared records
//
// A shared record belongs to a deployment, to no resource, and needs no leader. It is guarded by its
// version instead of a token: who writes it says which version they have read, and of
// two who read the same one succeeds. Whoever writes without saying so overwrites.
//
// # Group commit
//
// Callers that arrive together share one transaction and one fsync: one group is
// being committed while the next gathers. Within a group each batch is judged by
// itself, after those before it; a refused one changes nothing for the others. If a
// commit fails nobody of the group is told that it was made or not: [api.ErrUnknown].
// Nothing is remembered between groups, so the next reads what is there.
//
// # Several ledgers
//
// One SQLite file is served by one process, which holds a lock beside it. On
// PostgreSQL several may serve one database: each group holds the marks of its resources
// until its transaction ends. Each ledger counts in its metrics what went through itself.
// A ledger in the same schema as other users of sqlfence shares their table of marks, so
// their resources must have other names.
//
// # Where to find what
//
//   - A write: http.go or [Ledger.Apply], then queue.go (waits for its group), commit.go
//     (one transaction per group), load.go (holds the marks, reads what the group touches),
//     state.go (the rule) and draft.go (the writes), save.go.
//   - A read: read.go and readjobs.go.
//   - The database: database.go, sqlite.go, postgres.go, schema.go.
//   - Lost data: identity.go. Health checks: health.go.
package ledger
