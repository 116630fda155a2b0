package trial

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/ledgerdb"
	"github.com/tenurehq/tenure/lab/verdict"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/ledger"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// The trace of a node that was killed has the write that was under way, and its second process
// is another observer. A trace with a missing or torn line is an error.
func TestCollect(t *testing.T) {
	t.Parallel()
	whole := []labapi.TraceLine{
		{Kind: labapi.TraceOpened, PID: 1, N: 1, At: 9},
		{Kind: api.TraceBegan, PID: 1, N: 2, At: 10, Token: 1},
		{Kind: api.TraceLed, PID: 1, N: 3, At: 11, Token: 1, What: "node-1"},
		{Kind: api.TraceAttempt, PID: 1, N: 4, At: 20, Token: 1, Writes: []history.Write{{What: "tick", Name: "tick-1000"}}},
		{Kind: api.TraceAttempt, PID: 1, N: 5, At: 21, Token: 1},
		{Kind: api.TraceDone, PID: 1, N: 6, At: 20, End: 25, Token: 1, What: "ok"},
		{Kind: labapi.TraceOpened, PID: 2, N: 1, At: 39},
		{Kind: api.TraceVacant, PID: 2, N: 2, At: 40, Token: 1},
		{Kind: api.TraceSealed, PID: 1, N: 7, At: 12, End: 14, Token: 1},
		{Kind: api.TraceMissed, PID: 1, N: 8, At: 15},
	}
	text := func(lines []labapi.TraceLine) string {
		var b strings.Builder
		for _, l := range lines {
			data, err := json.Marshal(l)
			if err != nil {
				t.Fatal(err)
			}
			b.WriteString(string(data) + "\n")
		}
		return b.String()
	}
	for _, tt := range []struct {
		name, trace string
		pids        []int
		bad         bool
	}{
		{"whole", text(whole), []int{1, 2}, false},
		{"hole", text(append(slices.Clone(whole[:3]), whole[5:]...)), []int{1, 2}, true},
		{"a line removed", text(append(slices.Clone(whole[:2]), whole[3:]...)), []int{1, 2}, true},
		{"torn", text(whole[:3]) + `{"kind":"att`, []int{1, 2}, true},
		{"a line lost", text(whole), []int{1}, true},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "node-1.trace")
		if err := os.WriteFile(path, []byte(tt.trace), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, pid := range tt.pids {
			if err := os.WriteFile(filepath.Join(dir, labapi.TraceWhole("node-1", pid)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		effects, err := collectNode(filepath.Join(dir, "history"), path)
		if (err != nil) != tt.bad {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil {
			continue
		}
		r, err := check.Dir(t.Context(), filepath.Join(dir, "history"), check.Options{Checks: []string{"token-order", "fence", "no-zombie"}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Terms) != 1 || r.Terms[0].Attempts != 2 || r.Terms[0].LastAttempt != 21 {
			t.Errorf("the write under way was lost: %+v", r.Terms)
		}
		if v, _ := r.Verdict("fence"); v.Count("seals") != 1 {
			t.Errorf("the seal was lost: %+v", v)
		}
		if want := []Effect{{"node-1", 1, 20, 20}}; !slices.Equal(effects, want) {
			t.Errorf("took effect: %+v, want %+v", effects, want)
		}
	}
}

// filled returns a ledger to which one leader wrote, then another, and then the first one
// again, zombie times, which the ledger refused.
func filled(t *testing.T, zombie, keep int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger.db")
	l, err := ledger.Open(t.Context(), ledger.Config{DB: path, Rejections: keep, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	write := func(token fence.Token, writes ...ledgerapi.Write) error {
		_, err := l.Apply(t.Context(), ledgerapi.Batch{Resource: Group, Stamp: fence.Stamp{Deployment: "lab", Group: Group, Token: token}, Writes: writes})
		return err
	}
	job := ledgerapi.Write{Job: &ledgerapi.JobWrite{Key: "every", NextMS: 1000, Schedule: "@every 1s", Misfire: ledgerapi.MisfireAll}}
	if err := write(1, job); err != nil {
		t.Fatal(err)
	}
	for i, token := range []fence.Token{1, 1, 2, 2} {
		n, due := uint64(i), int64(i+1)*1000
		if err := write(token,
			ledgerapi.Write{Sequence: &ledgerapi.SequenceWrite{Name: api.Sequence, First: 5*n + 1, Last: 5*n + 5}},
			ledgerapi.Write{Tick: &ledgerapi.TickWrite{}},
			ledgerapi.Write{Fire: &ledgerapi.FireWrite{Job: "every", DueMS: due, AtMS: due, NextMS: due + 1000}},
			ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: "cursor", Value: []byte("1")}}); err != nil {
			t.Fatal(err)
		}
	}
	for range zombie {
		if err := write(1, ledgerapi.Write{Tick: &ledgerapi.TickWrite{}}); err == nil {
			t.Fatal("the zombie's write was taken")
		}
	}
	return path
}

// Stale writes that were accepted are counted from the rows, even if the ledger's own list of
// rejections does not have them.
func TestDamage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, plant string
		want        Damage
	}{
		{"fenced", "SELECT 1", Damage{Refused: 3}},
		{"a stale allocation", "INSERT INTO allocation SELECT resource, name, n + 1, last_seq + 1, last_seq + 5, 1, at_ms FROM allocation WHERE n = 4", Damage{Refused: 3, Applied: 1}},
		{"a number given twice, too", "INSERT INTO allocation SELECT resource, name, n + 1, first_seq, last_seq, 1, at_ms FROM allocation WHERE n = 4", Damage{Refused: 3, Applied: 1, Reused: 5}},
		{"a stale tick", "INSERT INTO tick SELECT resource, n + 1, 1, seq, '', payload, at_ms FROM tick WHERE n = 4", Damage{Refused: 3, Applied: 1}},
		{"a stale firing", "UPDATE firing SET token = 1 WHERE n = 4", Damage{Refused: 3, Applied: 1}},
		{"by its own word", "UPDATE rejection SET applied = 1", Damage{Applied: 3}},
	} {
		path := filled(t, 3, 0)
		db, err := ledgerdb.Open(path, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), tt.plant); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := damageOf(t.Context(), path); err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v; want %+v", tt.name, got, err, tt.want)
		}
	}
}

// The ticks, firings, checkpoints and refused writes of the ledger are in the history. A ledger
// that has dropped some is an error.
func TestCollectLedger(t *testing.T) {
	t.Parallel()
	collected := func(path string) (string, error) {
		dir := t.TempDir()
		w, err := history.Create(dir, "ledger")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(history.Run{Group: Group, At: 1, TTLMS: 1000, Jobs: []history.Job{{Key: "every", FirstMS: 1000, EveryMS: 1000, LastMS: 4000}}}); err != nil {
			t.Fatal(err)
		}
		err = collectLedger(t.Context(), w, path)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return dir, err
	}
	dir, err := collected(filled(t, 3, 0))
	if err != nil {
		t.Fatal(err)
	}
	r, err := check.Dir(t.Context(), dir, check.Options{Checks: []string{"fence", "once"}})
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := r.Verdict("fence"); v.Result != verdict.Pass || v.Count("effects accepted") != 13 || v.Count("effects refused") != 3 {
		t.Errorf("%v", v)
	}
	if v, _ := r.Verdict("once"); v.Result != verdict.Pass || v.Count("ticks") != 4 || v.Count("firings") != 4 || v.Count("jobs that were declared") != 1 {
		t.Errorf("%v", v)
	}
	if _, err := collected(filled(t, 3, 2)); err == nil || !strings.Contains(err.Error(), "refused writes") {
		t.Errorf("of three refused writes two are kept: %v", err)
	}
}
