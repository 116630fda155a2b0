package service

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
)

// hiddenSessionsStore is a store that does not show its sessions for a while.
type hiddenSessionsStore struct {
	store.Store
	closed atomic.Bool
	reads  atomic.Int64
}

func (s *hiddenSessionsStore) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	if !s.closed.Load() {
		return s.Store.Watch(ctx, scope)
	}
	return func(yield func(store.Update, error) bool) { yield(store.Update{}, errors.New("closed")) }
}

func (s *hiddenSessionsStore) Session(ctx context.Context, id store.SessionID) (store.Session, error) {
	if s.closed.Load() {
		return store.Session{}, errors.New("closed")
	}
	return s.Store.Session(ctx, id)
}

func (s *hiddenSessionsStore) Read(ctx context.Context, group string) (store.View, error) {
	s.reads.Add(1)
	return s.Store.Read(ctx, group)
}

func (s *hiddenSessionsStore) Caps() store.Caps {
	l := s.Store.Caps()
	l.MinTTL = 40 * time.Millisecond
	return l
}

// An instance that does not know the leader's TTL omits the remaining time, and answers from
// its cache only for a quarter of the shortest TTL. It finds out the TTL by itself.
func TestUnknownTTL(t *testing.T) {
	engine := memStore(t)
	lead(serve(t, engine, func(c *Config) { c.TTL = 20 * time.Second }), "billing", "a")
	store := &hiddenSessionsStore{Store: engine}
	store.closed.Store(true)
	in := serve(t, store, func(c *Config) { c.TTL = time.Minute })
	const path = "/v1/groups/billing/leader"
	if l := want[Leader](in, 200, "GET", path, nil); l.LeaseRemainingMS != nil {
		t.Errorf("of a TTL that it does not know it says that %d ms are left", *l.LeaseRemainingMS)
	}
	time.Sleep(20 * time.Millisecond) // more than a quarter of the shortest TTL, less than that of any other
	before := store.reads.Load()
	if l := want[Leader](in, 200, "GET", path+"?stale=1h", nil); l.AgeMS == nil || store.reads.Load() != before+1 {
		t.Errorf("an answer that is too old was given: %+v", l)
	}
	store.closed.Store(false)
	eventually(t, "it learns the TTL", func() bool {
		l := want[Leader](in, 200, "GET", path, nil)
		return l.LeaseRemainingMS != nil && *l.LeaseRemainingMS == 20_000
	})
	a, err := in.svc.reader.Read(t.Context(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "answers may be a quarter of it old", func() bool { return in.svc.stalest(a.View) == 5*time.Second })
}

// If the last renewal through this instance is older than the TTL, the remaining time is zero.
func TestNothingLeft(t *testing.T) {
	in := serve(t, memStore(t))
	l := lead(in, "billing", "a")
	h, err := in.svc.parseHandle(l.Handle)
	if err != nil {
		t.Fatal(err)
	}
	in.svc.sessions.Beaten(h.session, in.svc.clock.Now().Add(-time.Minute), 5*time.Second)
	if got := want[Leader](in, 200, "GET", "/v1/groups/billing/leader", nil); got.LeaseRemainingMS == nil || *got.LeaseRemainingMS != 0 {
		t.Errorf("%+v", got)
	}
}
