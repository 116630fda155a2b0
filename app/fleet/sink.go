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
	err     error
	changed chan struct{} // closed at the next success
}

func newSink(c clock.Clock, patience time.Duration) *sink {
	return &sink{clock: c, patience: patience, changed: make(chan struct{})}
}

// saw takes down how a call ended. An answer of any kind is an answer: only what says
// that the ledger could not be reached, or could not write, counts against it.
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
