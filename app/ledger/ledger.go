package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/app/ledger/api"
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
	unmade  atomic.Bool  // the last commit that had something to write failed
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
	l := &Ledger{cfg: cfg, store: s, queue: newQueue(cfg.Queue, cfg.QueueBytes), stopped: make(chan struct{})}
	l.metrics = newMetrics(cfg, l.queue.len)
	known, err := l.knownResources(ctx)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	l.metrics.know(known)
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
	v := l.wait(ctx, &op{kind: k, batch: b, size: sizeOf(b), done: make(chan struct{})})
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
		case errors.Is(err, api.ErrUnknown):
			return nil, err
		case again(err) && attempt < attempts:
			continue
		}
		return nil, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
}

func (l *Ledger) attempt(ctx context.Context, group []*op) ([]verdict, error) {
	verdicts := make([]verdict, len(group))
	changed, probed := false, false
	err := l.store.within(ctx, func(c *tx) error {
		s := &state{unfenced: l.cfg.Unfenced, maxResources: l.cfg.Resources, nowMS: l.cfg.Now().UnixMilli()}
		s.shared.most = uint64(l.cfg.Shared)
		if err := l.store.load(ctx, c, touch(group), s); err != nil {
			return err
		}
		for i, o := range group {
			switch o.kind {
			case probe:
				probed = true
				continue
			case share:
				verdicts[i].answer.AtMS = s.nowMS
				verdicts[i].version, verdicts[i].err = s.shared.apply(*o.shared)
				continue
			}
			verdicts[i] = s.apply(o.kind, o.batch)
		}
		var err error
		changed, err = l.store.save(ctx, c, s, l.cfg.History, l.cfg.Rejections)
		if err == nil && probed {
			changed, err = true, c.exec(ctx, writeProbe)
		}
		if err == nil && !changed {
			return errNothing
		}
		return err
	})
	if err == nil && changed {
		l.unmade.Store(false)
	}
	return verdicts, err
}

// writeProbe must change something: SQLite writes no page that stays as it is.
const writeProbe = `INSERT INTO ledger_counter (name, value) VALUES ('probe', 1)
	ON CONFLICT (name) DO UPDATE SET value = ledger_counter.value + 1`

// Healthy says whether the ledger can read, is not stuck in a commit, and can write: when
// the last commit has failed it makes one of its own, since a full disk can be read, and
// nobody else may write before it is known to be well.
func (l *Ledger) Healthy(ctx context.Context) error {
	if began := l.began.Load(); began != 0 {
		if stuck := time.Duration(int64(l.cfg.Clock.Now()) - began); stuck > 2*l.cfg.Timeout {
			return fmt.Errorf("%w: a commit has been under way for %v", api.ErrUnavailable, stuck)
		}
	}
	if l.unmade.Load() {
		if v := l.wait(ctx, &op{kind: probe, size: overhead, done: make(chan struct{})}); v.err != nil {
			return fmt.Errorf("%w: it cannot write: %s", api.ErrUnavailable, v.err.Error()) // whether a probe was made matters to nobody
		}
	}
	var one int
	return l.read(ctx, func(ctx context.Context, db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT 1").Scan(&one)
	})
}
