package mem

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

var _ lease.Store = (*Store)(nil)

var (
	errShutdown = errors.New("mem: the store was shut down")
	errRestored = errors.New("mem: the store was restored from a snapshot: watch again")
)

// Store is a lease store for one process. Its methods are safe for concurrent
// use; a context that has ended is answered with its error, without effect.
type Store struct {
	clock clock.Clock
	timer clock.Timer
	stop  chan struct{}
	done  chan struct{}

	mu       sync.Mutex
	state    *State
	armed    clock.Instant // what the timer is set to
	watchers map[*watcher]struct{}
	down     bool
}

// New returns an empty store. Shutdown ends it.
func New(o Options) *Store {
	c := o.Clock
	if c == nil {
		c = clock.System()
	}
	if o.Wall == nil {
		o.Wall = func(at clock.Instant) time.Time { return time.Now().Add(at.Sub(c.Now())).UTC() }
	}
	s := &Store{
		clock:    c,
		timer:    c.NewTimer(),
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
		state:    NewState(o),
		armed:    clock.Never,
		watchers: make(map[*watcher]struct{}),
	}
	go s.expire()
	return s
}

// expire announces vacancies that nobody asks for.
func (s *Store) expire() {
	defer close(s.done)
	for {
		select {
		case <-s.timer.C():
		case <-s.stop:
			return
		}
		s.mu.Lock()
		s.armed = clock.Never
		s.state.Expire(s.clock.Now())
		s.publish()
		s.mu.Unlock()
	}
}

// publish tells the watchers what changed and sees to it that the next death
// is noticed. s.mu is held.
func (s *Store) publish() {
	for _, name := range s.state.Changed() {
		for w := range s.watchers {
			w.mark(name)
		}
	}
	if next := s.state.NextExpiry(); next < s.armed {
		s.armed = next
		s.timer.Set(next)
	}
}

// call runs one method of the state at the present instant.
func call[T any](ctx context.Context, s *Store, f func(now clock.Instant) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("mem: %w", err)
	}
	if s.down {
		return zero, errShutdown
	}
	defer s.publish()
	return f(s.clock.Now())
}

// do is call for methods that answer nothing.
func do(ctx context.Context, s *Store, f func(now clock.Instant) error) error {
	_, err := call(ctx, s, func(now clock.Instant) (struct{}, error) { return struct{}{}, f(now) })
	return err
}

// Shutdown ends the store: watches end with an error, and so does every later
// call. It returns when nothing of the store runs any more.
func (s *Store) Shutdown() {
	s.mu.Lock()
	first := !s.down
	s.down = true
	s.breakWatches(errShutdown)
	s.mu.Unlock()
	if first {
		close(s.stop)
	}
	<-s.done
	if first {
		s.timer.Stop()
	}
}

// Restart does to the sessions what the restart of an engine does.
func (s *Store) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Restart(s.clock.Now())
	s.publish()
}

// Snapshot is a backup.
func (s *Store) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Snapshot()
}

// Restore goes back to a backup. All watches end with an error, so that their
// owners begin with a new snapshot.
func (s *Store) Restore(backup *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Restore(s.clock.Now(), backup)
	s.breakWatches(errRestored)
	s.publish()
}

// Limits are those of the options.
func (s *Store) Limits() lease.Limits { return s.state.Limits() }

// Open begins a session.
func (s *Store) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	return call(ctx, s, func(now clock.Instant) (lease.Session, error) { return s.state.Open(now, c, ttl, o) })
}

// KeepAlive extends a living session.
func (s *Store) KeepAlive(ctx context.Context, id lease.SessionID) (lease.Beat, error) {
	return call(ctx, s, func(now clock.Instant) (lease.Beat, error) { return s.state.KeepAlive(now, id) })
}

// Close ends a session.
func (s *Store) Close(ctx context.Context, id lease.SessionID, why lease.Reason) error {
	return do(ctx, s, func(now clock.Instant) error { return s.state.Close(now, id, why) })
}

// Acquire grants all records or none.
func (s *Store) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	return call(ctx, s, func(now clock.Instant) ([]lease.Record, error) { return s.state.Acquire(now, id, seen...) })
}

// Release gives a record up.
func (s *Store) Release(ctx context.Context, id lease.SessionID, held lease.Record, to lease.SessionID, why lease.Reason) (lease.Record, error) {
	return call(ctx, s, func(now clock.Instant) (lease.Record, error) { return s.state.Release(now, id, held, to, why) })
}

// Ask leaves a request.
func (s *Store) Ask(ctx context.Context, id lease.SessionID, r lease.Request) error {
	return do(ctx, s, func(now clock.Instant) error { return s.state.Ask(now, id, r) })
}

// Answer answers it.
func (s *Store) Answer(ctx context.Context, id lease.SessionID, request string, a lease.Answer) error {
	return do(ctx, s, func(now clock.Instant) error { return s.state.Answer(now, id, request, a) })
}

// Answered reads the answer.
func (s *Store) Answered(ctx context.Context, id lease.SessionID, request string) (lease.Answer, error) {
	return call(ctx, s, func(now clock.Instant) (lease.Answer, error) { return s.state.Answered(now, id, request) })
}

// Read returns the present view.
func (s *Store) Read(ctx context.Context, group string) (lease.View, error) {
	return call(ctx, s, func(now clock.Instant) (lease.View, error) { return s.state.Read(now, group) })
}

// Watch follows the groups in scope.
func (s *Store) Watch(ctx context.Context, scope lease.Scope) iter.Seq2[lease.View, error] {
	return s.watch(ctx, scope)
}

// Groups lists views by name.
func (s *Store) Groups(ctx context.Context, scope lease.Scope, p lease.Page) ([]lease.View, error) {
	return call(ctx, s, func(now clock.Instant) ([]lease.View, error) { return s.state.Groups(now, scope, p) })
}

// Sessions lists who stands in line.
func (s *Store) Sessions(ctx context.Context, scope lease.Scope, p lease.Page) ([]lease.Session, error) {
	return call(ctx, s, func(now clock.Instant) ([]lease.Session, error) { return s.state.Sessions(now, scope, p) })
}

// History lists terms, newest first.
func (s *Store) History(ctx context.Context, group string, p lease.Page) ([]lease.Term, error) {
	return call(ctx, s, func(now clock.Instant) ([]lease.Term, error) { return s.state.History(now, group, p) })
}

// Meta describes the store.
func (s *Store) Meta(ctx context.Context) (lease.Meta, error) {
	return call(ctx, s, func(now clock.Instant) (lease.Meta, error) { return s.state.Meta(now) })
}

// RaiseEpoch lifts the epoch.
func (s *Store) RaiseEpoch(ctx context.Context, to uint64) (lease.Meta, error) {
	return call(ctx, s, func(now clock.Instant) (lease.Meta, error) { return s.state.RaiseEpoch(now, to) })
}

// Suspect reports that the store lost data.
func (s *Store) Suspect(ctx context.Context, group string, seen fence.Token) error {
	_, err := call(ctx, s, func(now clock.Instant) (struct{}, error) { return struct{}{}, s.state.Suspect(now, group, seen) })
	return err
}

// Attributes reads.
func (s *Store) Attributes(ctx context.Context, name string) (lease.Attributes, error) {
	return call(ctx, s, func(now clock.Instant) (lease.Attributes, error) { return s.state.Attributes(now, name) })
}

// SetAttributes writes.
func (s *Store) SetAttributes(ctx context.Context, seen lease.Attributes) (lease.Attributes, error) {
	return call(ctx, s, func(now clock.Instant) (lease.Attributes, error) { return s.state.SetAttributes(now, seen) })
}
