package mem_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/lease/storetest"
	"github.com/tenurehq/tenure/store/mem"
)

func engine(t *testing.T, o mem.Options) storetest.Engine {
	s := mem.New(o)
	t.Cleanup(s.Shutdown)
	return storetest.Engine{
		Open:    func(*testing.T) lease.Store { return s },
		TTL:     300 * time.Millisecond,
		Settle:  200 * time.Millisecond,
		Restart: func(*testing.T) { s.Restart() },
		Rewind: func(*testing.T) func() {
			backup := s.Snapshot()
			return func() { s.Restore(backup) }
		},
	}
}

// mem keeps every promise of a store.
func TestContract(t *testing.T) { storetest.Run(t, engine(t, mem.Options{})) }

// bubbleClock runs on time.Now, which is virtual in a bubble of synctest.
type bubbleClock struct{ began time.Time }

func (c bubbleClock) Now() clock.Instant    { return clock.Instant(time.Since(c.began)) + 1 }
func (c bubbleClock) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }

// A vacancy is announced at the moment of expiry though nobody calls the store,
// and the store lives in virtual time.
func TestExpiryUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mem.New(mem.Options{Clock: bubbleClock{time.Now()}})
		defer s.Shutdown()
		ctx := t.Context()
		for _, ttl := range []time.Duration{time.Hour, time.Minute} {
			n, err := s.Open(ctx, tenure.Candidate{ID: "a"}, ttl, lease.OpenOptions{Scope: lease.Scope{"*"}})
			if err != nil {
				t.Fatal(err)
			}
			group := "g" + ttl.String()[:2]
			if _, err := s.Acquire(ctx, n.ID, lease.Record{Group: group}); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		want := []time.Duration{time.Minute, time.Hour}
		for v, err := range s.Watch(ctx, lease.Scope{"*"}) {
			if err != nil {
				t.Fatal(err)
			}
			if v.Group == "" || v.State != tenure.Vacant {
				continue
			}
			if got := time.Since(began).Round(time.Microsecond); got != want[0] {
				t.Errorf("%q fell vacant after %v, want %v", v.Group, got, want[0])
			}
			if end := v.Terms[0].End; time.Until(end).Abs() > time.Microsecond {
				t.Errorf("its term ended at %v, now is %v", end, time.Now())
			}
			if want = want[1:]; len(want) == 0 {
				return
			}
		}
	})
}

// Shutdown ends every watch with an error and leaves nothing running; what is
// called after it fails without claiming anything.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mem.New(mem.Options{Clock: bubbleClock{time.Now()}})
		var watches sync.WaitGroup
		for range 3 {
			watches.Go(func() {
				var last error
				for _, err := range s.Watch(t.Context(), lease.Scope{"*"}) {
					last = err
				}
				if last == nil || lease.Definite(last) {
					t.Errorf("the watch ended with %v", last)
				}
			})
		}
		synctest.Wait()
		s.Shutdown()
		s.Shutdown()
		watches.Wait()
		if _, err := s.Read(t.Context(), "g"); err == nil || lease.Definite(err) {
			t.Errorf("a read after the end answered %v", err)
		}
		for _, err := range s.Watch(t.Context(), lease.Scope{"*"}) {
			if err == nil {
				t.Error("a watch after the end goes on")
			}
		}
	})
}

// A restore ends every watch with an error, so that its owner begins anew and
// sees what was taken back.
func TestRestoreBreaksWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mem.New(mem.Options{Clock: bubbleClock{time.Now()}})
		defer s.Shutdown()
		backup := s.Snapshot()
		if _, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Minute, lease.OpenOptions{Scope: lease.Scope{"*"}}); err != nil {
			t.Fatal(err)
		}
		var last error
		for v, err := range s.Watch(t.Context(), lease.Scope{"*"}) {
			last = err
			if err == nil && v.Group == "" {
				s.Restore(backup)
			}
		}
		if last == nil || lease.Definite(last) {
			t.Errorf("the watch ended with %v", last)
		}
		if m, err := s.Meta(t.Context()); err != nil || !m.Rewound {
			t.Errorf("meta is %+v, %v", m, err)
		}
	})
}

// A context that has ended is answered with its own error, and nothing is done.
func TestEndedContext(t *testing.T) {
	s := mem.New(mem.Options{})
	defer s.Shutdown()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Open(ctx, tenure.Candidate{ID: "a"}, time.Minute, lease.OpenOptions{Scope: lease.Scope{"*"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("open answered %v", err)
	}
	if sessions, err := s.Sessions(t.Context(), lease.Scope{"*"}, lease.Page{}); err != nil || len(sessions) != 0 {
		t.Errorf("%d sessions, %v", len(sessions), err)
	}
}
