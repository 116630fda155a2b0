package kv_test

import (
	"context"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// failovers is a driver of an engine that fails over: each life of its data knows where it began.
type failovers struct {
	*mem.Driver
	id    string
	began uint64
	after func() // called once, after the next Incarnation
}

func (l *failovers) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	r, err := l.Driver.Commit(ctx, t)
	r.Incarnation = l.id
	return r, err
}

func (l *failovers) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	i, err := l.Driver.Incarnation(ctx)
	i = kv.Incarnation{ID: l.id, Began: l.began, Index: i.Index}
	if f := l.after; f != nil {
		l.after = nil
		f()
	}
	return i, err
}

// After a failover that lost a grant, a client that had not seen the grant goes on, and cannot
// know better. The client that had seen it reports the loss, though the other has accepted the
// new life of the data, and though the index has passed the one that was lost.
func TestFailoverLost(t *testing.T) {
	for name, lost := range map[string]bool{"lost": true, "nothing lost": false} {
		t.Run(name, func(t *testing.T) {
			d := &failovers{Driver: newBent(t, mem.Options{Observed: true}).Driver, id: "first"}
			a, b := client(t, d), client(t, d)
			session(t, b, "b")
			holder := session(t, a, "a")
			var kept *mem.Snapshot
			d.Do(func(_ clock.Instant, e *mem.Engine) { kept = e.Snapshot() })
			take(t, a, holder)
			d.Do(func(now clock.Instant, e *mem.Engine) {
				if lost {
					e.Restore(now, kept)
				}
				d.began = e.Index()
			})
			d.id = "second"
			if m, err := b.Meta(t.Context()); err != nil || m.Rewound {
				t.Fatalf("who has not seen the grant: %+v, %v", m, err)
			}
			for range 5 {
				if _, err := b.Open(t.Context(), tenure.Candidate{ID: "b"}, time.Hour, store.OpenOptions{Scope: store.Scope{"*"}}); err != nil {
					t.Fatal(err)
				}
			}
			_, beat := a.KeepAlive(t.Context(), holder)
			m, err := a.Meta(t.Context())
			if err != nil || m.Rewound != lost || (beat != nil) != lost {
				t.Errorf("who has seen the grant: %+v, %v; its keep-alive: %v", m, err, beat)
			}
		})
	}
}

// A failover between two reads of one call is no loss of data.
func TestFailoverBetweenReads(t *testing.T) {
	d := &failovers{Driver: newBent(t, mem.Options{Observed: true}).Driver, id: "first"}
	a, b := client(t, d), client(t, d)
	d.after = func() {
		d.Do(func(_ clock.Instant, e *mem.Engine) { d.id, d.began = "second", e.Index() })
		if m, err := b.Meta(t.Context()); err != nil || m.Rewound {
			t.Errorf("%+v, %v", m, err)
		}
	}
	if m, err := a.Meta(t.Context()); err != nil || m.Rewound {
		t.Errorf("%+v, %v", m, err)
	}
}

// beatless is a driver of an engine that can lose keep-alives, which its index does not count.
type beatless struct{ *mem.Driver }

func (b beatless) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	r, err := b.Driver.Commit(ctx, t)
	r.Index = 0
	return r, err
}

// After a failover that lost keep-alives, a session whose owner is silent still ends: its beat has
// an older version than the one that was observed before.
func TestExpiryAfterLostBeats(t *testing.T) {
	d := beatless{newBent(t, mem.Options{Observed: true}).Driver}
	a, b := client(t, d), client(t, d)
	n, err := a.Open(t.Context(), tenure.Candidate{ID: "a"}, 200*time.Millisecond, store.OpenOptions{Scope: store.Scope{"*"}})
	must(t, err)
	take(t, a, n.ID) // holders are observed
	var kept *mem.Snapshot
	d.Do(func(_ clock.Instant, e *mem.Engine) { kept = e.Snapshot() })
	_, err = a.KeepAlive(t.Context(), n.ID)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for u, err := range b.Watch(ctx, store.Scope{"*"}) {
		must(t, err)
		if u.Kind == store.Synced {
			d.Do(func(now clock.Instant, e *mem.Engine) { e.Restore(now, kept) })
		}
		if u.Kind == store.SessionEnded && u.Session.ID == n.ID {
			return
		}
	}
}
