package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
	"github.com/tenurehq/tenure/reference/ledger/state"
)

// Ledger is an open ledger. It is safe for concurrent use.
type Ledger struct {
	cfg         Config
	db          *database.DB
	queue       *queue
	metrics     *metrics
	stopped     chan struct{}
	began       atomic.Int64 // the commit under way, as an instant; 0: none
	wrote       atomic.Int64 // the last commit that wrote something, as an instant; 0: none
	writeFailed atomic.Bool  // the last commit that had something to write failed

	// known is the identity that the last commit saw.
	known atomic.Pointer[api.Identity]

	probing  chan struct{} // held by the one that probes
	probed   int64         // when the last probe ended, and how
	probeErr error

	closing sync.Once
	closed  error
}

// Open opens the database, updates its schema and starts to commit. api.ErrUnavailable means
// that it may work later: the database does not answer, or another process serves the file.
func Open(ctx context.Context, cfg Config) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	db, err := database.Open(ctx, cfg.DB, cfg.Timeout)
	if err != nil {
		return nil, err
	}
	l := &Ledger{cfg: cfg, db: db, queue: newQueue(cfg.Queue, cfg.QueueBytes), stopped: make(chan struct{}), probing: make(chan struct{}, 1)}
	l.metrics = newMetrics(cfg, l.queue.len)
	known, err := l.knownResources(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	l.metrics.addResources(known)
	first, err := l.Identity(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	l.known.Store(&first)
	if cfg.Unfenced {
		cfg.Logger.Warn("FENCING IS OFF: stale writes are accepted; for experiments only", "db", describe(cfg.DB))
	}
	go l.run()
	return l, nil
}

// Config is the configuration, with its defaults.
func (l *Ledger) Config() Config { return l.cfg }

// Registry has the metrics.
func (l *Ledger) Registry() *prometheus.Registry { return l.metrics.registry }

// CountRefused counts a request whose stamp cannot be read.
func (l *Ledger) CountRefused(err error) { l.metrics.refused(err) }

// Close commits what waits, and closes the database. Later writes are refused.
func (l *Ledger) Close() error {
	l.closing.Do(func() {
		l.queue.close()
		<-l.stopped
		l.closed = l.db.Close()
	})
	return l.closed
}

// Apply makes a batch of writes. They are durable when it returns. The errors are those of
// packages fence and api.
func (l *Ledger) Apply(ctx context.Context, b api.Batch) (api.Answer, error) {
	if len(b.Writes) == 0 {
		return api.Answer{}, &api.RequestError{Field: "writes", Rule: "there must be one; use seal to raise the mark only"}
	}
	if b.Stamp.Seq > 0 && b.Digest == "" {
		sum, err := api.Sum(b.Writes)
		if err != nil {
			return api.Answer{}, &api.RequestError{Field: "writes", Rule: err.Error()}
		}
		b.Digest = sum
	}
	return l.do(ctx, state.Write, b)
}

// Seal raises the mark of the resource to the token of the stamp.
func (l *Ledger) Seal(ctx context.Context, resource string, s fence.Stamp, holder string) error {
	_, err := l.Raise(ctx, state.Seal, api.Batch{Resource: resource, Stamp: s, Holder: holder})
	return err
}

// Raise raises the mark of a resource to the token of the stamp: state.Seal, or state.Advance
// for operators, which goes past the slip rule. It ignores the seq.
func (l *Ledger) Raise(ctx context.Context, k state.Kind, b api.Batch) (api.Answer, error) {
	b.Stamp.Seq = 0
	a, err := l.do(ctx, k, b)
	if err == nil && k == state.Advance {
		l.cfg.Logger.Warn("an operator advanced the mark", "resource", b.Resource, "stamp", b.Stamp.String(), "by", b.Holder)
	}
	return a, err
}

// Share replaces or deletes a shared record. If it has another version than the write says, the
// error is an *api.VersionError.
func (l *Ledger) Share(ctx context.Context, w api.SharedWrite) (api.SharedAnswer, error) {
	if err := w.Validate(); err != nil {
		return api.SharedAnswer{}, err
	}
	v := l.wait(ctx, &op{kind: share, shared: &w, seen: w.Seen, size: len(w.Value)})
	return api.SharedAnswer{Deployment: w.Deployment, Space: w.Space, Key: w.Key, Version: v.Version, AtMS: v.Answer.AtMS}, v.Err
}

func (l *Ledger) do(ctx context.Context, k kind, b api.Batch) (api.Answer, error) {
	if err := b.Validate(); err != nil {
		return api.Answer{}, err
	}
	if err := b.Stamp.Validate(); err != nil {
		l.metrics.refused(err)
		return api.Answer{}, err
	}
	v := l.wait(ctx, &op{kind: k, batch: b, seen: b.Seen, size: sizeOf(b)})
	return v.Answer, v.Err
}

// wait waits for the commit of an op. A caller that leaves earlier withdraws the op; during the
// commit, the outcome is unknown to that caller.
func (l *Ledger) wait(ctx context.Context, o *op) state.Verdict {
	o.size, o.done = o.size+overhead, make(chan struct{})
	if err := l.queue.push(o); err != nil {
		l.metrics.turnedAway.Inc()
		return state.Verdict{Err: err}
	}
	select {
	case <-o.done:
		return o.Verdict
	case <-ctx.Done():
	}
	if o.claim() {
		return state.Verdict{Err: fmt.Errorf("%w: the caller left before the commit: %w", api.ErrUnavailable, context.Cause(ctx))}
	}
	return state.Verdict{Err: fmt.Errorf("%w: the caller left during the commit: %w", api.ErrUnknown, context.Cause(ctx))}
}

// state is what a group starts with.
func (c Config) state() *state.State {
	return &state.State{Unfenced: c.Unfenced, MaxResources: c.Resources, MaxShared: uint64(c.Shared), NowMS: c.Now().UnixMilli()}
}

// overhead is roughly the size of an op or a write besides its values.
const overhead = 256

func sizeOf(b api.Batch) int {
	n := 0
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
