// Package sqlfence fences what a leader writes to a database, inside the writer's
// own transaction.
//
// What is not guaranteed: a write that is not guarded is not fenced, and nothing
// outside the database is. The guard is worth as much as the transaction: called
// outside of one, or before a savepoint that is rolled back, it guards nothing. A
// database that loses acknowledged commits (an asynchronous replica that is
// promoted, a backup that is restored) loses the mark with them. A leader that is
// paused inside a guarded transaction keeps it open, and the next leader waits:
// bound that with idle_in_transaction_session_timeout (PostgreSQL) and by short
// transactions. Engines that only speak PostgreSQL's protocol are not PostgreSQL:
// some of them take advisory locks for decoration.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	if err := sqlfence.Postgres.Guard(ctx, tx, "invoices", term.Stamp(0)); err != nil {
//		return err // nothing may be committed: roll back
//	}
//	// write, and commit
//
// The mark of a resource is a row of the table tenure_mark. Guard compares the
// stamp with it, raises it if the token is new, and holds a lock until the
// transaction ends, so that between the check and the commit nobody can raise it:
// on PostgreSQL a lock that writers under one token share and only a new leader
// takes alone, in one round trip; on SQLite the write lock. It is right at every
// isolation level: where a transaction sees an old snapshot, it fails as one that
// could not be serialized (SQLSTATE 40001), or busy on SQLite. Where another raises
// the mark and does not come to an end within deadlock_timeout, perhaps because it
// waits for a row of this transaction, it fails as a deadlock (40P01). Both may be
// repeated ([Repeatable]). So seal before the first write, as tenure.Lead does:
// then marks are raised by transactions that do nothing else.
//
// On PostgreSQL the tables and functions are found by the search_path, and each
// schema that has them has marks of its own. Migrate refuses to make a second
// tenure_mark in a database: two marks for one resource fence nothing.
//
// Whoever guards several resources in one transaction takes them in one order, as
// with all locks. On SQLite, begin with BEGIN IMMEDIATE (with modernc.org/sqlite:
// _txlock=immediate) and set a busy timeout: a transaction that has read before it
// is guarded may otherwise fail as busy.
//
// A writer that commits the writes of many callers in one transaction does not guard each
// of them: it holds the marks of their resources and applies the rule itself. See [Held].
//
// The refusals are those of package fence, by errors.As. On PostgreSQL a refusal
// of Guard does not abort the transaction; the SQL function tenure_guard, for
// other languages, does. [Dialect.Migration] is the text that installs it all.
package sqlfence
