package ledger

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tenurehq/tenure/app/ledger/api"
	"github.com/tenurehq/tenure/fence"
)

// A ledger that cannot write says so, also when nobody writes any more, and is healthy
// again when it can, without anybody having written.
func TestHealthyCanWrite(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	var made atomic.Int64
	cfg := Config{DB: filepath.Join(t.TempDir(), "ledger.db"), Logger: slog.New(slog.DiscardHandler)}
	l, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	l.store.commit = func(ctx context.Context, x *tx) error {
		if full.Load() {
			return errors.New("database or disk is full")
		}
		made.Add(1)
		return commit(ctx, x)
	}
	seal := func(token fence.Token) error {
		return l.Seal(t.Context(), "r", fence.Stamp{Deployment: "d", Group: "g", Token: token}, "n")
	}
	if err := errors.Join(seal(1), l.Healthy(t.Context())); err != nil {
		t.Fatal(err)
	}
	if made.Load() != 1 {
		t.Errorf("%d commits: one that is well makes none to find out", made.Load())
	}
	full.Store(true)
	if err := l.Healthy(t.Context()); err != nil {
		t.Errorf("before anybody noticed: %v", err)
	}
	if err := seal(2); !errors.Is(err, api.ErrUnknown) {
		t.Fatalf("on a full disk: %v", err)
	}
	for range 2 {
		if err := l.Healthy(t.Context()); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("on a full disk: %v", err)
		}
	}
	full.Store(false)
	if err := l.Healthy(t.Context()); err != nil {
		t.Errorf("with space again: %v", err)
	}
	var probes int
	if err := l.store.reader.QueryRowContext(t.Context(), "SELECT value FROM ledger_counter WHERE name = 'probe'").Scan(&probes); err != nil || probes != 1 {
		t.Errorf("%d probes were written, %v: one that writes nothing finds nothing out", probes, err)
	}
	if err := seal(3); err != nil {
		t.Error(err)
	}
}
