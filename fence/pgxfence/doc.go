// Package pgxfence is package sqlfence for transactions of pgx, with the same tables,
// functions and promises.
//
//	tx, err := pool.Begin(ctx)
//	…
//	if err := pgxfence.Guard(ctx, tx, "invoices", term.Stamp()); err != nil {
//		return err // roll back
//	}
//	// write, and commit
//
// [Queue] puts the guard into a batch with the writes, which saves its round trip.
//
// # Limitations
//
// Those of package sqlfence. Also: a transaction inside a transaction is a savepoint in pgx.
// A guard that is rolled back with its savepoint protects nothing.
package pgxfence
