package kv_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// lives is an engine that can say that another life of its data began at an index.
type lives struct {
	kv.Driver
	life  *atomic.Pointer[kv.Incarnation] // nil: the first one
	ahead *atomic.Uint64                  // added to the index
}

func (l lives) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	i, err := l.Driver.Incarnation(ctx)
	i.ID, i.Began, i.Index = l.id(), 1, i.Index+l.ahead.Load()
	if now := l.life.Load(); now != nil {
		i.Began = now.Began
	}
	return i, err
}

func (l lives) id() string {
	if now := l.life.Load(); now != nil {
		return now.ID
	}
	return "first"
}

func (l lives) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	r, err := l.Driver.Commit(ctx, t)
	r.Incarnation, r.Index = l.id(), r.Index+l.ahead.Load()
	return r, err
}

// A new life of the engine's data is a loss for a client that has seen more than it began with,
// also if another client, which has not, noticed it first and the index is larger by now.
func TestIncarnationBegan(t *testing.T) {
	for name, missing := range map[string]uint64{"one commit is missing": 1, "nothing is missing": 0} {
		t.Run(name, func(t *testing.T) {
			l := lives{newBent(t, mem.Options{Observed: true}).Driver, &atomic.Pointer[kv.Incarnation]{}, &atomic.Uint64{}}
			before := client(t, l)
			session(t, before, "a")
			seen, err := l.Incarnation(t.Context())
			must(t, err)
			l.life.Store(&kv.Incarnation{ID: "second", Began: seen.Index - missing})
			l.ahead.Store(100)
			if m, err := client(t, l).Meta(t.Context()); err != nil || m.Rewound {
				t.Fatalf("a new client: %+v, %v", m, err)
			}
			if m, err := before.Meta(t.Context()); err != nil || m.Rewound != (missing > 0) {
				t.Errorf("the client that saw index %d: %+v, %v", seen.Index, m, err)
			}
		})
	}
}
