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

// This program also runs the candidates.
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

// wait bounds every wait for an event that must come. It is long, since machines are slow.
const wait = 3 * time.Minute

// until waits until a condition holds.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	if !within(wait, is) {
		t.Fatalf("in vain: %s", what)
	}
}

// within waits until a condition holds, for a limited time.
func within(d time.Duration, is func() bool) bool {
	for began := time.Now(); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > d {
			return false
		}
	}
	return true
}

// row collects the cells of a test, and saves them for the page when the test ends.
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

// used records a version.
func (r *row) used(name, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n.Versions[name] = version
}

// usedModule records the version of a module in go.mod.
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

// keep replaces the notes of an earlier run only if the new ones are complete.
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

// seconds formats a duration for a cell.
func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
