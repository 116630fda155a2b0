package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// SeedConfig says what jobs to fill a ledger with.
type SeedConfig struct {
	// DB is the path of a SQLite file that no ledger serves, or a postgres:// URL.
	DB string
	// Resource is the group whose jobs they are.
	Resource string
	N        uint64
	// First is when the first is due, Every how long after it the next.
	First time.Time
	Every time.Duration
	// Progress, if given, is told how many there are.
	Progress func(done uint64)
}

// Seed fills a ledger with jobs that are each fired once. A resource that has been
// written to keeps its mark; one that has not gets none: the first leader that comes
// is welcome, whichever fleet it is of.
func Seed(ctx context.Context, cfg SeedConfig) error {
	mark, fresh, err := markOf(ctx, cfg.DB, cfg.Resource)
	if err != nil {
		return err
	}
	err = ledger.Seed(ctx, ledger.Config{DB: cfg.DB}, cfg.Resource, mark, cfg.N, cfg.First.UnixMilli(), cfg.Every.Milliseconds(), json.RawMessage(`{}`), cfg.Progress)
	if err != nil || !fresh {
		return err
	}
	db, err := check.OpenLedger(cfg.DB, true)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, "DELETE FROM tenure_mark WHERE resource = $1 AND deployment = 'seed'", cfg.Resource); err != nil {
		return fmt.Errorf("the mark that was needed to fill the ledger cannot be taken back: %w", err)
	}
	return nil
}

// markOf is the stamp of the resource's last writer; fresh: there is none.
func markOf(ctx context.Context, path, resource string) (s fence.Stamp, fresh bool, err error) {
	cfg := ledger.Config{DB: path}
	l, err := ledger.Open(ctx, cfg)
	if err != nil {
		return s, false, err
	}
	defer func() { _ = l.Close() }()
	r, err := l.Resource(ctx, resource)
	switch {
	case err != nil && !errors.Is(err, api.ErrNotFound):
		return s, false, err
	case err == nil && r.Token > 0:
		return fence.Stamp{Deployment: r.Deployment, Group: r.Group, Token: r.Token}, false, nil
	}
	return fence.Stamp{Deployment: "seed", Group: resource, Token: 1}, true, nil
}
