package postgres_test

import (
	"context"
	"errors"
	"log"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/pgxfence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/postgres"
)

// sendInvoice is the leader's write. The guard, the write and the outbox row, which another process
// publishes, commit together or not at all.
func sendInvoice(ctx context.Context, pool *pgxpool.Pool, stamp fence.Stamp, id int, amount int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := pgxfence.Guard(ctx, tx, "invoices", stamp); err != nil {
			return err // a newer leader has written: roll back
		}
		if _, err := tx.Exec(ctx, "INSERT INTO invoices VALUES ($1, $2)", id, amount); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO outbox (topic, invoice) VALUES ('invoice.sent', $1)", id)
		return err
	})
}

// bill elects, and sends invoices while it leads. Election and fence share one database and one pool.
func bill(ctx context.Context, url, node string, invoice int) (last fence.Stamp, err error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return last, err
	}
	defer pool.Close()
	if err := pgxfence.Migrate(ctx, pool); err != nil {
		return last, err
	}
	elections, err := postgres.Open(ctx, postgres.Config{Pool: pool})
	if err != nil {
		return last, err
	}
	defer elections.Close()
	err = lease.Lead(ctx, elections, "billing", node, func(ctx context.Context, term *tenure.Term) error {
		last = term.Stamp()
		if err := sendInvoice(ctx, pool, last, invoice, 250); err != nil {
			return err
		}
		return tenure.ErrDone
	}, tenure.WithSinks(pgxfence.NewSink(pool, "invoices")))
	return last, err
}

func Example() {
	if _, err := bill(context.Background(), os.Getenv("DATABASE_URL"), "node-1", 1); err != nil {
		log.Fatal(err)
	}
}

// The example works on a real server, and a leader that was replaced writes neither an invoice
// nor an outbox row.
func TestExample(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, fast())
	exec(t, server.URL(), "CREATE TABLE invoices (id int PRIMARY KEY, amount bigint)", "CREATE TABLE outbox (n bigint GENERATED ALWAYS AS IDENTITY, topic text, invoice int)")
	old, err := bill(t.Context(), server.URL(), "node-1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bill(t.Context(), server.URL(), "node-2", 2); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var stale *fence.StaleError
	if err := sendInvoice(t.Context(), pool, old, 3, 250); !errors.As(err, &stale) {
		t.Errorf("the first leader writes after the second one: %v", err)
	}
	var invoices, outbox int
	if err := pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM invoices), (SELECT count(*) FROM outbox)").Scan(&invoices, &outbox); err != nil {
		t.Fatal(err)
	}
	if invoices != 2 || outbox != 2 {
		t.Errorf("%d invoices and %d outbox rows, want 2 of each", invoices, outbox)
	}
}
