package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
	"github.com/tenurehq/tenure/reference/ledger/state"
)

// seeds returns how many jobs a test makes: TENURE_SEED, or the usual number.
func seeds(t *testing.T, usual uint64) uint64 {
	t.Helper()
	s := os.Getenv("TENURE_SEED")
	if s == "" {
		return usual
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n < usual {
		t.Fatalf("TENURE_SEED=%q: a number from %d", s, usual)
	}
	return n
}

// Seeded jobs are like any others: they are counted, listed in order and fired. A second call
// continues after the first one, and a stale one adds nothing.
func TestSeed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	usual := uint64(200_000)
	if raced() {
		usual = 20_000 // the race detector makes SQLite a hundred times slower
	}
	seeded(t, Config{DB: path}, seeds(t, usual))
}

// The same on PostgreSQL.
func TestSeedPostgres(t *testing.T) {
	seeded(t, Config{DB: servertest.Postgres(t).URL()}, seeds(t, 200_000))
}

func raced() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func seeded(t *testing.T, cfg Config, n uint64) {
	cfg.Logger = slog.New(slog.DiscardHandler)
	ctx := t.Context()
	const first, every = 1_000_000, 3
	var told []uint64
	began := time.Now()
	if err := Seed(ctx, cfg, "r", stampAt(7, 0), n-10, first, every, json.RawMessage(`{"run":"count"}`), func(done uint64) { told = append(told, done) }); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d jobs in %v", n-10, time.Since(began))
	if len(told) == 0 || told[len(told)-1] != n-10 {
		t.Errorf("it told %v", told)
	}
	if err := Seed(ctx, cfg, "r", stampAt(8, 0), 10, 5, 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	var stale *fence.StaleError
	if err := Seed(ctx, cfg, "r", stampAt(7, 0), 10, 5, 0, nil, nil); !errors.As(err, &stale) {
		t.Errorf("a stale leader: %v", err)
	}
	l := opened(t, cfg)
	p, err := l.Jobs(ctx, "r", first+every+1, "", 0)
	if err != nil || p.Total != n || len(p.Items) != 12 || p.Items[0].NextMS != 5 || p.Items[0].Key != fmt.Sprintf("seed-%012d", n-9) ||
		p.Items[10].Key != "seed-000000000001" || p.Items[10].NextMS != first || string(p.Items[10].Payload) != `{"run":"count"}` || p.Items[11].NextMS != first+every {
		t.Errorf("the window is %+v, %v", p, err)
	}
	if last, err := l.Job(ctx, "r", fmt.Sprintf("seed-%012d", n-10)); err != nil || last.NextMS != first+int64(n-11)*every {
		t.Errorf("the last is %+v, %v", last, err)
	}
	usesIndexes(t, l)

	// A tick that fires a thousand of them is one commit.
	b := api.Batch{Resource: "r", Stamp: stampAt(9, 0), Writes: []api.Write{{Tick: &api.TickWrite{}}}}
	for i := range 1000 {
		b.Writes = append(b.Writes, api.Write{Fire: &api.FireWrite{Job: fmt.Sprintf("seed-%012d", i+1), DueMS: first + int64(i)*every, AtMS: first + int64(i)*every}})
	}
	commits := 0
	l.db.Commit = func(ctx context.Context, c *database.Tx) error { commits++; return database.Commit(ctx, c) }
	began = time.Now()
	a, err := l.Apply(ctx, b)
	if err != nil || commits != 1 || *a.Outcomes[1000].Fire != (api.FireOutcome{}) {
		t.Errorf("a tick took %d commits, %v", commits, err)
	}
	t.Logf("a tick of 1000 jobs took %v", time.Since(began))
	if r, err := l.Resource(ctx, "r"); err != nil || r.Jobs != n-1000 || r.Firings != 1000 || r.FiringsPending != 1000 {
		t.Errorf("after the tick: %+v, %v", r, err)
	}
	exact(t, l)
}

// exact compares the counters with the rows.
func exact(t *testing.T, l *Ledger) {
	t.Helper()
	var wrong int
	err := l.db.Reader.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM fenced_resource r WHERE jobs <> (SELECT COUNT(*) FROM job WHERE resource = r.name)
		OR firings_pending <> (SELECT COUNT(*) FROM firing WHERE resource = r.name AND pending = 1)
		OR EXISTS (SELECT 1 FROM firing WHERE resource = r.name AND (n > firings OR (pending = 1) <> (delivered_ms = 0)))`).Scan(&wrong)
	if err != nil || wrong != 0 {
		t.Errorf("%d resources count wrong, %v", wrong, err)
	}
}

// usesIndexes reads the query plans of statements that must not slow down with ten million
// jobs.
func usesIndexes(t *testing.T, l *Ledger) {
	t.Helper()
	const keys = `[["r","a",5]]`
	for _, tt := range []struct {
		query            string
		sqlite, postgres string
		args             []any
	}{
		{selectJobs + " LIMIT 100", "job USING INDEX job_by_time (resource=? AND (next_ms,name)>(?,?) AND next_ms<?)", "job_by_time", []any{"r", 5, "a", 1 << 40}},
		{selectPendingFirings + " LIMIT 100", "firing USING INDEX firing_by_state (resource=? AND pending=? AND n>?)", "firing_by_state", []any{"r", 0}},
		{selectFirings + " LIMIT 100", "firing USING PRIMARY KEY (resource=? AND n>?)", "firing_pkey", []any{"r", 0}},
		{state.SelectJobs, "t USING PRIMARY KEY (resource=? AND name=?)", "job_pkey", []any{keys}},
		{state.SelectFirings, "t USING INDEX firing_once (resource=? AND job=? AND at_ms=?)", "firing_once", []any{keys}},
		{state.DeleteJobs, "job USING PRIMARY KEY (resource=? AND name=?)", "job_pkey", []any{keys}},
		{state.UpdateFirings, "firing USING PRIMARY KEY (resource=? AND n=?)", "firing_pkey", []any{`[["r",5,"w",5]]`}},
		{state.TrimFirings, "firing USING INDEX firing_by_state (resource=? AND pending=? AND n<?)", "firing_by_state", []any{"r", 5}},
	} {
		got, want := plan(t, l, tt.query, tt.args), "SEARCH "+tt.sqlite
		if l.db.Dialect == sqlfence.Postgres {
			want = "Index Scan using " + tt.postgres + " on "
		}
		if !strings.Contains(got, want) || strings.Contains(got, "TEMP B-TREE") || strings.Contains(got, "Sort") || strings.Contains(got, "Seq Scan") {
			t.Errorf("%s\nis done by\n%s\nwant %s", tt.query, got, want)
		}
	}
}

func plan(t *testing.T, l *Ledger, query string, args []any) string {
	t.Helper()
	explain := "EXPLAIN QUERY PLAN "
	if l.db.Dialect == sqlfence.Postgres {
		explain = "EXPLAIN "
	}
	rows, err := l.db.Reader.QueryContext(t.Context(), explain+database.Translate(l.db.Dialect, query), args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer func() { _ = rows.Close() }()
	var all strings.Builder
	for rows.Next() {
		var id, parent, unused int
		var line string
		dest := []any{&id, &parent, &unused, &line}
		if l.db.Dialect == sqlfence.Postgres {
			dest = dest[3:]
		}
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&all, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all.String()
}
