// Command reconcile writes the bills of an hour, on one machine of many:
//
//	tenure exec --restart=on-lost billing -- reconcile
//
// For every account and period it makes one transaction: the bill, the record that it was
// made, and the check of the token. So after a leader is killed, the next one continues and
// makes no bill twice, and a leader that was paused makes none.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/pgxfence"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

// resource is the fenced resource of the bills.
const resource = "bills"

func main() {
	// tenure exec sends SIGTERM before the lease ends.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "reconcile:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	token, err := fence.ParseToken(os.Getenv("TENURE_FENCING_TOKEN"))
	if err != nil {
		return fmt.Errorf("run this program with tenure exec: %w", err)
	}
	stamp := fence.Stamp{Deployment: os.Getenv("TENURE_DEPLOYMENT"), Group: os.Getenv("TENURE_GROUP"), Token: token, Session: os.Getenv("TENURE_FENCING_SESSION")}
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	period := time.Now().UTC().Format("2006-01-02T15")
	if p := os.Getenv("RECONCILE_PERIOD"); p != "" {
		period = p // for an hour that was missed
	}
	rows, err := db.Query(ctx, "SELECT name FROM account ORDER BY name")
	if err != nil {
		return err
	}
	accounts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, account := range accounts {
		result, again, err := bill(ctx, db, stamp, period, account)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", period, account, err)
		}
		fmt.Printf("%s %s: %s (made before: %v)\n", period, account, result, again)
	}
	return nil
}

func bill(ctx context.Context, db *pgx.Conn, stamp fence.Stamp, period, account string) (result []byte, again bool, err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	result, again, err = pgxfence.Once(ctx, tx, resource, stamp, sqlfence.Key(period, account), func(ctx context.Context) ([]byte, error) {
		var cents int64
		err := tx.QueryRow(ctx, "INSERT INTO bill (period, account, cents, token) SELECT $1, name, owed_cents, $2 FROM account WHERE name = $3 RETURNING cents",
			period, int64(stamp.Token), account).Scan(&cents)
		return fmt.Appendf(nil, "%d cents", cents), err
	})
	if err != nil {
		return nil, false, err
	}
	return result, again, tx.Commit(ctx)
}
