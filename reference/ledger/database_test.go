package ledger

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
	"github.com/tenurehq/tenure/reference/ledger/state"
)

// One ledger at a time serves a file, whatever path names it. After it is closed, the next
// one finds all data.
func TestOneLedgerPerFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a b?#%.db")
	first := opened(t, Config{DB: path})
	if _, err := first.Apply(t.Context(), numbers(5)); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, link} {
		if l, err := Open(t.Context(), Config{DB: name}); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "served by another ledger") {
			t.Errorf("a second ledger on %s: %v, %v", name, l, err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Apply(t.Context(), numbers(1)); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("a closed ledger: %v", err)
	}
	second := opened(t, Config{DB: link})
	if a, err := second.Apply(t.Context(), numbers(1)); err != nil || a.Outcomes[0].Sequence.First != 6 {
		t.Errorf("the next ledger: %+v, %v", a, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the file is not where it was asked for: %v", err)
	}
}

// The log is allocated before the first write and does not grow later. The allocation leaves
// nothing in the database.
func TestLogIsReserved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := opened(t, Config{DB: path})
	size := func() int64 {
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	reserved := size()
	if reserved < database.LogBytes {
		t.Fatalf("the log has %d bytes, want at least %d", reserved, database.LogBytes)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if before.Size() > 1<<20 {
		t.Errorf("the room was taken from the database: it has %d bytes", before.Size())
	}
	for range 600 { // more than one checkpoint
		if _, err := l.Apply(t.Context(), numbers(1)); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if after.Size() == before.Size() {
		t.Error("there was no checkpoint")
	}
	if size() != reserved {
		t.Errorf("the log grew from %d to %d bytes", reserved, size())
	}
}

// Open returns why it failed. It does not change a database of a later version or of another
// program.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	exec := func(path, statement string) {
		t.Helper()
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	newer, other, text := filepath.Join(dir, "newer.db"), filepath.Join(dir, "other.db"), filepath.Join(dir, "text.db")
	for range 2 { // the second start finds the schema
		l, err := Open(t.Context(), Config{DB: newer})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	exec(newer, "INSERT INTO ledger_migration (version) VALUES (99)")
	exec(other, "CREATE TABLE customers (id INTEGER)")
	if err := os.WriteFile(text, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{DB: newer}, fmt.Sprintf("schema version 99, and this program knows %d", len(database.Migrations))},
		{Config{DB: other}, "ledger: the file is a database of another"},
		{Config{DB: text}, "is not a database"},
		{Config{DB: dir}, "is a directory"},
		{Config{DB: filepath.Join(dir, "no", "l.db")}, "there is no directory"},
		{Config{}, "db: "},
		{Config{DB: ":memory:"}, "db: "},
		{Config{DB: "mysql://x"}, "db: mysql://"},
		{Config{DB: "postgres://127.0.0.1:1/x?connect_timeout=1"}, "PostgreSQL does not answer"},
		{Config{DB: "postgres://%zz"}, "not a PostgreSQL URL"},
		{Config{DB: newer, Queue: -1}, "queue: -1 is negative"},
	} {
		l, err := Open(t.Context(), tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, %v; want %q", tt.cfg.DB, l, err, tt.want)
		}
	}
}

// Several ledgers may serve one PostgreSQL: their numbers do not overlap, and deadlocks are
// resolved. While the server is down, the ledgers are unavailable; afterwards they continue.
func TestPostgresShared(t *testing.T) {
	server := servertest.Postgres(t)
	var all [3]*Ledger
	for i := range all {
		all[i] = opened(t, Config{DB: server.URL()})
	}
	var callers sync.WaitGroup
	for i, l := range all {
		for w := range 8 {
			callers.Go(func() {
				for n := range 10 {
					b := numbers(1)
					if _, err := l.Apply(t.Context(), b); err != nil {
						t.Errorf("ledger %d: %v", i, err)
					}
					// First writes to resources cross: each ledger uses another order.
					b.Resource = fmt.Sprintf("r%d", (n*(i+1)+w)%30)
					if _, err := l.Apply(t.Context(), b); err != nil {
						t.Errorf("ledger %d: %v", i, err)
					}
				}
			})
		}
	}
	callers.Wait()
	var wrong, last int
	err := all[0].db.Reader.QueryRowContext(t.Context(), `SELECT COUNT(*) FILTER (WHERE first_seq <> before + 1), MAX(last_seq) FROM (
		SELECT first_seq, last_seq, LAG(last_seq, 1, 0::bigint) OVER (ORDER BY n) AS before FROM allocation WHERE resource = 'r') AS a`).Scan(&wrong, &last)
	if err != nil || wrong != 0 || last != 240 {
		t.Errorf("%d allocations do not follow the one before, the last number is %d; %v", wrong, last, err)
	}

	deadlocked(t, all[0])

	server.Kill()
	if _, err := all[0].Apply(t.Context(), numbers(1)); !errors.Is(err, api.ErrUnavailable) || errors.Is(err, api.ErrUnknown) {
		t.Errorf("without a database: %v", err)
	}
	if _, err := all[0].Health(t.Context(), api.Identity{}); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("without a database: %v", err)
	}
	server.Start()
	for i, l := range all {
		until(t, func() bool {
			_, err := l.Apply(t.Context(), numbers(1))
			return err == nil
		})
		if _, err := l.Health(t.Context(), api.Identity{}); err != nil {
			t.Errorf("ledger %d: %v", i, err)
		}
	}
}

// deadlocked makes PostgreSQL roll back the ledger's transaction to resolve a deadlock. The
// ledger retries, and the caller does not notice.
func deadlocked(t *testing.T, l *Ledger) {
	t.Helper()
	for range 5 {
		if deadlock(t, l) {
			return
		}
	}
	t.Error("PostgreSQL never undid the ledger's transaction")
}

// deadlock reports whether the ledger's transaction was the one that was rolled back: on a
// busy machine it may be the other.
func deadlock(t *testing.T, l *Ledger) bool {
	t.Helper()
	ctx := t.Context()
	other, err := l.db.Reader.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	lock := func(name string) error {
		_, err := sqlfence.Postgres.Hold(ctx, other, name)
		return err
	}
	group := []*op{{kind: state.Write, batch: numbers(1)}, {kind: state.Write, batch: numbers(1)}}
	group[0].batch.Resource, group[1].batch.Resource = "r1", "r2"
	if err := lock("r2"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := l.transact(group); done <- err }()
	until(t, func() bool {
		var waiting int
		err := l.db.Reader.QueryRowContext(ctx, "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").Scan(&waiting)
		return err == nil && waiting > 0
	})
	lost := lock("r1")
	if lost == nil {
		lost = other.Commit()
	} else if err := other.Rollback(); err != nil {
		t.Error(err)
	}
	if lost != nil && !database.Repeatable(lost) {
		t.Errorf("the other transaction: %v", lost)
	}
	if err := <-done; err != nil {
		t.Errorf("after a deadlock: %v", err)
	}
	return lost == nil
}
