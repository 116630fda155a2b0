package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	ledgerapi "github.com/tenurehq/tenure/app/ledger/api"
	"github.com/tenurehq/tenure/clock"
)

// sink is what a node knows about its way to the ledger. A node that cannot reach it
// does not campaign, and steps down if it leads: others may be better off.
type sink struct {
	clock    clock.Clock
	patience time.Duration

	mu      sync.Mutex
	good    bool
	bad     clock.Instant // the first failure since the last success; 0: none
	unmade  clock.Instant // the same for the writes of a leader
	cause   error         // of the last write that failed
	err     error
	changed chan struct{} // closed at the next success
}

func newSink(c clock.Clock, patience time.Duration) *sink {
	return &sink{clock: c, patience: patience, changed: make(chan struct{})}
}

// begin forgets what earlier terms knew about writes.
func (s *sink) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmade, s.cause = 0, nil
}

// wrote takes down how a write of the leader ended. A ledger with a full disk answers
// reads all the same, so these do not speak for writes.
func (s *sink) wrote(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !errors.Is(err, ledgerapi.ErrUnknown) && !errors.Is(err, ledgerapi.ErrUnavailable):
		s.unmade, s.cause = 0, nil
	case s.unmade == 0:
		s.unmade, s.cause = s.clock.Now(), err
	}
}

// writable is an error while no write has been made for longer than the patience,
// although it was tried.
func (s *sink) writable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unmade == 0 {
		return nil
	}
	if since := s.clock.Now().Sub(s.unmade); since > s.patience {
		return fmt.Errorf("fleet: the ledger has taken no write for %v, longer than %v: %w", since.Round(time.Millisecond), s.patience, s.cause)
	}
	return nil
}

// saw takes down how a call ended. An answer of any kind is an answer: only what says
// that the ledger could not be reached counts against it.
func (s *sink) saw(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, ledgerapi.ErrUnknown) && !errors.Is(err, ledgerapi.ErrUnavailable) {
		s.good, s.bad, s.err = true, 0, nil
		close(s.changed)
		s.changed = make(chan struct{})
		return
	}
	s.good, s.err = false, err
	if s.bad == 0 {
		s.bad = s.clock.Now()
	}
}

// ok reports whether the last call was answered.
func (s *sink) ok() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.good
}

// health is an error while the ledger has been out of reach for longer than the
// patience. It is counted from a failure that was seen, so that a pause of this process
// is not taken for one of the ledger.
func (s *sink) health(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad == 0 {
		return nil
	}
	if silent := s.clock.Now().Sub(s.bad); silent > s.patience {
		return fmt.Errorf("fleet: the ledger has been out of reach for %v, longer than %v: %w", silent.Round(time.Millisecond), s.patience, s.err)
	}
	return nil
}

// await waits until the ledger is not known to be out of reach.
func (s *sink) await(ctx context.Context) error {
	for {
		s.mu.Lock()
		changed, bad := s.changed, s.bad
		s.mu.Unlock()
		if bad == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
