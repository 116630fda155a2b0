package check

import (
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/app/ledger"
	"github.com/tenurehq/tenure/app/ledger/api"
	"github.com/tenurehq/tenure/fence"
)

// fill writes as two leaders, the first of which comes back after the second.
func fill(t *testing.T, path string, unfenced bool) {
	t.Helper()
	l, err := ledger.Open(t.Context(), ledger.Config{DB: path, Lab: true, Unfenced: unfenced, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	write := func(token fence.Token, writes ...api.Write) error {
		_, err := l.Apply(t.Context(), api.Batch{Resource: "billing", Stamp: fence.Stamp{Deployment: "lab", Group: "billing", Token: token}, Writes: writes})
		return err
	}
	next := func(first uint64) api.Write {
		return api.Write{Sequence: &api.SequenceWrite{Name: "next", First: first, Last: first + 4}}
	}
	for i, token := range []fence.Token{1, 1, 2, 2} {
		if err := write(token, next(uint64(5*i+1)), api.Write{Tick: &api.TickWrite{}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(1, next(11), api.Write{Tick: &api.TickWrite{}}); (err == nil) != unfenced {
		t.Fatalf("the zombie's write: %v", err)
	}
}

// The SQL query finds nothing in a ledger that fences, and in one that does not the
// rows where a zombie wrote.
func TestLedger(t *testing.T) {
	dir := t.TempDir()
	fenced := filepath.Join(dir, "fenced.db")
	fill(t, fenced, false)
	if v := Ledger(t.Context(), fenced); v.Result != Pass || v.Count("allocations") != 4 || v.Count("ticks") != 4 || v.Count("numbers") != 20 {
		t.Errorf("%v", v)
	}
	open := filepath.Join(dir, "open.db")
	fill(t, open, true)
	v := Ledger(t.Context(), open)
	if v.Result != Fail || v.Guarantee != "G6" || v.Violations != 2 {
		t.Fatalf("%v", v)
	}
	if at := v.Findings[0].At[0]; at != (Place{"open.db allocation", 5}) {
		t.Errorf("%v", v.Findings[0])
	}
	if at := v.Findings[1].At[0]; at != (Place{"open.db tick", 5}) {
		t.Errorf("%v", v.Findings[1])
	}
}

// A ledger that cannot be read, is missing or is empty is unknown, and a missing file
// is not made.
func TestLedgerUnknown(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.db")
	other := filepath.Join(t.TempDir(), "other.db")
	db, err := sql.Open("sqlite", other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE x (y)"); err != nil {
		t.Fatal(err)
	}
	_ = db.Close()
	for _, path := range []string{"", missing, other, "postgres://user:secret@127.0.0.1:1/none?connect_timeout=1"} {
		v := Ledger(t.Context(), path)
		if v.Result != Unknown {
			t.Errorf("%q: %v", path, v)
		}
		if strings.Contains(v.String(), "secret") {
			t.Errorf("the password is in %q", v)
		}
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the check made the file that was missing")
	}
}
