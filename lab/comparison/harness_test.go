package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A candidate is this program again.
func TestMain(m *testing.M) {
	if text := os.Getenv(candidateEnv); text != "" {
		if err := standAsCandidate(text); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// wait bounds everything that is waited for and bound to come: machines are slow.
const wait = 3 * time.Minute

// until waits for something to become true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	if !within(wait, is) {
		t.Fatalf("in vain: %s", what)
	}
}

// within waits for something to become true, but no longer.
func within(d time.Duration, is func() bool) bool {
	for began := time.Now(); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > d {
			return false
		}
	}
	return true
}

// A row collects the cells of a test, and keeps them for the page when it has ended.
type row struct {
	t *testing.T

	mu sync.Mutex
	n  note
}

func newRow(t *testing.T) *row {
	t.Helper()
	r := &row{t: t, n: note{Cells: map[string]string{}, Versions: map[string]string{}}}
	t.Cleanup(r.keep)
	return r
}

// say fills a cell.
func (r *row) say(name, format string, args ...any) {
	r.t.Helper()
	if !slices.Contains(columns(r.t.Name()), name) {
		r.t.Errorf("there is no cell for %s in a row of %s: see tables", name, r.t.Name())
	}
	text := fmt.Sprintf(format, args...)
	r.t.Logf("%s: %s", name, text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n.Cells[name] = text
}

// used notes a version.
func (r *row) used(name, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n.Versions[name] = version
}

// usedModule notes a version that go.mod chose.
func (r *row) usedModule(path string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), wait)
	defer cancel()
	version, err := goCommand(ctx, ".", "list", "-m", "-f", "{{.Version}}", path)
	if err != nil {
		r.t.Error(err)
	}
	r.used(path, strings.TrimPrefix(strings.TrimSpace(string(version)), "v"))
}

// keep replaces what an earlier run saw only by something whole.
func (r *row) keep() {
	if r.t.Failed() || len(r.n.Cells) != len(columns(r.t.Name())) {
		return
	}
	r.n.When = time.Now().UTC().Format(time.DateOnly)
	text, err := json.MarshalIndent(r.n, "", "  ")
	if err != nil {
		r.t.Error(err)
		return
	}
	dir, err := notesDir()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, r.t.Name()+".json"), text, 0o644)
	}
	if err != nil {
		r.t.Error(err)
	}
}

// seconds is for cells: nobody needs the microseconds.
func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
