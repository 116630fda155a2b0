package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

// A leader writes an invoice. The guard is part of its transaction: if a newer leader has
// been here, nothing is written.
func Example() {
	write := func(ctx context.Context, db *sql.DB, stamp fence.Stamp, invoice int) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := sqlfence.Postgres.Guard(ctx, tx, "invoices", stamp); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO invoice (number) VALUES ($1)", invoice); err != nil {
			return err
		}
		return tx.Commit()
	}

	db, err := sql.Open("pgx", "postgres://localhost/shop") // a database in which Migrate has run
	if err != nil {
		fmt.Println(err)
		return
	}
	err = write(context.Background(), db, fence.Stamp{Deployment: "prod", Group: "billing", Token: 41}, 1)
	if errors.Is(err, fence.ErrRefused) {
		fmt.Println("another process leads: stop")
	}
}
