package pgxfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

// openExample makes a database for one example.
func openExample() (db *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		panic(err)
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "db")+"?_txlock=immediate&_pragma=busy_timeout(5000)")
	if err == nil {
		_, err = db.ExecContext(context.Background(), "CREATE TABLE balance (account TEXT PRIMARY KEY, amount INTEGER); INSERT INTO balance VALUES ('acme', 0)")
	}
	if err != nil {
		panic(err)
	}
	return db, func() { _ = errors.Join(db.Close(), os.RemoveAll(dir)) }
}

// A leader was paused, and another one was elected and has written. When the first one
// resumes, its transaction is refused. For PostgreSQL use sqlfence.Postgres or
// pgxfence.Guard.
func Example() {
	db, remove := openExample()
	defer remove()
	ctx := context.Background()
	fmt.Println(sqlfence.SQLite.Migrate(ctx, db))

	write := func(token fence.Token, amount int) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		stamp := fence.Stamp{Deployment: "prod", Group: "billing", Token: token} // term.Stamp()
		if err := sqlfence.SQLite.Guard(ctx, tx, "balance", stamp); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE balance SET amount = ?1", amount); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(write(41, 100))
	fmt.Println(write(42, 200))
	fmt.Println(write(41, 150))
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// sqlfence: resource "balance": fence: stale write refused: prod/billing token 41, but the sink has seen token 42: stop, another leads
}

// A leader that crashed after it had charged an account, and before it had recorded that,
// would charge it again. Once makes the charge and records it in one transaction.
func Example_once() {
	db, remove := openExample()
	defer remove()
	ctx := context.Background()
	if err := sqlfence.SQLite.Migrate(ctx, db); err != nil {
		fmt.Println(err)
		return
	}
	charge := func(token fence.Token) (receipt []byte, again bool, err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return nil, false, err
		}
		defer func() { _ = tx.Rollback() }()
		stamp := fence.Stamp{Deployment: "prod", Group: "billing", Token: token}
		receipt, again, err = sqlfence.SQLite.Once(ctx, tx, "balance", stamp, sqlfence.Key("2026-10", "acme"), func(ctx context.Context) ([]byte, error) {
			_, err := tx.ExecContext(ctx, "UPDATE balance SET amount = amount - 30 WHERE account = 'acme'")
			return fmt.Appendf(nil, "charged by token %d", token), err
		})
		if err != nil {
			return nil, false, err
		}
		return receipt, again, tx.Commit()
	}
	for _, token := range []fence.Token{41, 42} {
		receipt, again, err := charge(token)
		fmt.Printf("%s, again: %v, %v\n", receipt, again, err)
	}
	// Output:
	// charged by token 41, again: false, <nil>
	// charged by token 41, again: true, <nil>
}
