// Package pgxfence is package sqlfence for transactions of pgx, with the same
// tables, functions and promises. What is not guaranteed is said there.
//
//	tx, err := pool.Begin(ctx)
//	…
//	if err := pgxfence.Guard(ctx, tx, "invoices", term.Stamp(0)); err != nil {
//		return err // nothing may be committed: roll back
//	}
//	// write, and commit
//
// [Queue] puts the guard into a batch with the writes, which saves its round trip.
//
// A transaction inside a transaction is a savepoint to pgx: a guard that is rolled
// back with it guards nothing.
package pgxfence
