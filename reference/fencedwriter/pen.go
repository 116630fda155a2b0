// Package fencedwriter is how a leader writes to the ledger: it checks its term, writes with
// its stamp, and steps down when the ledger refuses.
package fencedwriter

import (
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

// Writer writes as the leader of a term. It is safe for concurrent use.
//
// An error wraps fence.ErrRefused (another leads: stop; the term is over; with ErrClosed
// too it is a later write, of which nothing was sent),
// ledgerapi.ErrDataLost (the ledger is not what it was: stop), tenure.EndedError (the term is over: stop; nothing was sent), ledgerapi.ErrUnknown
// (it may have been written or not), ledgerapi.ErrUnavailable or ErrBusy (nothing was
// written: try again), or says what is wrong with the writes themselves.
type Writer interface {
	Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error)
}

// ErrClosed: this leader has stopped writing; nothing was sent.
var ErrClosed = errors.New("pen: this leader has stopped writing, nothing was sent")

// Stop reports whether err means that no further write of this leader can succeed.
func Stop(err error) bool {
	var ended *tenure.EndedError
	return errors.Is(err, fence.ErrRefused) || errors.Is(err, ErrClosed) || errors.Is(err, ledgerapi.ErrDataLost) || errors.As(err, &ended)
}

// Applier makes batches of writes: a ledger, or a client of one.
type Applier interface {
	Apply(ctx context.Context, b ledgerapi.Batch) (ledgerapi.Answer, error)
}

// Config is what a pen needs to know.
type Config struct {
	Ledger   Applier
	Resource string
	Term     *tenure.Term
	// Holder is who writes, for the list of refused writes.
	Holder string
	// Timeout bounds each write. Default 5s.
	Timeout time.Duration
	// Host stamps the attempts: one clock for all processes of a machine, whatever
	// clock the node's lease runs on. Default the system's.
	Host clock.Clock

	// Between, if set, is called between the check and the write: where a process that
	// is paused does the most harm.
	Between func()
	// Attempted, if set, is called with each attempt just before it is sent.
	Attempted func(at clock.Instant, token fence.Token, writes []ledgerapi.Write)
	// Done, if set, is told how each attempt ended.
	Done func(at clock.Instant, took time.Duration, err error)
}

// Pen is the Writer of one term.
//
// A write is not cancelled by the end of the term or of the caller's context: what was
// sent shall have an outcome, and the ledger is what protects. It ends at its timeout.
type Pen struct {
	cfg  Config
	last atomic.Int64
	// refused is the first refusal; nil: there was none.
	refused atomic.Pointer[error]

	under  sync.RWMutex // read-held by each write under way
	closed bool
}

var _ Writer = (*Pen)(nil)

// New returns the pen of a term.
func New(cfg Config) *Pen {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Host == nil {
		cfg.Host = clock.System()
	}
	if cfg.Holder == "" {
		cfg.Holder = cfg.Term.Candidate().ID
	}
	return &Pen{cfg: cfg}
}

// Write implements Writer.
func (p *Pen) Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	p.under.RLock()
	defer p.under.RUnlock()
	if p.closed {
		return ledgerapi.Answer{}, ErrClosed
	}
	if err := p.cfg.Term.Check(); err != nil {
		return ledgerapi.Answer{}, err
	}
	return p.write(ctx, writes)
}

// Close ends the writing: when it returns, every write under way, whoever made it, has
// its outcome, and none is begun any more but by WriteLast.
func (p *Pen) Close() {
	p.under.Lock()
	defer p.under.Unlock()
	p.closed = true
}

// WriteLast writes although the term has ended, if it ended by the leader's own will:
// the grant is then held until work returns, so nobody else writes yet. It is for what
// a leader leaves to its successor.
func (p *Pen) WriteLast(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	err := p.cfg.Term.Check()
	switch {
	case err == nil, errors.Is(err, tenure.ErrResigned), errors.Is(err, tenure.ErrTransferred), errors.Is(err, tenure.ErrUnhealthy):
		return p.write(ctx, writes)
	}
	return ledgerapi.Answer{}, err
}

func (p *Pen) write(ctx context.Context, writes []ledgerapi.Write) (ledgerapi.Answer, error) {
	if p.cfg.Between != nil {
		p.cfg.Between()
	}
	token := p.cfg.Term.Token()
	// Taken before the look at refusals, and the end of a refused write after it is noted:
	// so no attempt has an instant that is later than the end of one that was refused.
	at := p.cfg.Host.Now()
	if first := p.refused.Load(); first != nil {
		return ledgerapi.Answer{}, fmt.Errorf("%w: a write of this term was refused: %w", ErrClosed, *first)
	}
	raise(&p.last, at)
	if p.cfg.Attempted != nil {
		p.cfg.Attempted(at, token, writes)
	}
	wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Timeout)
	defer cancel()
	answer, err := p.cfg.Ledger.Apply(wctx, ledgerapi.Batch{
		Resource: p.cfg.Resource, Stamp: p.cfg.Term.Stamp(0), Holder: p.cfg.Holder, Writes: writes,
	})
	refused := errors.Is(err, fence.ErrRefused)
	if refused {
		p.refused.CompareAndSwap(nil, &err)
	}
	if p.cfg.Done != nil {
		p.cfg.Done(at, p.cfg.Host.Now().Sub(at), err)
	}
	if refused {
		// Inside tenure.Lead this returns at once: Lead gives the group up when work has
		// returned.
		_ = p.cfg.Term.Resign(wctx)
	}
	return answer, err
}

// raise keeps the newest of instants that come from several goroutines.
func raise(to *atomic.Int64, at clock.Instant) {
	for old := to.Load(); old < int64(at); old = to.Load() {
		if to.CompareAndSwap(old, int64(at)) {
			return
		}
	}
}

// LastAttempt is the newest attempt on the host's clock; 0 if there was none.
func (p *Pen) LastAttempt() clock.Instant { return clock.Instant(p.last.Load()) }

// Refused reports whether the ledger has refused a write of this term: it would refuse
// every other, and none is sent.
func (p *Pen) Refused() bool { return p.refused.Load() != nil }
