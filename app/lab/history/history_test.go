package history_test

import (
	"database/sql"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/app/lab/history"
	"github.com/tenurehq/tenure/clock"
)

// honest is n calls on four connections, as a fleet with one failover answers them.
func honest(n int) []history.Call {
	var calls []history.Call
	for i := range n {
		at := clock.Instant(1000 + i*100)
		token := uint64(5)
		if i > n/2 {
			token = 6
		}
		calls = append(calls, history.Call{Start: at, End: at + 350, Token: token, First: uint64(1 + 3*i), Last: uint64(3 + 3*i)})
	}
	return calls
}

// What several recorders wrote is read back, in both forms, and nothing is made up.
func TestRoundTrip(t *testing.T) {
	for _, name := range []string{"h.bin", "h.ndjson"} {
		path := filepath.Join(t.TempDir(), name)
		w, err := history.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		want := honest(40_000)
		var all sync.WaitGroup
		for k := range 4 {
			all.Go(func() {
				r := w.Recorder()
				for i := k; i < len(want); i += 4 {
					if err := r.Add(want[i]); err != nil {
						t.Error(err)
					}
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := history.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(got, func(a, b history.Call) int { return int(a.First) - int(b.First) })
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d calls, want %d; or they differ", name, len(got), len(want))
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.1f bytes a call", name, float64(info.Size())/float64(len(want)))
	}
}

// A history whose end is missing says so; a file that is none is refused.
func TestTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h")
	w, err := history.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	r := w.Recorder()
	for _, c := range honest(20_000) {
		if err := r.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-100); err != nil {
		t.Fatal(err)
	}
	calls, err := history.Read(path)
	if !errors.Is(err, io.ErrUnexpectedEOF) || len(calls) == 0 || len(calls) >= 20_000 {
		t.Errorf("%d calls, %v", len(calls), err)
	}
	if err := os.WriteFile(path, []byte("something else entirely"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := history.Read(path); err == nil {
		t.Error("a file that is no history was read")
	}
}

// The checker accepts what a fleet may do, calls that overlap in any order among it,
// and sees every way in which a sequence can break its promise.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func([]history.Call)
		want  string // of the first example; "" is no breach
	}{
		{"honest", func([]history.Call) {}, ""},
		{"numbers were skipped", func(c []history.Call) {
			for i := 500; i < len(c); i++ {
				c[i].First, c[i].Last = c[i].First+1000, c[i].Last+1000
			}
		}, ""},
		{"calls that overlap, the later one first", func(c []history.Call) {
			c[10].First, c[10].Last, c[11].First, c[11].Last = c[11].First, c[11].Last, c[10].First, c[10].Last
		}, ""},
		{"a number twice", func(c []history.Call) { c[11].First, c[11].Last = c[10].First, c[10].Last }, "both given away"},
		{"ranges that overlap by one", func(c []history.Call) { c[10].Last++ }, "both given away"},
		{"back in time", func(c []history.Call) {
			c[100].First, c[100].Last, c[200].First, c[200].Last = c[200].First, c[200].Last, c[100].First, c[100].Last
		}, "after"},
		{"a token that goes back", func(c []history.Call) { c[900].Token = 5 }, "token"},
		{"a token too early", func(c []history.Call) { c[3].Token = 7 }, "token"},
		{"no range", func(c []history.Call) { c[50].Last = c[50].First - 1 }, "no range"},
		{"time backwards", func(c []history.Call) { c[50].End = c[50].Start - 1 }, "before it began"},
	} {
		calls := honest(1000)
		tt.spoil(calls)
		r := history.Check(calls)
		if tt.want == "" && r.Breaches != 0 || tt.want != "" && r.Breaches == 0 {
			t.Errorf("%s: %d breaches: %v", tt.name, r.Breaches, r.Examples)
		}
		if tt.want != "" && !strings.Contains(strings.Join(r.Examples, "\n"), tt.want) {
			t.Errorf("%s: %v, want something about %q", tt.name, r.Examples, tt.want)
		}
		if tt.name == "honest" && (r.Calls != 1000 || r.IDs != 3000 || r.Last != 3000 || r.Tokens != 2) {
			t.Errorf("%+v", r)
		}
	}
}

// The lag query and the comparison with the callers see a ledger that gave a number
// twice, went back in tokens, or does not know what a caller has.
func TestCheckLedger(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil string
		calls []history.Call
		want  string
	}{
		{"honest", "", []history.Call{{First: 3, Last: 3, Token: 5}, {First: 11, Last: 20, Token: 6}}, ""},
		{"twice", "UPDATE allocation SET first_seq = 10 WHERE n = 2", nil, "allocation 2"},
		{"token back", "UPDATE allocation SET token = 4 WHERE n = 2", nil, "token 4"},
		{"unheard of", "", []history.Call{{First: 31, Last: 31, Token: 6}}, "knows nothing"},
		{"another token", "", []history.Call{{First: 12, Last: 12, Token: 5}}, "the ledger gave"},
		{"across two", "", []history.Call{{First: 10, Last: 11, Token: 5}}, "the ledger gave"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.db")
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			for _, q := range []string{
				"CREATE TABLE allocation (resource TEXT, name TEXT, n INTEGER, first_seq INTEGER, last_seq INTEGER, token INTEGER, at_ms INTEGER, PRIMARY KEY (resource, name, n))",
				"INSERT INTO allocation VALUES ('g', 'next', 1, 1, 10, 5, 0), ('g', 'next', 2, 11, 20, 6, 0), ('g', 'next', 3, 21, 30, 6, 0), ('other', 'next', 1, 1, 99, 1, 0)",
				tt.spoil,
			} {
				if _, err := db.ExecContext(t.Context(), q); err != nil {
					t.Fatal(err)
				}
			}
			ro, err := history.Open(path, true)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = ro.Close() }()
			r, err := history.CheckLedger(t.Context(), ro, "g", "next", tt.calls)
			if err != nil {
				t.Fatal(err)
			}
			if (tt.want == "") != (r.Breaches == 0) || !strings.Contains(strings.Join(r.Examples, "\n"), tt.want) {
				t.Errorf("%d breaches %v, want %q", r.Breaches, r.Examples, tt.want)
			}
			if r.Calls != 3 || r.Last != 30 {
				t.Errorf("%+v", r)
			}
		})
	}
}
