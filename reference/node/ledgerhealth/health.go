// Package ledgerhealth is what a node knows about the ledger. A node that cannot use the ledger
// does not campaign. If it leads, it steps down when that lasts: other nodes may reach the ledger.
package ledgerhealth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// Health is the health of the ledger, as one node sees it.
type Health struct {
	clock    clock.Clock
	patience time.Duration
	log      *slog.Logger

	mu           sync.Mutex
	answered     bool          // the last call was answered
	unanswered   outage        // calls without an answer since the last answer
	failedProbes outage        // failed probes and seals since the last good probe
	lastFailure  clock.Instant // the last of them
	failedWrites outage        // failed writes of this term since the last good one
	refused      error         // data was lost, or another deployment has the ledger: an operator must act
	wasReady     bool
	changed      chan struct{} // closed when the ledger can or can no longer be used
}

// outage is since when something fails, and its newest error. The zero outage is none.
type outage struct {
	since clock.Instant
	err   error
}

func (o *outage) fail(at clock.Instant, err error) {
	if o.err = err; o.since == 0 {
		o.since = at
	}
}

// New returns the health of a ledger that was not called yet.
func New(c clock.Clock, patience time.Duration, log *slog.Logger) *Health {
	return &Health{clock: c, patience: patience, log: log, wasReady: true, changed: make(chan struct{})}
}

// Begin discards what earlier terms knew about writes.
func (h *Health) Begin() { h.note(func() { h.failedWrites = outage{} }) }

// Unanswered: the ledger could not be reached, or could not do what was asked.
func Unanswered(err error) bool {
	return errors.Is(err, ledgerapi.ErrUnknown) || errors.Is(err, ledgerapi.ErrUnavailable)
}

// Wrote records the outcome of a write of the leader. Reads prove nothing about writes: a
// ledger with a full disk answers them.
func (h *Health) Wrote(err error) {
	h.note(func() {
		if !Unanswered(err) {
			h.failedWrites = outage{}
		} else if h.failedWrites.since == 0 {
			h.failedWrites.fail(h.clock.Now(), err)
		}
	})
}

// Saw records the outcome of a call. Only errors that say that the ledger could not be
// reached count as failures; every other error is an answer.
func (h *Health) Saw(err error) {
	h.note(func() {
		switch {
		case errors.Is(err, ledgerapi.ErrDataLost):
			h.refused = err
		case Unanswered(err):
			h.answered = false
			h.unanswered.fail(h.clock.Now(), err)
		default:
			h.answered, h.unanswered = true, outage{}
		}
	})
}

// Probed records the outcome of a health check that began at an instant. The ledger writes
// for each health check. Only a check that began after the last failure shows that the
// failure is over.
func (h *Health) Probed(began clock.Instant, err error) {
	h.note(func() {
		switch {
		case err == nil && began >= h.lastFailure:
			h.failedProbes, h.refused = outage{}, nil
		case err == nil:
		case errors.Is(err, ledgerapi.ErrDataLost), errors.Is(err, fence.ErrRefused):
			h.refused = err
		default:
			h.fail(err)
		}
	})
}

// Sealed records the outcome of a seal. After a failed one a health check must succeed before
// this node campaigns again.
func (h *Health) Sealed(err error) {
	h.note(func() {
		switch {
		case errors.Is(err, ledgerapi.ErrDataLost):
			h.refused = err
		case err != nil && !errors.Is(err, fence.ErrRefused):
			h.fail(err)
		}
	})
}

func (h *Health) fail(err error) {
	h.lastFailure = h.clock.Now()
	h.failedProbes.fail(h.lastFailure, err)
}

// note makes a change. It wakes waiting goroutines if the ledger became usable or unusable.
func (h *Health) note(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	err := h.problem()
	if (err == nil) == h.wasReady {
		return
	}
	h.wasReady = err == nil
	close(h.changed)
	h.changed = make(chan struct{})
	if err != nil {
		h.log.Warn("the ledger cannot be used; this node does not campaign", "error", err)
	} else {
		h.log.Info("the ledger can be used again")
	}
}

func (h *Health) problem() error {
	for _, err := range []error{h.refused, h.failedProbes.err, h.unanswered.err} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Ready returns an error while this node should not campaign.
func (h *Health) Ready() error {
	_, err := h.state()
	return err
}

func (h *Health) state() (changed <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed, h.problem()
}

// OK reports whether the last call was answered and the ledger can be used.
func (h *Health) OK() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.answered && h.problem() == nil
}

// Lasting returns an error while a leader should step down: at once if an operator must act, otherwise when the ledger
// could not be used for longer than the patience. The time counts from the first failure, so that a pause of this
// process does not count as an outage of the ledger.
func (h *Health) Lasting() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refused != nil {
		return h.refused
	}
	if err := h.lasting(h.failedProbes, "has not been able to write"); err != nil {
		return err
	}
	return h.lasting(h.unanswered, "has been unreachable")
}

// Writable returns an error while writes have failed for longer than the patience.
func (h *Health) Writable() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lasting(h.failedWrites, "has accepted no write")
}

func (h *Health) lasting(o outage, what string) error {
	if d := h.clock.Now().Sub(o.since); o.since != 0 && d > h.patience {
		return fmt.Errorf("the ledger %s for %v, longer than %v: %w", what, d.Round(time.Millisecond), h.patience, o.err)
	}
	return nil
}

// Await waits until the ledger is not known to be unusable.
func (h *Health) Await(ctx context.Context) error {
	for {
		changed, err := h.state()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Changed returns a channel that is closed when the ledger can or can no longer be used.
func (h *Health) Changed() <-chan struct{} {
	changed, _ := h.state()
	return changed
}

// ErrUnusable ends a campaign.
var ErrUnusable = errors.New("the ledger can no longer be used")

// WhileReady returns a context that ends with ErrUnusable when the ledger can no longer be
// used.
func (h *Health) WhileReady(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	changed, err := h.state()
	if err != nil {
		cancel(ErrUnusable)
	}
	go func() {
		select {
		case <-changed:
			cancel(ErrUnusable)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
