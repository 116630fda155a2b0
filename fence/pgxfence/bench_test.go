package pgxfence_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/pgxfence"
	"github.com/tenurehq/tenure/internal/servertest"
)

const (
	benchConns  = 8
	benchRounds = 7
	benchSlices = 10 // of each variant in a round
	benchSlice  = 100 * time.Millisecond
	benchBar    = 0.8
)

// Compares fenced transactions with the same ones unfenced: 8 connections, each of which
// updates its own row and commits, with fsync; guarded on 8 resources, then on one that all
// share. The variants alternate every tenth of a second, so that other load on the machine
// affects all of them alike. A round has ten turns of each, and is compared with its own
// unfenced turns. One-batch transactions are compared with unfenced one-batch transactions.
// It fails if a guarded variant is below the bar.
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
	own := func(conn int) string { return fmt.Sprintf("own-%d", conn) }
	shared := func(int) string { return "shared" }
	kinds := []struct {
		name     string
		tx       benchTx
		resource func(conn int) string
		base     int // the unfenced one
	}{
		{"bare", inTx(benchBare), shared, 0},
		{"SELECT 1 instead", inTx(benchNothing), shared, 0},
		{"Queue, 8 resources", inTx(benchQueue), own, 0},
		{"Queue, one resource", inTx(benchQueue), shared, 0},
		{"Guard, 8 resources", inTx(benchGuard), own, 0},
		{"Guard, one resource", inTx(benchGuard), shared, 0},
		{"bare in one batch", benchOneBatch(false), shared, 6},
		{"one batch, 8 resources", benchOneBatch(true), own, 6},
		{"one batch, one resource", benchOneBatch(true), shared, 6},
	}
	for range b.N {
		rates := make([][]float64, len(kinds))
		// The first round is a warm-up.
		for round := -1; round < benchRounds; round++ {
			sum := make([]float64, len(kinds))
			for range benchSlices {
				for k, kind := range kinds {
					sum[k] += benchRate(b, conns, kind.tx, kind.resource) / benchSlices
				}
			}
			for k := range kinds {
				if round >= 0 {
					rates[k] = append(rates[k], sum[k])
				}
			}
		}
		for k, kind := range kinds {
			ratios := make([]float64, benchRounds)
			for i := range ratios {
				ratios[i] = rates[k][i] / rates[kind.base][i]
			}
			verdict := "ok"
			if k < 2 || k == kind.base {
				verdict = ""
			} else if median(ratios) < benchBar {
				verdict = "short"
				b.Fail()
			}
			b.Logf("%-23s  %6.0f tx/s  %.2f× of %s  (%.2f to %.2f)  %s", kind.name, median(rates[k]), median(ratios), kinds[kind.base].name, slices.Min(ratios), slices.Max(ratios), verdict)
			if k != kind.base {
				b.ReportMetric(median(ratios), strings.ReplaceAll(strings.ReplaceAll(kind.name, ",", ""), " ", "-")+"-×bare")
			}
		}
	}
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

type benchTx func(ctx context.Context, c *pgx.Conn, id int, resource string) error

func inTx(work func(ctx context.Context, tx pgx.Tx, id int, resource string) error) benchTx {
	return func(ctx context.Context, c *pgx.Conn, id int, resource string) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return work(ctx, tx, id, resource) })
	}
}

// benchRate runs all connections for one turn and returns transactions a second.
func benchRate(b *testing.B, conns []*pgx.Conn, work benchTx, resource func(int) string) float64 {
	b.Helper()
	var done atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for i, c := range conns {
		guarded := resource(i)
		all.Go(func() {
			for time.Since(start) < benchSlice {
				if err := work(b.Context(), c, i, guarded); err != nil {
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

func benchQueue(ctx context.Context, tx pgx.Tx, id int, resource string) error {
	batch := &pgx.Batch{}
	if err := pgxfence.Queue(batch, resource, benchStamp()); err != nil {
		return err
	}
	batch.Queue(benchUpdate, id)
	return tx.SendBatch(ctx, batch).Close()
}

// benchOneBatch begins, writes and commits in one round trip.
func benchOneBatch(guarded bool) benchTx {
	return func(ctx context.Context, c *pgx.Conn, id int, resource string) error {
		batch := &pgx.Batch{}
		if guarded {
			if err := pgxfence.Queue(batch, resource, benchStamp()); err != nil {
				return err
			}
		}
		batch.Queue(benchUpdate, id)
		return c.SendBatch(ctx, batch).Close()
	}
}

func benchStamp() fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: 42}
}
