// Package sqlfence fences what a leader writes to a database, inside the writer's own
// transaction.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	if err := sqlfence.Postgres.Guard(ctx, tx, "invoices", term.Stamp()); err != nil {
//		return err // roll back
//	}
//	// write, and commit
//
// [Dialect.Migrate] creates the tables and functions, and [Dialect.Migration] returns their
// text. Other languages call the SQL function tenure_guard.
//
// [Dialect.Inside] puts the guard into the statement that writes, which saves its round trip.
//
// # Limitations
//
// Only guarded writes are fenced, and nothing outside the database is. A guard outside of a
// transaction, or before a savepoint that is rolled back, protects nothing. A database that
// loses acknowledged commits (a promoted asynchronous replica, a restored backup) loses the
// mark with them.
//
// A leader that is paused inside a guarded transaction keeps it open, and the next leader
// waits. Use short transactions and, on PostgreSQL, idle_in_transaction_session_timeout.
//
// Servers that only speak PostgreSQL's protocol are not PostgreSQL: some of them, and some
// poolers, ignore advisory locks.
//
// On MySQL and MariaDB all tables must be InnoDB's, and all writers must use one server: in a
// cluster with several writable servers (Galera, group replication) a lock is known to one server
// only, so a mark fences nothing there. MySQL ends the transaction on a deadlock: a caller that
// ignores that error and goes on writes without a guard. Call Guard before the transaction reads,
// because at REPEATABLE READ, the default, what it read before may be older than the mark. Also at
// that level seal before many write: a guard of a resource without a mark locks a gap, and many of
// them at once can keep each other from making the mark.
//
// # How it works
//
// The mark of a resource is a row of the table tenure_mark. Guard compares the stamp with it,
// raises it if the token is new, and holds a lock until the transaction ends, so that nobody
// can raise the mark between the check and the commit. On PostgreSQL and MySQL writers with the
// same token share the lock and a new leader takes it alone, in one round trip. On SQLite it is
// the write lock.
//
// Guard is correct at every isolation level. If the transaction has an old snapshot, it fails
// with a serialization error (SQLSTATE 40001) on PostgreSQL, or as busy on SQLite. If another transaction
// raises the mark and does not end within deadlock_timeout, perhaps because it waits for a row
// of this one, it fails as a deadlock (40P01). Both can be repeated ([Repeatable]). Seal before
// the first write, as tenure.Lead does: then marks are raised by transactions that do nothing
// else.
//
// On PostgreSQL the tables and functions are found by the search_path, and each schema that
// has them has its own marks. Migrate refuses to create a second tenure_mark in a database:
// two marks for one resource fence nothing.
//
// To guard several resources in one transaction, always take them in the same order. On SQLite
// begin with BEGIN IMMEDIATE (modernc.org/sqlite: _txlock=immediate) and set a busy timeout;
// otherwise a transaction that reads before its guard may fail as busy.
//
// A writer that commits the writes of many callers in one transaction holds the marks of all
// their resources and applies the rule itself: see [Held].
//
// Refusals are the errors of package fence, by errors.As. On PostgreSQL and MySQL a refusal of
// Guard does not abort the transaction; the SQL function tenure_guard does.
package sqlfence
