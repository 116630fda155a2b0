package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// probeEvery is how old the last successful write may be. Health checks share a probe, so their
// number does not matter.
const probeEvery = 500 * time.Millisecond

// Health is an error unless the ledger can read, is not stuck in a commit, can write, and has
// everything that the caller has seen. If nothing was written lately, it writes a probe: a full
// disk can still be read.
func (l *Ledger) Health(ctx context.Context, seen api.Identity) (api.Identity, error) {
	if began := l.began.Load(); began != 0 {
		if stuck := time.Duration(int64(l.cfg.Clock.Now()) - began); stuck > 2*l.cfg.Timeout {
			return api.Identity{}, fmt.Errorf("%w: a commit has been under way for %v", api.ErrUnavailable, stuck)
		}
	}
	now, err := l.Verify(ctx, seen)
	if err == nil {
		err = l.writable(ctx)
	}
	return now, err
}

// Verify returns an error if the ledger has lost data, as far as it or the caller knows.
func (l *Ledger) Verify(ctx context.Context, seen api.Identity) (api.Identity, error) {
	now, err := l.identity(ctx)
	switch {
	case err != nil:
		return now.Identity, err
	case now.seen > 0:
		return now.Identity, now.lost()
	case seen.ID == "" || seen.ID == now.ID && seen.Revision <= now.Revision:
		return now.Identity, nil
	}
	// The commit decides whether data was lost, and records it.
	v := l.wait(ctx, &op{kind: probe, seen: seen})
	return v.Answer.Ledger, v.Err
}

// writable returns an error if the ledger cannot write.
func (l *Ledger) writable(ctx context.Context) error {
	fresh := func(at int64) bool { return at != 0 && l.cfg.Clock.Now().Sub(clock.Instant(at)) < probeEvery }
	if fresh(l.wrote.Load()) && !l.writeFailed.Load() {
		return nil
	}
	select {
	case l.probing <- struct{}{}:
		defer func() { <-l.probing }()
	case <-ctx.Done():
		return fmt.Errorf("%w: another health check has not ended: %w", api.ErrUnavailable, context.Cause(ctx))
	}
	if fresh(l.probed) {
		return l.probeErr
	}
	v := l.wait(ctx, &op{kind: probe})
	if errors.Is(v.Err, api.ErrBusy) && !l.writeFailed.Load() {
		return nil // other callers write
	}
	if v.Err != nil && !errors.Is(v.Err, api.ErrDataLost) {
		v.Err = fmt.Errorf("%w: it cannot write: %s", api.ErrUnavailable, v.Err.Error()) // the outcome of a probe does not matter
	}
	if ctx.Err() == nil {
		l.probed, l.probeErr = int64(l.cfg.Clock.Now()), v.Err
	}
	return v.Err
}
