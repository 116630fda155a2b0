// Package fencedwriter is how a leader writes to the ledger: it checks its term, writes with
// its stamp, and steps down when the ledger refuses.
package fencedwriter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// Writer writes as the leader of a term. It is safe for concurrent use. An error wraps
//
//   - fence.ErrRefused: another node leads and the term is over. With ErrClosed too, an
//     earlier write was refused and this one was not sent.
//   - tenure.EndedError: the term is over; nothing was sent.
//   - ledgerapi.ErrDataLost: the ledger has lost data; stop.
//   - ledgerapi.ErrUnknown: the write may have been made or not.
//   - ledgerapi.ErrUnavailable or ErrBusy: nothing was written; try again.
//
// Any other error says what is wrong with the writes themselves.
type Writer interface {
	Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error)
}

// ErrClosed: this leader has stopped writing; nothing was sent.
var ErrClosed = errors.New("fencedwriter: this leader has stopped writing, nothing was sent")

// Stop reports whether err means that no further write of this leader can succeed.
func Stop(err error) bool {
	var ended *tenure.EndedError
	return errors.Is(err, fence.ErrRefused) || errors.Is(err, ErrClosed) || errors.Is(err, ledgerapi.ErrDataLost) || errors.As(err, &ended)
}

// Applier makes batches of writes: a ledger, or a client of one.
type Applier interface {
	Apply(ctx context.Context, b ledgerapi.Batch) (ledgerapi.Answer, error)
}

// Config is what a TermWriter needs.
type Config struct {
	Ledger   Applier
	Resource string
	Term     *tenure.Term
	// Holder is who writes, for the list of refused writes.
	Holder string
	// Timeout bounds each write. Default 5s.
	Timeout time.Duration
	// Host dates the attempts on one clock for all processes of a machine, whatever clock
	// the node's lease is measured on. Default the system's.
	Host clock.Clock

	// Between, if set, is called between the check and the write, where a pause of the
	// process does the most harm.
	Between func()
	// Attempted, if set, is called with each attempt just before it is sent.
	Attempted func(at clock.Instant, token fence.Token, writes []ledgerapi.Write)
	// Done, if set, is called with the outcome of each attempt.
	Done func(at clock.Instant, took time.Duration, err error)
}

// TermWriter is the Writer of one term.
//
// The end of the term or of the caller's context does not cancel a write that was sent: it
// must have an outcome, and the ledger protects itself. A write ends at its timeout.
type TermWriter struct {
	cfg     Config
	last    atomic.Int64
	refused atomic.Pointer[error] // the first refusal; nil: none

	writing sync.RWMutex // read-held by each write
	closed  bool
}

var _ Writer = (*TermWriter)(nil)

// New returns the writer of a term.
func New(cfg Config) *TermWriter {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Host == nil {
		cfg.Host = clock.System()
	}
	cfg.Holder = cmp.Or(cfg.Holder, cfg.Term.Candidate().ID)
	return &TermWriter{cfg: cfg}
}

// Write implements Writer.
func (w *TermWriter) Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	w.writing.RLock()
	defer w.writing.RUnlock()
	if w.closed {
		return ledgerapi.Answer{}, ErrClosed
	}
	if err := w.cfg.Term.Check(); err != nil {
		return ledgerapi.Answer{}, err
	}
	return w.write(ctx, writes)
}

// Close waits for the outcome of every write. After it only WriteLast writes.
func (w *TermWriter) Close() {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.closed = true
}

// WriteLast writes what a leader leaves to its successor. It also writes after the term has
// ended, if the leader ended the term itself: the group is then not released before the work
// returns, so nobody else writes yet.
func (w *TermWriter) WriteLast(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	err := w.cfg.Term.Check()
	switch {
	case err == nil, errors.Is(err, tenure.ErrResigned), errors.Is(err, tenure.ErrTransferred), errors.Is(err, tenure.ErrUnhealthy):
		return w.write(ctx, writes)
	}
	return ledgerapi.Answer{}, err
}

func (w *TermWriter) write(ctx context.Context, writes []ledgerapi.Write) (ledgerapi.Answer, error) {
	if w.cfg.Between != nil {
		w.cfg.Between()
	}
	// The time of an attempt is read before refused is, and the time at which a write ended
	// after refused is set: so no attempt is dated after the end of a refused one.
	at := w.cfg.Host.Now()
	if first := w.refused.Load(); first != nil {
		return ledgerapi.Answer{}, fmt.Errorf("%w: a write of this term was refused: %w", ErrClosed, *first)
	}
	for {
		if old := w.last.Load(); old >= int64(at) || w.last.CompareAndSwap(old, int64(at)) {
			break
		}
	}
	if w.cfg.Attempted != nil {
		w.cfg.Attempted(at, w.cfg.Term.Token(), writes)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Timeout)
	defer cancel()
	answer, err := w.cfg.Ledger.Apply(ctx, ledgerapi.Batch{
		Resource: w.cfg.Resource, Stamp: w.cfg.Term.Stamp(), Holder: w.cfg.Holder, Writes: writes,
	})
	refused := errors.Is(err, fence.ErrRefused)
	if refused {
		w.refused.CompareAndSwap(nil, &err)
	}
	if w.cfg.Done != nil {
		w.cfg.Done(at, w.cfg.Host.Now().Sub(at), err)
	}
	if refused {
		// Inside tenure.Lead this returns at once: Lead releases the group when the work has
		// returned.
		_ = w.cfg.Term.Resign(ctx)
	}
	return answer, err
}

// LastAttempt is the newest attempt on the host's clock; 0 if there was none.
func (w *TermWriter) LastAttempt() clock.Instant { return clock.Instant(w.last.Load()) }

// Refused reports whether the ledger has refused a write of this term. No further write is
// sent then.
func (w *TermWriter) Refused() bool { return w.refused.Load() != nil }
