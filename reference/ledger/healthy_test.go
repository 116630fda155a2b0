package ledger

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
)

// handClock is a clock that the test advances.
type handClock struct {
	clock.Clock
	at atomic.Int64
}

func (c *handClock) Now() clock.Instant { return clock.Instant(c.at.Load()) }

// A ledger that cannot write reports that, even if nobody writes, and reports that it is
// healthy again once it can. However many callers ask, it probes only from time to time, and
// not while others write.
func TestHealthyCanWrite(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	var commits atomic.Int64
	now := &handClock{Clock: clock.System()}
	now.at.Store(1)
	cfg := Config{DB: filepath.Join(t.TempDir(), "ledger.db"), Logger: slog.New(slog.DiscardHandler), Clock: now}
	l, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	l.db.Commit = func(ctx context.Context, x *database.Tx) error {
		commits.Add(1)
		if full.Load() {
			return errors.New("database or disk is full")
		}
		return database.Commit(ctx, x)
	}
	seal := func(token fence.Token) error {
		return l.Seal(t.Context(), "r", fence.Stamp{Deployment: "d", Group: "g", Token: token}, "n")
	}
	asked := func(what string, wantCommits int64, wantErr string) {
		t.Helper()
		before := commits.Load()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				_, err := l.Health(t.Context(), api.Identity{})
				if wantErr == "" && err != nil || wantErr != "" && (!errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), wantErr)) {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		all.Wait()
		if n := commits.Load() - before; n != wantCommits {
			t.Errorf("%s: 20 health checks made %d commits, want %d", what, n, wantCommits)
		}
	}
	if err := seal(1); err != nil {
		t.Fatal(err)
	}
	asked("right after a write", 0, "")
	now.at.Add(int64(probeEvery))
	asked("when nobody has written lately", 1, "")
	asked("right after a probe", 0, "")
	full.Store(true)
	now.at.Add(int64(probeEvery))
	asked("on a full disk that nobody has noticed yet", 1, "disk is full")
	asked("soon after that", 0, "disk is full")
	now.at.Add(int64(probeEvery))
	if err := seal(2); !errors.Is(err, api.ErrUnknown) {
		t.Fatalf("on a full disk: %v", err)
	}
	asked("still on a full disk", 1, "disk is full")
	full.Store(false)
	now.at.Add(int64(probeEvery))
	asked("with space again", 1, "")
	if err := seal(3); err != nil {
		t.Error(err)
	}
	full.Store(true)
	if err := seal(4); !errors.Is(err, api.ErrUnknown) {
		t.Fatalf("on a full disk: %v", err)
	}
	now.at.Add(int64(probeEvery))
	asked("when a write has failed after one that was made", 1, "disk is full")
}
