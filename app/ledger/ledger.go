package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/app/ledger/api"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// Ledger is an open ledger. It is safe for concurrent use.
type Ledger struct {
	cfg     Config
	store   *store
	queue   *queue
	metrics *metrics
	stopped chan struct{}
	began   atomic.Int64 // the commit under way, as an instant; 0: none
	wrote   atomic.Int64 // the last commit that wrote something, as an instant; 0: none
	unmade  atomic.Bool  // the last commit that had something to write failed

	// known is what the last commit saw of the database.
	known atomic.Pointer[api.Identity]

	probing  chan struct{} // held by the one that probes
	probed   int64         // when the last probe ended, and how
	probeErr error

	closing sync.Once
	closed  error
}

// Open opens the database, brings its schema up to date and begins to commit.
// api.ErrUnavailable means that it may work later: the database does not answer, or
// another process serves the file.
func Open(ctx context.Context, cfg Config) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s, err := openStore(ctx, cfg)
	if err != nil {
		return nil, err
	}
	l := &Ledger{cfg: cfg, store: s, queue: newQueue(cfg.Queue, cfg.QueueBytes), stopped: make(chan struct{}), probing: make(chan struct{}, 1)}
	l.metrics = newMetrics(cfg, l.queue.len)
	known, err := l.knownResources(ctx)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	l.metrics.know(known)
	first, err := l.Identity(ctx)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	l.known.Store(&first)
	if cfg.Unfenced {
		cfg.Logger.Warn("FENCING IS OFF: stale writes are taken as they come; for experiments only", "db", describe(cfg.DB))
	}
	go l.run()
	return l, nil
}

// Close commits what waits, and closes the database. Writes that come later are
// refused.
func (l *Ledger) Close() error {
	l.closing.Do(func() {
		l.queue.close()
		<-l.stopped
		l.closed = l.store.close()
	})
	return l.closed
}

// Apply makes a batch of writes, durable when it returns. The errors are those of
// package fence, and those of package api.
func (l *Ledger) Apply(ctx context.Context, b api.Batch) (api.Answer, error) {
	if len(b.Writes) == 0 {
		return api.Answer{}, &api.RequestError{Field: "writes", Rule: "there must be one; to raise the mark alone, seal"}
	}
	if b.Stamp.Seq > 0 && b.Digest == "" {
		sum, err := api.Sum(b.Writes)
		if err != nil {
			return api.Answer{}, &api.RequestError{Field: "writes", Rule: err.Error()}
		}
		b.Digest = sum
	}
	return l.do(ctx, write, b)
}

// Seal raises the resource's mark to the stamp's token. The seq is not looked at.
func (l *Ledger) Seal(ctx context.Context, resource string, s fence.Stamp, holder string) error {
	_, err := l.raise(ctx, seal, api.Batch{Resource: resource, Stamp: s, Holder: holder})
	return err
}

// Advance is the operator's way past the slip rule: it moves a mark up to any token,
// never down.
func (l *Ledger) Advance(ctx context.Context, resource string, s fence.Stamp, holder string) error {
	_, err := l.raise(ctx, advance, api.Batch{Resource: resource, Stamp: s, Holder: holder})
	return err
}

func (l *Ledger) raise(ctx context.Context, k kind, b api.Batch) (api.Answer, error) {
	b.Stamp.Seq = 0
	a, err := l.do(ctx, k, b)
	if err == nil && k == advance {
		l.cfg.Logger.Warn("the mark was advanced by hand", "resource", b.Resource, "stamp", b.Stamp.String(), "by", b.Holder)
	}
	return a, err
}

func (l *Ledger) do(ctx context.Context, k kind, b api.Batch) (api.Answer, error) {
	if err := b.Validate(); err != nil {
		return api.Answer{}, err
	}
	if err := b.Stamp.Validate(); err != nil {
		l.metrics.refused(err)
		return api.Answer{}, err
	}
	v := l.wait(ctx, &op{kind: k, batch: b, seen: b.Seen, size: sizeOf(b), done: make(chan struct{})})
	return v.answer, v.err
}

// wait waits for the op's commit. A caller who goes away while it still waits takes
// it back; once it is being committed, only the outcome is unknown to them.
func (l *Ledger) wait(ctx context.Context, o *op) verdict {
	if err := l.queue.push(o); err != nil {
		l.metrics.turnedAway.Inc()
		return verdict{err: err}
	}
	select {
	case <-o.done:
		return o.verdict
	case <-ctx.Done():
	}
	if o.claim() {
		return verdict{err: fmt.Errorf("%w: the caller went away first: %w", api.ErrUnavailable, context.Cause(ctx))}
	}
	return verdict{err: fmt.Errorf("%w: the caller went away during the commit: %w", api.ErrUnknown, context.Cause(ctx))}
}

// overhead is about what a write takes besides its value.
const overhead = 256

func sizeOf(b api.Batch) int {
	n := overhead
	for _, w := range b.Writes {
		n += overhead
		switch {
		case w.Tick != nil:
			n += len(w.Tick.Payload)
		case w.Checkpoint != nil:
			n += len(w.Checkpoint.Value)
		case w.Record != nil:
			n += len(w.Record.Value)
		case w.Job != nil:
			n += len(w.Job.Payload)
		}
	}
	return n
}

// patience bounds how long a group gathers.
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

// commit makes a group durable, and only then answers.
func (l *Ledger) commit(group []*op) {
	l.began.Store(int64(l.cfg.Clock.Now()))
	defer l.began.Store(0)
	began := time.Now()
	verdicts, err := l.transact(group)
	l.metrics.committed(len(group), time.Since(began), err)
	if poisoned(err) && len(group) > 1 {
		half := len(group) / 2
		l.commit(group[:half])
		l.commit(group[half:])
		return
	}
	if err != nil {
		l.unmade.Store(!poisoned(err))
		l.cfg.Logger.Error("commit failed", "batches", len(group), "err", err)
		for _, o := range group {
			o.finish(verdict{err: err})
		}
		return
	}
	now := l.cfg.Clock.Now()
	if l.wrote.Load() >= l.began.Load() {
		l.unmade.Store(false)
	}
	for i, o := range group {
		l.metrics.judged(o, verdicts[i], now)
		o.finish(verdicts[i])
	}
}

// transact runs the group's transaction. An error is api.ErrUnknown or
// api.ErrUnavailable.
func (l *Ledger) transact(group []*op) ([]verdict, error) {
	ctx := context.Background()
	if l.store.postgres {
		// SQLite is in this process: it cannot be left waiting, and to interrupt a
		// commit would only make its outcome unknown.
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
		case again(err) && attempt < attempts:
			continue
		}
		return nil, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
}

func (l *Ledger) attempt(ctx context.Context, group []*op) ([]verdict, error) {
	if err := l.store.intact(); err != nil {
		return nil, err
	}
	verdicts := make([]verdict, len(group))
	changed := false
	var now identity
	err := l.store.within(ctx, func(c *tx) (err error) {
		s := &state{unfenced: l.cfg.Unfenced, maxResources: l.cfg.Resources, nowMS: l.cfg.Now().UnixMilli()}
		s.shared.most = uint64(l.cfg.Shared)
		if now, changed, err = l.identify(ctx, c, group, verdicts, s.nowMS); err != nil {
			return err
		}
		if err := l.store.load(ctx, c, touch(group, verdicts), s); err != nil {
			return err
		}
		for i, o := range group {
			switch {
			case verdicts[i].err != nil:
			case o.kind == probe:
				changed = true
			case o.kind == share:
				verdicts[i].answer.AtMS = s.nowMS
				verdicts[i].version, verdicts[i].err = s.shared.apply(*o.shared)
			case o.kind != accept:
				verdicts[i] = s.apply(o.kind, o.batch)
			}
		}
		saved, err := l.store.save(ctx, c, s, l.cfg.History, l.cfg.Rejections)
		if err != nil {
			return err
		}
		if changed = changed || saved; !changed {
			return errNothing
		}
		// The last statement, because ledgers on one PostgreSQL wait for each other here.
		// It also makes a probe change something: SQLite writes no page that stays as it is.
		now.Revision, err = c.number(ctx, "UPDATE ledger_identity SET revision = revision + 1 RETURNING revision")
		return err
	})
	if err == nil && changed {
		l.wrote.Store(int64(l.cfg.Clock.Now()))
		if gone := l.store.intact(); gone != nil {
			err = fmt.Errorf("%w: %w", api.ErrUnknown, gone)
		}
	}
	if err != nil {
		return nil, err
	}
	l.known.Store(&now.Identity)
	for i := range verdicts {
		verdicts[i].answer.Ledger = now.Identity
	}
	return verdicts, nil
}

// identify reads which ledger the database holds, refuses the ops of callers that have
// seen another, and all of them if anybody has seen a later revision: then it notes that,
// so that callers who have seen less are refused as well, also after a restart.
func (l *Ledger) identify(ctx context.Context, c *tx, group []*op, verdicts []verdict, nowMS int64) (now identity, changed bool, err error) {
	if now, err = c.identity(ctx); err != nil {
		return now, false, err
	}
	if err := l.store.expected(ctx, c, now, *l.known.Load()); err != nil {
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
		if err := l.store.expected(ctx, c, now, o.seen); errors.Is(err, api.ErrDataLost) {
			verdicts[i].err = err
		} else if err != nil {
			return now, false, err
		}
	}
	if now.seen > 0 {
		for i := range group {
			verdicts[i].err = now.lost()
		}
	}
	if now.seen > before {
		changed = true
		l.cfg.Logger.Error("the database has lost data; writes are refused until an operator accepts its state", "id", now.ID, "revision", now.Revision, "seen", now.seen)
		if err := c.exec(ctx, l.store.words("UPDATE ledger_identity SET seen = $1"), int64(now.seen)); err != nil {
			return now, false, err
		}
	}
	for i, o := range group {
		if o.kind == accept {
			if verdicts[i].err = l.store.accept(ctx, c, &now, o.replaces, o.batch.Holder, nowMS); verdicts[i].err == nil {
				changed = true
			}
		}
	}
	return now, changed, nil
}

// probeEvery is how old the last proof of a working disk may be. Health checks share a
// probe, so however many ask, there are no more than that.
const probeEvery = 500 * time.Millisecond

// Healthy says whether the ledger can read and write.
func (l *Ledger) Healthy(ctx context.Context) error {
	_, err := l.Health(ctx, api.Identity{})
	return err
}

// Health says whether the ledger can read, is not stuck in a commit, can write, and has
// everything that the caller has seen. If nothing was written lately, it writes a probe: a
// full disk can be read, and nobody else may write before the ledger is known to be well.
func (l *Ledger) Health(ctx context.Context, seen api.Identity) (api.Identity, error) {
	if began := l.began.Load(); began != 0 {
		if stuck := time.Duration(int64(l.cfg.Clock.Now()) - began); stuck > 2*l.cfg.Timeout {
			return api.Identity{}, fmt.Errorf("%w: a commit has been under way for %v", api.ErrUnavailable, stuck)
		}
	}
	now, err := l.verify(ctx, seen)
	if err == nil {
		err = l.writable(ctx)
	}
	return now, err
}

// verify is an error if the ledger has lost data, as far as it knows or the caller does.
func (l *Ledger) verify(ctx context.Context, seen api.Identity) (api.Identity, error) {
	now, err := l.identity(ctx)
	switch {
	case err != nil:
		return now.Identity, err
	case now.seen > 0:
		return now.Identity, now.lost()
	case seen.ID == "" || seen.ID == now.ID && seen.Revision <= now.Revision:
		return now.Identity, nil
	}
	// The commit decides, and notes it.
	v := l.wait(ctx, &op{kind: probe, seen: seen, size: overhead, done: make(chan struct{})})
	return v.answer.Ledger, v.err
}

// writable is an error if the ledger cannot write.
func (l *Ledger) writable(ctx context.Context) error {
	fresh := func(at int64) bool { return at != 0 && l.cfg.Clock.Now().Sub(clock.Instant(at)) < probeEvery }
	if fresh(l.wrote.Load()) && !l.unmade.Load() {
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
	v := l.wait(ctx, &op{kind: probe, size: overhead, done: make(chan struct{})})
	if errors.Is(v.err, api.ErrBusy) && !l.unmade.Load() {
		return nil // others write
	}
	if v.err != nil && !errors.Is(v.err, api.ErrDataLost) {
		v.err = fmt.Errorf("%w: it cannot write: %s", api.ErrUnavailable, v.err.Error()) // whether a probe was made matters to nobody
	}
	if ctx.Err() == nil {
		l.probed, l.probeErr = int64(l.cfg.Clock.Now()), v.err
	}
	return v.err
}
