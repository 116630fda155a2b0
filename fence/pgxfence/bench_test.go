package pgxfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/pgxfence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/internal/servertest"
)

const (
	benchConns  = 8
	benchSlices = 10 // of each variant in a round
	benchSlice  = 100 * time.Millisecond
)

// A benchKind is a way to make one transaction on one of the connections.
type benchKind struct {
	name string
	tx   func(ctx context.Context, conn int) error
	base int     // the unfenced one
	bar  float64 // 0: none
}

// Compares fenced transactions with the same ones unfenced: 8 connections, each of which
// updates its own row and commits, with fsync; guarded on 8 resources, then on one that all
// share. The variants alternate every tenth of a second, so that other load on the machine
// affects all of them alike. A round has ten turns of each, and is compared with its own
// unfenced turns. It fails if a guarded variant is below its bar.
func benchCompare(b *testing.B, kinds []benchKind) {
	rounds := 7
	if n, err := strconv.Atoi(os.Getenv("TENURE_ROUNDS")); err == nil && n > 0 {
		rounds = n
	}
	for range b.N {
		rates := make([][]float64, len(kinds))
		// The first round is a warm-up.
		for round := -1; round < rounds; round++ {
			sum := make([]float64, len(kinds))
			for range benchSlices {
				for k, kind := range kinds {
					sum[k] += benchRate(b, kind.tx) / benchSlices
				}
			}
			for k := range kinds {
				if round >= 0 {
					rates[k] = append(rates[k], sum[k])
				}
			}
		}
		for k, kind := range kinds {
			ratios := make([]float64, rounds)
			for i := range ratios {
				ratios[i] = rates[k][i] / rates[kind.base][i]
			}
			verdict := "ok"
			if kind.bar == 0 {
				verdict = ""
			} else if median(ratios) < kind.bar {
				verdict = fmt.Sprintf("below the bar of %.2f×", kind.bar)
				b.Fail()
			}
			b.Logf("%-31s  %6.0f tx/s  %.2f× of %s  (%.2f to %.2f)  %s", kind.name, median(rates[k]), median(ratios), kinds[kind.base].name, slices.Min(ratios), slices.Max(ratios), verdict)
			if k != kind.base {
				b.ReportMetric(median(ratios), strings.ReplaceAll(strings.ReplaceAll(kind.name, ",", ""), " ", "-")+"-×bare")
			}
		}
	}
}

func BenchmarkGuard(b *testing.B) {
	server := servertest.Postgres(b)
	ctx := b.Context()
	conns := make([]*pgx.Conn, benchConns)
	for i := range conns {
		c, err := pgx.Connect(ctx, server.URL())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close(context.Background()) })
		conns[i] = c
	}
	if err := pgxfence.Migrate(ctx, conns[0]); err != nil {
		b.Fatal(err)
	}
	if _, err := conns[0].Exec(ctx, "CREATE TABLE work AS SELECT i AS id, 0::bigint AS n FROM generate_series(0, $1::int) i", benchConns); err != nil {
		b.Fatal(err)
	}
	if _, err := conns[0].Exec(ctx, "ALTER TABLE work ADD PRIMARY KEY (id)"); err != nil {
		b.Fatal(err)
	}
	for i := range benchConns + 1 { // Inside does not raise marks
		if err := pgxfence.NewSink(conns[0], own(i)).Seal(ctx, benchStamp()); err != nil {
			b.Fatal(err)
		}
	}
	inTx := func(resource func(int) string, work func(context.Context, pgx.Tx, int, string) error) func(context.Context, int) error {
		return func(ctx context.Context, conn int) error {
			return pgx.BeginFunc(ctx, conns[conn], func(tx pgx.Tx) error { return work(ctx, tx, conn, resource(conn)) })
		}
	}
	// Begins, writes and commits in one round trip.
	oneBatch := func(resource func(int) string, fill func(*pgx.Batch, int, string) error) func(context.Context, int) error {
		return func(ctx context.Context, conn int) error {
			batch := &pgx.Batch{}
			if err := fill(batch, conn, resource(conn)); err != nil {
				return err
			}
			return conns[conn].SendBatch(ctx, batch).Close()
		}
	}
	benchCompare(b, []benchKind{
		{"bare", inTx(shared, benchBare), 0, 0},
		{"SELECT 1 instead", inTx(shared, benchNothing), 0, 0},
		{"Inside, 8 resources", inTx(own, benchInside), 0, 0.93},
		{"Inside, one resource", inTx(shared, benchInside), 0, 0.93},
		{"SELECT 1 in a batch", inTx(shared, benchQueueNothing), 0, 0},
		{"Queue, 8 resources", inTx(own, benchQueue), 0, 0.85},
		{"Queue, one resource", inTx(shared, benchQueue), 0, 0.85},
		{"Guard, 8 resources", inTx(own, benchGuard), 0, 0},
		{"Guard, one resource", inTx(shared, benchGuard), 0, 0},
		{"bare in one batch", oneBatch(shared, benchBatchBare), 9, 0},
		{"one batch, inside, 8 resources", oneBatch(own, benchBatchInside), 9, 0.85},
		{"one batch, inside, one resource", oneBatch(shared, benchBatchInside), 9, 0.85},
	})
}

func own(conn int) string { return fmt.Sprintf("own-%d", conn) }
func shared(int) string   { return own(benchConns) }

// The same on MariaDB. A batch is one message with two statements.
func BenchmarkMariaDB(b *testing.B) {
	server := servertest.MariaDB(b)
	ctx := b.Context()
	db, err := sql.Open("mysql", server.URL()+"?interpolateParams=true&multiStatements=true")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxIdleConns(benchConns)
	if err := sqlfence.MySQL.Migrate(ctx, db); err != nil {
		b.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE work AS SELECT seq AS id, 0 AS n FROM seq_0_to_8; ALTER TABLE work ADD PRIMARY KEY (id)"); err != nil {
		b.Fatal(err)
	}
	for i := range benchConns + 1 {
		if err := sqlfence.MySQL.Sink(db, own(i)).Seal(ctx, benchStamp()); err != nil {
			b.Fatal(err)
		}
	}
	const update = "UPDATE work SET n = n + 1 WHERE id = ?"
	inTx := func(statements func(ctx context.Context, tx *sql.Tx, conn int) error) func(context.Context, int) error {
		return func(ctx context.Context, conn int) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := statements(ctx, tx, conn); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		}
	}
	one := func(query string, args ...any) func(context.Context, int) error {
		return inTx(func(ctx context.Context, tx *sql.Tx, conn int) error {
			_, err := tx.ExecContext(ctx, query, append([]any{conn}, args...)...)
			return err
		})
	}
	inside := func(resource func(int) string, first string) func(context.Context, int) error {
		return inTx(func(ctx context.Context, tx *sql.Tx, conn int) error {
			guard, args, err := sqlfence.MySQL.Inside(resource(conn), benchStamp(), conn)
			if err != nil {
				return err
			}
			query := update + " AND " + guard
			if first != "" {
				query, args = first+guard+"; "+update, append(args[1:], conn)
			}
			_, err = tx.ExecContext(ctx, query, args...)
			return err
		})
	}
	guard := func(resource func(int) string) func(context.Context, int) error {
		return inTx(func(ctx context.Context, tx *sql.Tx, conn int) error {
			if err := sqlfence.MySQL.Guard(ctx, tx, resource(conn), benchStamp()); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, update, conn)
			return err
		})
	}
	benchCompare(b, []benchKind{
		{"bare", one(update), 0, 0},
		{"SELECT 1 instead", inTx(func(ctx context.Context, tx *sql.Tx, conn int) error {
			if _, err := tx.ExecContext(ctx, "SELECT 1"); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, update, conn)
			return err
		}), 0, 0},
		{"Inside, 8 resources", inside(own, ""), 0, 0.85},
		{"Inside, one resource", inside(shared, ""), 0, 0.85},
		{"SELECT 1 in a batch", one("SELECT 1; " + update), 0, 0},
		{"batch, 8 resources", inside(own, "SELECT "), 0, 0.80},
		{"batch, one resource", inside(shared, "SELECT "), 0, 0.80},
		{"Guard, 8 resources", guard(own), 0, 0},
		{"Guard, one resource", guard(shared), 0, 0},
	})
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

// benchRate runs all connections for one turn and returns transactions a second.
func benchRate(b *testing.B, tx func(ctx context.Context, conn int) error) float64 {
	b.Helper()
	var done atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for conn := range benchConns {
		all.Go(func() {
			for time.Since(start) < benchSlice {
				if err := tx(b.Context(), conn); err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	return float64(done.Load()) / time.Since(start).Seconds()
}

const benchUpdate = "UPDATE work SET n = n + 1 WHERE id = $1"

func benchBare(ctx context.Context, tx pgx.Tx, id int, _ string) error {
	_, err := tx.Exec(ctx, benchUpdate, id)
	return err
}

// benchNothing measures a round trip alone.
func benchNothing(ctx context.Context, tx pgx.Tx, id int, resource string) error {
	if _, err := tx.Exec(ctx, "SELECT $1::int", id); err != nil {
		return err
	}
	return benchBare(ctx, tx, id, resource)
}

func benchGuard(ctx context.Context, tx pgx.Tx, id int, resource string) error {
	if err := pgxfence.Guard(ctx, tx, resource, benchStamp()); err != nil {
		return err
	}
	return benchBare(ctx, tx, id, resource)
}

func benchInside(ctx context.Context, tx pgx.Tx, id int, resource string) error {
	guard, args, err := pgxfence.Inside(resource, benchStamp(), id)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, benchUpdate+" AND "+guard, args...)
	return err
}

func benchQueue(ctx context.Context, tx pgx.Tx, id int, resource string) error {
	batch := &pgx.Batch{}
	if err := pgxfence.Queue(batch, resource, benchStamp()); err != nil {
		return err
	}
	batch.Queue(benchUpdate, id)
	return tx.SendBatch(ctx, batch).Close()
}

func benchQueueNothing(ctx context.Context, tx pgx.Tx, id int, _ string) error {
	batch := &pgx.Batch{}
	batch.Queue("SELECT $1::int", id)
	batch.Queue(benchUpdate, id)
	return tx.SendBatch(ctx, batch).Close()
}

func benchBatchBare(batch *pgx.Batch, id int, _ string) error {
	batch.Queue(benchUpdate, id)
	return nil
}

func benchBatchInside(batch *pgx.Batch, id int, resource string) error {
	guard, args, err := pgxfence.Inside(resource, benchStamp(), id)
	batch.Queue(benchUpdate+" AND "+guard, args...)
	return err
}

func benchStamp() fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: 42}
}
