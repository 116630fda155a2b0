package node

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

// sink is what a node knows about the ledger. A node that cannot use the ledger does not
// campaign. If it leads, it steps down when that lasts: other nodes may reach the ledger.
type sink struct {
	clock    clock.Clock
	patience time.Duration
	log      *slog.Logger

	mu       sync.Mutex
	good     bool
	bad      clock.Instant // the first call without an answer since the last answer; 0: none
	err      error         // of that call
	unproven clock.Instant // the first failed probe or seal since the last good probe; 0: none
	failed   clock.Instant // the last one
	why      error         // of that
	refused  error         // data was lost, or another deployment has the ledger: an operator must act
	unmade   clock.Instant // the first failed write of this term since the last good one; 0: none
	cause    error         // of that
	wasReady bool
	changed  chan struct{} // closed when the ledger can or can no longer be used
}

func newSink(c clock.Clock, patience time.Duration, log *slog.Logger) *sink {
	return &sink{clock: c, patience: patience, log: log, wasReady: true, changed: make(chan struct{})}
}

// begin drops what earlier terms knew about writes.
func (s *sink) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmade, s.cause = 0, nil
}

// wrote notes how a write of the leader ended. Reads say nothing about writes: a ledger with
// a full disk answers them.
func (s *sink) wrote(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !unanswered(err):
		s.unmade, s.cause = 0, nil
	case s.unmade == 0:
		s.unmade, s.cause = s.clock.Now(), err
	}
}

// writable is an error while writes have failed for longer than the patience.
func (s *sink) writable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lasting(s.unmade, s.cause, "has accepted no write")
}

func (s *sink) lasting(since clock.Instant, err error, what string) error {
	if since == 0 {
		return nil
	}
	if d := s.clock.Now().Sub(since); d > s.patience {
		return fmt.Errorf("the ledger %s for %v, longer than %v: %w", what, d.Round(time.Millisecond), s.patience, err)
	}
	return nil
}

// unanswered: the ledger could not be reached, or could not do what was asked.
func unanswered(err error) bool {
	return errors.Is(err, ledgerapi.ErrUnknown) || errors.Is(err, ledgerapi.ErrUnavailable)
}

// saw notes how a call ended. Only errors that say that the ledger could not be reached count
// against it; every other error is an answer.
func (s *sink) saw(err error) {
	s.note(func() {
		switch {
		case errors.Is(err, ledgerapi.ErrDataLost):
			s.refused = err
		case !unanswered(err):
			s.good, s.bad, s.err = true, 0, nil
		default:
			s.good, s.err = false, err
			if s.bad == 0 {
				s.bad = s.clock.Now()
			}
		}
	})
}

// probed notes how a health check ended that began at an instant. For a health check the
// ledger writes. Only a check that began after the last failure shows that the failure is
// over.
func (s *sink) probed(began clock.Instant, err error) {
	s.note(func() {
		switch {
		case err == nil && began >= s.failed:
			s.unproven, s.why, s.refused = 0, nil, nil
		case err == nil:
		case errors.Is(err, ledgerapi.ErrDataLost), errors.Is(err, fence.ErrRefused):
			s.refused = err
		default:
			s.fail(err)
		}
	})
}

// sealed notes how a seal ended. After a failed one a health check must succeed before this
// node campaigns again.
func (s *sink) sealed(err error) {
	s.note(func() {
		switch {
		case errors.Is(err, ledgerapi.ErrDataLost):
			s.refused = err
		case err != nil && !errors.Is(err, fence.ErrRefused):
			s.fail(err)
		}
	})
}

func (s *sink) fail(err error) {
	s.failed, s.why = s.clock.Now(), err
	if s.unproven == 0 {
		s.unproven = s.failed
	}
}

// note makes a change. It wakes those that wait if the ledger can now be used, or can no
// longer be used.
func (s *sink) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	err := s.problem()
	if (err == nil) == s.wasReady {
		return
	}
	s.wasReady = err == nil
	close(s.changed)
	s.changed = make(chan struct{})
	if err != nil {
		s.log.Warn("the ledger cannot be used; this node does not campaign", "error", err)
	} else {
		s.log.Info("the ledger can be used again")
	}
}

func (s *sink) problem() error {
	switch {
	case s.refused != nil:
		return s.refused
	case s.unproven != 0:
		return s.why
	case s.bad != 0:
		return s.err
	}
	return nil
}

// ready is an error while this node should not campaign.
func (s *sink) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem()
}

// ok reports whether the last call was answered and the ledger can be used.
func (s *sink) ok() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.good && s.problem() == nil
}

// health is an error while a leader should step down: at once if an operator must act,
// otherwise when the ledger could not be used for longer than the patience. The time counts
// from the first failure, so that a pause of this process is not taken for one of the ledger.
func (s *sink) health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused != nil {
		return s.refused
	}
	if err := s.lasting(s.unproven, s.why, "has not been able to write"); err != nil {
		return err
	}
	return s.lasting(s.bad, s.err, "has been unreachable")
}

// await waits until the ledger is not known to be unusable.
func (s *sink) await(ctx context.Context) error {
	for {
		s.mu.Lock()
		changed, err := s.changed, s.problem()
		s.mu.Unlock()
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

// turned returns a channel that is closed when the ledger can or can no longer be used.
func (s *sink) turned() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// errUnusable ends a campaign.
var errUnusable = errors.New("the ledger can no longer be used")

// whileReady returns a context that ends with errUnusable when the ledger can no longer be
// used.
func (s *sink) whileReady(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	changed := s.changed
	if s.problem() != nil {
		cancel(errUnusable)
	}
	s.mu.Unlock()
	go func() {
		select {
		case <-changed:
			cancel(errUnusable)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
