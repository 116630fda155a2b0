package check

import (
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/ledgerdb"
	"github.com/tenurehq/tenure/lab/verdict"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// fill writes as two leaders. The first writes again after the second.
func fill(t *testing.T, path string, unfenced bool) {
	t.Helper()
	l, err := ledger.Open(t.Context(), ledger.Config{DB: path, Unfenced: unfenced, Logger: slog.New(slog.DiscardHandler)})
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

// The SQL query finds nothing in a ledger with fencing. Without fencing it finds the rows that a
// deposed leader wrote.
func TestLedger(t *testing.T) {
	dir := t.TempDir()
	fenced := filepath.Join(dir, "fenced.db")
	fill(t, fenced, false)
	if v := Ledger(t.Context(), fenced); v.Result != verdict.Pass || v.Count("allocations") != 4 || v.Count("ticks") != 4 || v.Count("numbers") != 20 {
		t.Errorf("%v", v)
	}
	open := filepath.Join(dir, "open.db")
	fill(t, open, true)
	v := Ledger(t.Context(), open)
	if v.Result != verdict.Fail || v.Guarantee != "G6" || v.Violations != 2 {
		t.Fatalf("%v", v)
	}
	if at := v.Findings[0].At[0]; at != (history.Place{File: "open.db allocation", Line: 5}) {
		t.Errorf("%v", v.Findings[0])
	}
	if at := v.Findings[1].At[0]; at != (history.Place{File: "open.db tick", Line: 5}) {
		t.Errorf("%v", v.Findings[1])
	}
}

// The verdict on a ledger that cannot be read, is missing or is empty is unknown. A missing
// file is not created.
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
		if v.Result != verdict.Unknown {
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

// A ledger that has deleted entries is not taken for complete. A call that is older than its
// entries is not compared.
func TestLedgerForgets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	fill(t, path, false)
	db, err := ledgerdb.Open(path, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	deleted := func() string {
		t.Helper()
		what, err := ledgerdb.Deleted(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(what, ", ")
	}
	if got := deleted(); got != "" {
		t.Errorf("a complete ledger has deleted %s", got)
	}
	for _, statement := range []string{"DELETE FROM allocation WHERE n = 1", "DELETE FROM tick WHERE n = 1", "DELETE FROM rejection"} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if got := deleted(); got != "refused writes, allocations, ticks" {
		t.Errorf("deleted: %s", got)
	}
	h := files{"calls": {
		history.Run{Experiment: "load", Group: "billing", At: 1, Checks: []string{"sequence", "ledger"}},
		history.Call{Start: 10, End: 20, Token: 1, First: 3, Last: 3},
		history.Call{Start: 30, End: 40, Token: 2, First: 11, Last: 14},
	}}
	r, err := Dir(t.Context(), h.save(t), Options{DB: path})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := r.Verdict("ledger")
	if v.Result != verdict.Unknown || v.Doubts != 3 || v.Count("calls not compared") != 1 || v.Count("calls compared") != 1 {
		t.Errorf("%v", v)
	}
	if last := v.Findings[len(v.Findings)-1]; len(last.At) != 1 || last.At[0] != (history.Place{File: "calls.ndjson", Line: 2}) {
		t.Errorf("%v", v.Findings)
	}
}

// Answers to clients are compared with the ledger. A finding names the line of an answer that
// no allocation of its token contains.
func TestLedgerKnowsAnswers(t *testing.T) {
	db := filepath.Join(t.TempDir(), "ledger.db")
	fill(t, db, false)
	for _, tt := range []struct {
		name string
		last history.Call
		want verdict.Result
	}{
		{"honest", history.Call{Start: 50, End: 70, Token: 2, First: 16, Last: 20}, verdict.Pass},
		{"unheard of", history.Call{Start: 50, End: 70, Token: 2, First: 21, Last: 21}, verdict.Fail},
		{"of another token", history.Call{Start: 50, End: 70, Token: 3, First: 16, Last: 20}, verdict.Fail},
		{"across two allocations", history.Call{Start: 50, End: 70, Token: 2, First: 15, Last: 16}, verdict.Fail},
	} {
		h := files{"calls": {
			history.Run{Experiment: "load", Group: "billing", At: 1, Checks: []string{"sequence", "ledger"}},
			history.Call{Start: 10, End: 20, Token: 1, First: 3, Last: 3},
			history.Call{Start: 30, End: 40, Token: 2, First: 11, Last: 14},
			tt.last,
		}}
		r, err := Dir(t.Context(), h.save(t), Options{DB: db})
		if err != nil {
			t.Fatal(err)
		}
		v, _ := r.Verdict("ledger")
		if v.Result != tt.want || v.Count("calls compared") != 3 {
			t.Errorf("%s: %v", tt.name, v)
		}
		if tt.want == verdict.Fail && v.Findings[0].At[0] != (history.Place{File: "calls.ndjson", Line: 4}) {
			t.Errorf("%s: %v", tt.name, v.Findings)
		}
		if tt.want == verdict.Pass && (!r.Passed() || r.Callers != verdict.Callers{Calls: 3, Numbers: 10, First: 3, Last: 20, Tokens: 2, SilenceMS: 0.00003}) {
			t.Errorf("%+v, %v", r.Callers, r.Verdicts)
		}
	}
}
