package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tenurehq/tenure/clock"
)

// What is written by many at once is all there, and read in the order of time.
func TestWriteRead(t *testing.T) {
	dir := t.TempDir()
	const writers, each = 8, 500
	var wg sync.WaitGroup
	for file := range 2 {
		w, err := Create(dir, fmt.Sprint("calls-", file), 0)
		if err != nil {
			t.Fatal(err)
		}
		for n := range writers {
			wg.Go(func() {
				for i := range clock.Instant(each) {
					if err := w.Write(Call{Start: i, End: 10*i + clock.Instant(n), First: 1, Last: 1}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n, last := 0, clock.Instant(0)
	err := ordered(t.Context(), dir, func(string) bool { return true }, func(e Event, at Place) {
		if n++; e.when() < last || at.Line == 0 {
			t.Fatalf("%v at %v after %v", e.when(), at, last)
		}
		last = e.when()
	}, func(h *historyError) { t.Error(h) })
	if err != nil || n != 2*writers*each {
		t.Fatalf("%d events, %v", n, err)
	}
}

// A disk that is full is said so, at once or at Close at the latest, and by every call
// after it.
func TestDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	w := newWriter("calls.ndjson", full, 0)
	if err := w.Write(Call{}); err != nil {
		t.Fatalf("the first line is not written yet: %v", err)
	}
	for range 2 {
		if err := w.Close(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "no room left") {
			t.Fatalf("got %v", err)
		}
	}
	if err := w.Write(Call{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v", err)
	}
}

// A history that reaches its limit says so, keeps what it has, and is not whole.
func TestLimit(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, "calls", 500)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; err == nil; n++ {
		err = w.Write(Call{Start: 1, End: 2, First: 3, Last: 3})
	}
	if !errors.Is(err, ErrFull) || !errors.Is(w.Close(), ErrFull) {
		t.Fatalf("got %v", err)
	}
	r, err := Dir(t.Context(), dir, Options{Checks: []string{"sequence"}})
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := r.Verdict("history"); v.Result != Unknown || v.Findings[0].At[0].File != "calls.ndjson" {
		t.Errorf("%v", v)
	}
	if v, _ := r.Verdict("sequence"); v.Count("calls answered") != int64(n-1) {
		t.Errorf("%d were written; %v", n-1, v)
	}
}

// A second run does not overwrite the first.
func TestCreateTwice(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, "calls", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	if _, err := Create(dir, "calls", 0); !errors.Is(err, os.ErrExist) || !strings.Contains(err.Error(), "directory of its own") {
		t.Fatalf("got %v", err)
	}
}

// A file that is damaged anywhere leaves the history in doubt, with the line.
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
		"endless line": {func(l []string) []string { l[2] = strings.Repeat("x", maxLine+1); return l }, 3},
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
			if v.Result != Unknown || r.Passed() {
				t.Fatalf("%v", v)
			}
			if at := v.Findings[0].At[0]; at.File != "calls.ndjson" || c.line != 0 && at.Line != c.line {
				t.Fatalf("%v, want line %d", v, c.line)
			}
		})
	}
}

// A directory without a history is said to be one, and a check can be stopped.
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

// No line, however strange, does more than leave a doubt.
func FuzzLine(f *testing.F) {
	for _, events := range good(1) {
		for _, e := range events[:min(3, len(events))] {
			line, err := encode(e)
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
