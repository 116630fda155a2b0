package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
	"github.com/tenurehq/tenure/reference/ledger/state"
)

// patience bounds how long a group waits for more ops.
const patience = 10 * time.Millisecond

// run commits group after group until the queue is closed and empty.
func (l *Ledger) run() {
	defer close(l.stopped)
	size, took := 0, time.Duration(0)
	for !l.queue.drained() {
		group := l.queue.take(l.cfg.Group, size, min(took/2, patience))
		if len(group) == 0 {
			continue
		}
		began := time.Now()
		l.commit(group)
		size, took = len(group), time.Since(began)
	}
}

// commit makes a group durable and then answers.
func (l *Ledger) commit(group []*op) {
	l.began.Store(int64(l.cfg.Clock.Now()))
	defer l.began.Store(0)
	began := time.Now()
	verdicts, err := l.transact(group)
	l.metrics.committed(len(group), time.Since(began), err)
	if database.Poisoned(err) && len(group) > 1 {
		half := len(group) / 2
		l.commit(group[:half])
		l.commit(group[half:])
		return
	}
	if err != nil {
		l.writeFailed.Store(!database.Poisoned(err))
		l.cfg.Logger.Error("commit failed", "batches", len(group), "err", err)
		for _, o := range group {
			o.finish(state.Verdict{Err: err})
		}
		return
	}
	now := l.cfg.Clock.Now()
	if l.wrote.Load() >= l.began.Load() {
		l.writeFailed.Store(false)
	}
	for i, o := range group {
		l.metrics.judged(o, verdicts[i], now)
		o.finish(verdicts[i])
	}
}

// transact runs the group's transaction. An error is api.ErrUnknown, api.ErrUnavailable or
// api.ErrDataLost.
func (l *Ledger) transact(group []*op) ([]state.Verdict, error) {
	ctx := context.Background()
	if l.db.Dialect == sqlfence.Postgres {
		// SQLite is in this process and cannot hang; interrupting a commit would only make its
		// outcome unknown.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.cfg.Timeout)
		defer cancel()
	}
	const attempts = 3
	for attempt := 1; ; attempt++ {
		verdicts, err := l.attempt(ctx, group)
		switch {
		case err == nil:
			return verdicts, nil
		case errors.Is(err, api.ErrUnknown), errors.Is(err, api.ErrDataLost):
			return nil, err
		case database.Repeatable(err) && attempt < attempts:
			continue
		}
		return nil, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
}

func (l *Ledger) attempt(ctx context.Context, group []*op) ([]state.Verdict, error) {
	if err := l.db.Intact(); err != nil {
		return nil, err
	}
	verdicts := make([]state.Verdict, len(group))
	changed := false
	var now identity
	err := l.db.Within(ctx, func(t *database.Tx) (err error) {
		s := l.cfg.state()
		if now, changed, err = l.identify(ctx, t, group, verdicts, s.NowMS); err != nil {
			return err
		}
		for i, o := range group {
			switch {
			case verdicts[i].Err != nil:
			case o.kind == share:
				s.WantShared(*o.shared)
			case o.kind < share:
				s.Want(o.batch)
			}
		}
		if err := s.Load(ctx, t); err != nil {
			return err
		}
		for i, o := range group {
			switch {
			case verdicts[i].Err != nil:
			case o.kind == probe:
				changed = true
			case o.kind == share:
				verdicts[i] = s.Share(*o.shared)
			case o.kind < share:
				verdicts[i] = s.Apply(o.kind, o.batch)
			}
		}
		saved, err := s.Save(ctx, t, l.cfg.History, l.cfg.Rejections)
		if err != nil {
			return err
		}
		if changed = changed || saved; !changed {
			return database.ErrNothing
		}
		// This is the last statement, because ledgers on one PostgreSQL wait for each other
		// here. It also makes a probe change something: SQLite writes no page that stays the
		// same.
		return t.QueryRow(ctx, "UPDATE ledger_identity SET revision = revision + 1 RETURNING revision").Scan(&now.Revision)
	})
	if err == nil && changed {
		l.wrote.Store(int64(l.cfg.Clock.Now()))
		if gone := l.db.Intact(); gone != nil {
			err = fmt.Errorf("%w: %w", api.ErrUnknown, gone)
		}
	}
	if err != nil {
		return nil, err
	}
	l.known.Store(&now.Identity)
	for i := range verdicts {
		verdicts[i].Answer.Ledger = now.Identity
	}
	return verdicts, nil
}

// identify reads which ledger the database holds and refuses the ops of callers that have seen
// another. If anybody has seen a later revision, it refuses all ops and records that, so that
// callers who have seen less are refused too, also after a restart.
func (l *Ledger) identify(ctx context.Context, t *database.Tx, group []*op, verdicts []state.Verdict, nowMS int64) (now identity, changed bool, err error) {
	if now, err = identityIn(ctx, t); err != nil {
		return now, false, err
	}
	if err := expected(ctx, t, now, *l.known.Load()); err != nil {
		return now, false, err
	}
	before := now.seen
	behind := func(seen api.Identity) {
		if seen.ID == now.ID && seen.Revision > now.Revision {
			now.seen = max(now.seen, seen.Revision)
		}
	}
	behind(*l.known.Load())
	for i, o := range group {
		behind(o.seen)
		if err := expected(ctx, t, now, o.seen); errors.Is(err, api.ErrDataLost) {
			verdicts[i].Err = err
		} else if err != nil {
			return now, false, err
		}
	}
	if now.seen > 0 {
		for i := range group {
			verdicts[i].Err = now.lost()
		}
	}
	if now.seen > before {
		changed = true
		l.cfg.Logger.Error("the database has lost data; writes are refused until an operator accepts its state", "id", now.ID, "revision", now.Revision, "seen", now.seen)
		if err := t.Run(ctx, "UPDATE ledger_identity SET seen = $1", int64(now.seen)); err != nil {
			return now, false, err
		}
	}
	for i, o := range group {
		if o.kind == accept {
			if verdicts[i].Err = acceptState(ctx, t, &now, o.replaces, o.batch.Holder, nowMS); verdicts[i].Err == nil {
				changed = true
			}
		}
	}
	return now, changed, nil
}
