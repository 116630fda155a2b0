package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

var retireEngines = map[string]mem.Options{"many keys": {}, "hints": {Hints: true}, "one key": oneKey}

const name = "set--g"

// cycle acquires and releases the name. The token must be larger than the last one.
func cycle(t *testing.T, s *kv.Store, id store.SessionID, last fence.Token) store.Record {
	t.Helper()
	v, err := s.Read(t.Context(), name)
	must(t, err)
	held, err := s.Acquire(t.Context(), id, v.Record)
	must(t, err)
	if held[0].Token <= last {
		t.Fatalf("token %d after %d", held[0].Token, last)
	}
	free, err := s.Release(t.Context(), id, "", store.Resigned, held...)
	must(t, err)
	return free[0]
}

// stops is a driver whose process dies at a write: that write and later ones fail.
type stops struct {
	*mem.Driver
	left int
}

var errDied = errors.New("the process has died")

func (d *stops) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if len(t.Then) > 0 {
		if d.left--; d.left < 0 {
			return kv.Result{}, errDied
		}
	}
	return d.Driver.Commit(ctx, t)
}

// If a process dies at any write of a Retire, another process gets a larger token, can remove the
// name itself, and takes nothing for lost data.
func TestRetireInterrupted(t *testing.T) {
	for engine, o := range retireEngines {
		t.Run(engine, func(t *testing.T) {
			for writes := 0; ; writes++ {
				d := newBent(t, o).Driver
				dying := &stops{d, 1 << 30}
				s, other := client(t, dying), client(t, d)
				id := session(t, other, "b")
				var last store.Record
				for range 2 * store.TermsKept { // with a history
					last = cycle(t, other, id, last.Token)
				}
				dying.left = writes
				err := s.Retire(t.Context(), last)
				next := cycle(t, other, id, last.Token)
				must(t, other.Retire(t.Context(), next))
				cycle(t, client(t, d), id, next.Token)
				if m, err := other.Meta(t.Context()); err != nil || m.Rewound {
					t.Fatalf("after %d writes: %+v, %v", writes, m, err)
				}
				if err == nil {
					return
				}
				if !errors.Is(err, errDied) {
					t.Fatalf("after %d writes: %v", writes, err)
				}
			}
		})
	}
}

// An acquire that has read the floor does not use it if the name comes and goes meanwhile.
func TestFloorReadBeforeRetire(t *testing.T) {
	for engine, o := range retireEngines {
		t.Run(engine, func(t *testing.T) {
			d := newBent(t, o)
			s, other := client(t, d), client(t, d.Driver)
			mine, theirs := session(t, s, "a"), session(t, other, "b")
			seen, err := s.Read(t.Context(), name)
			must(t, err)
			var once sync.Once
			var last store.Record
			d.set(func() {
				d.commits = func(txn kv.Txn, _ kv.Result) {
					if slices.ContainsFunc(txn.Read, func(key string) bool { return strings.HasPrefix(key, "floor/") }) {
						once.Do(func() {
							for range 3 {
								last = cycle(t, other, theirs, last.Token)
								must(t, other.Retire(t.Context(), last))
							}
						})
					}
				}
			})
			held, err := s.Acquire(t.Context(), mine, seen.Record)
			must(t, err)
			if held[0].Token <= last.Token || last.Token == 0 {
				t.Errorf("token %d after %d", held[0].Token, last.Token)
			}
		})
	}
}

// Names that come and go leave only the token floors of their prefix, 64 at most.
func TestNamesLeaveFloorsOnly(t *testing.T) {
	for engine, o := range retireEngines {
		t.Run(engine, func(t *testing.T) {
			d := newBent(t, o)
			s := client(t, d)
			id := session(t, s, "a")
			count := func() (n int) {
				d.Do(func(now clock.Instant, e *mem.Engine) { n = len(e.List(now, "", "", 1<<20)) })
				return n
			}
			before := count()
			var last store.Record
			for range 2 * store.TermsKept { // with a history
				last = cycle(t, s, id, last.Token)
			}
			must(t, s.Retire(t.Context(), last))
			for i := range 300 {
				group := fmt.Sprintf("set--%d", i)
				held, err := s.Acquire(t.Context(), id, store.Record{Group: group})
				must(t, err)
				free, err := s.Release(t.Context(), id, "", "", held...)
				must(t, err)
				must(t, s.Retire(t.Context(), free[0]))
			}
			if n := count() - before; n > 64 {
				t.Errorf("%d keys are left", n)
			}
		})
	}
}

// An engine whose floors went back grants nothing under them, although no record contradicts it.
func TestFloorWentBack(t *testing.T) {
	for engine, o := range retireEngines {
		t.Run(engine, func(t *testing.T) {
			d := newBent(t, o)
			s := client(t, d)
			id := session(t, s, "a")
			last := cycle(t, s, id, 0)
			must(t, s.Retire(t.Context(), last))
			d.Do(func(now clock.Instant, e *mem.Engine) {
				for _, i := range e.List(now, "floor/", "", 100) {
					e.Commit(now, kv.Txn{Then: []kv.Write{{Key: i.Key}}})
				}
			})
			_, err := s.Acquire(t.Context(), id, store.Record{Group: name})
			if !errors.Is(err, store.ErrRewound) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A watch shows that a name was removed, and then its next term.
func TestWatchRetired(t *testing.T) {
	for engine, o := range retireEngines {
		t.Run(engine, func(t *testing.T) {
			d := newBent(t, o)
			s, other := client(t, d), client(t, d.Driver)
			id := session(t, other, "a")
			w := subscribe(t, s)
			free := cycle(t, other, id, 0)
			w.until("waiting for the term", func(u store.Update) bool { return u.View.Token == free.Token })
			must(t, other.Retire(t.Context(), free))
			w.until("waiting for the removal", func(u store.Update) bool { return u.View.Group == name && u.View.Version == 0 })
			next := cycle(t, other, id, free.Token)
			w.until("waiting for the next term", func(u store.Update) bool { return u.View.Token == next.Token })
			if m, err := s.Meta(t.Context()); err != nil || m.Rewound {
				t.Errorf("%+v, %v", m, err)
			}
		})
	}
}
