package check

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// A history that reaches its size limit returns an error, keeps what it has, and is not
// complete.
func TestLimit(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "calls"+extension))
	if err != nil {
		t.Fatal(err)
	}
	w := history.NewWriter("calls", f, 500)
	n := 0
	for ; err == nil; n++ {
		err = w.Write(history.Call{Start: 1, End: 2, First: 3, Last: 3})
	}
	if !errors.Is(err, history.ErrFull) || !errors.Is(w.Close(), history.ErrFull) {
		t.Fatalf("got %v", err)
	}
	r, err := Dir(t.Context(), dir, Options{Checks: []string{"sequence"}})
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := r.Verdict("history"); v.Result != verdict.Unknown || v.Findings[0].At[0].File != "calls.ndjson" {
		t.Errorf("%v", v)
	}
	if v, _ := r.Verdict("sequence"); v.Count("calls answered") != int64(n-1) {
		t.Errorf("%d were written; %v", n-1, v)
	}
}

// A damaged file makes the check "history" unknown. The finding names the line.
func TestDamaged(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(lines []string) []string
		line   int
	}{
		"cut off":      {func(l []string) []string { return l[:3] }, 3},
		"torn":         {func(l []string) []string { return append(l[:3:3], l[3][:9]) }, 4},
		"line lost":    {func(l []string) []string { return append(l[:1:1], l[2:]...) }, 0},
		"no JSON":      {func(l []string) []string { l[2] = `{"kind":"call",` + "\n"; return l }, 3},
		"no kind":      {func(l []string) []string { l[2] = "{}\n"; return l }, 3},
		"strange kind": {func(l []string) []string { l[2] = `{"kind":"guess"}` + "\n"; return l }, 3},
		"after end":    {func(l []string) []string { return append(l, l[0]) }, 0},
		"endless line": {func(l []string) []string { l[2] = strings.Repeat("x", 1<<20+1); return l }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			h := good(3)
			h["calls"] = h["calls"][:50]
			dir := h.save(t)
			path := filepath.Join(dir, "calls.ndjson")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.SplitAfter(strings.TrimSuffix(string(data), "\n"), "\n")
			lines[len(lines)-1] += "\n"
			if err := os.WriteFile(path, []byte(strings.Join(c.damage(lines), "")), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Dir(t.Context(), dir, Options{Checks: []string{"sequence"}})
			if err != nil {
				t.Fatal(err)
			}
			v, _ := r.Verdict("history")
			if v.Result != verdict.Unknown || r.Passed() {
				t.Fatalf("%v", v)
			}
			if at := v.Findings[0].At[0]; at.File != "calls.ndjson" || c.line != 0 && at.Line != c.line {
				t.Fatalf("%v, want line %d", v, c.line)
			}
		})
	}
}

// A directory without a history is an error. A check ends with its context.
func TestNoHistory(t *testing.T) {
	dir := t.TempDir()
	for _, dir := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := Dir(t.Context(), dir, Options{}); err == nil || !strings.Contains(err.Error(), "no history") {
			t.Errorf("got %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dir(ctx, good(1).save(t), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// No line causes a panic or a violation, at most a doubt.
func FuzzLine(f *testing.F) {
	for _, events := range good(1) {
		for _, e := range events[:min(3, len(events))] {
			line, err := history.Encode(e)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(line)
		}
	}
	f.Add([]byte(`{"kind":"call","start":9223372036854775807,"end":-9223372036854775808,"first":18446744073709551615,"last":18446744073709551615}`))
	f.Add([]byte(`{"kind":"call","start":1,"end":9223372036854775807,"first":1,"last":1}`))
	f.Add([]byte(`{"kind":"run","at":9223372036854775807,"ttl_ms":9223372036854775807}`))
	f.Add([]byte(`{"kind":"end","lines":-1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "x.ndjson"), append(line, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Dir(t.Context(), dir, Options{Checks: Names()})
		if err != nil {
			t.Fatal(err)
		}
		if r.Passed() {
			t.Fatal("one line passed everything")
		}
	})
}
