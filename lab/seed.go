package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/ledgerdb"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// SeedConfig describes the jobs to fill a ledger with.
type SeedConfig struct {
	// DB is a SQLite file that no ledger uses, or a postgres:// URL.
	DB string
	// Resource is the group of the jobs, N their number.
	Resource string
	N        uint64
	// First is when the first is due, Every the time to the next.
	First time.Time
	Every time.Duration
	// Progress, if given, is called with the number of jobs written.
	Progress func(done uint64)
}

// Seed fills a ledger with jobs that each fire once. A resource that has been written to keeps
// its mark. Another gets no mark, so that any fleet's first leader is accepted.
func Seed(ctx context.Context, cfg SeedConfig) error {
	mark, fresh, err := markOf(ctx, cfg.DB, cfg.Resource)
	if err != nil {
		return err
	}
	err = ledger.Seed(ctx, ledger.Config{DB: cfg.DB}, cfg.Resource, mark, cfg.N, cfg.First.UnixMilli(), cfg.Every.Milliseconds(), json.RawMessage(`{}`), cfg.Progress)
	if err != nil || !fresh {
		return err
	}
	db, err := ledgerdb.Open(cfg.DB, true)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, "DELETE FROM tenure_mark WHERE resource = $1 AND deployment = 'seed'", cfg.Resource); err != nil {
		return fmt.Errorf("remove the mark that was needed to fill the ledger: %w", err)
	}
	return nil
}

// markOf is the stamp of the resource's last writer. fresh: there is none.
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
