package kv_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// A watch that runs while the engine loses data ends with ErrRewound, whatever the store has
// read before and whenever it learns that an operator raised the epoch. Until then it shows no
// vacancy, because the loss ended the session and not a leader's death.
func TestWatchEndsAtLoss(t *testing.T) {
	engines := map[string]mem.Options{"ordered": {}, "hints": {Hints: true}, "observed": {Observed: true}, "one key": oneKey}
	for name, o := range engines {
		for _, seen := range []string{"read", "only watched"} {
			for _, raise := range []string{"never", "before it reads", "before it reads, by another", "while it reads"} {
				t.Run(name+"/"+seen+"/raised "+raise, func(t *testing.T) { lossWhileWatched(t, o, seen == "read", raise) })
			}
		}
	}
}

func lossWhileWatched(t *testing.T, o mem.Options, read bool, raise string) {
	d := newBent(t, o)
	s, other := client(t, d), client(t, d.Driver)
	var backup *mem.Snapshot
	d.Do(func(_ clock.Instant, e *mem.Engine) { backup = e.Snapshot() })
	w := subscribe(t, s)
	held := take(t, other, session(t, other, "a"))
	w.until("waiting for the grant", func(u store.Update) bool { return u.View.Token == held.Token })
	if read {
		_, err := s.Read(t.Context(), "g")
		must(t, err)
	}
	raiseBy := func(s *kv.Store) {
		_, err := s.RaiseEpoch(t.Context(), 1)
		must(t, err)
	}

	end := takesAll{sub: w}
	d.stall.Lock()
	d.Do(func(now clock.Instant, e *mem.Engine) { e.Restore(now, backup) })
	if m, err := other.Meta(t.Context()); err != nil || !m.Rewound {
		t.Fatalf("%+v, %v", m, err)
	}
	switch raise {
	case "before it reads":
		raiseBy(s)
	case "before it reads, by another":
		raiseBy(other)
	}
	var once sync.Once
	d.set(func() {
		d.commits = end.take
		if raise == "while it reads" {
			d.listed = func(string) { once.Do(func() { raiseBy(other) }) }
		}
	})
	d.stall.Unlock()
	end.withoutVacancy()
}

// takesAll takes from a watch at every possible moment, also while its store reads.
type takesAll struct {
	sub
	mu  sync.Mutex
	got []store.Update
	end error
}

func (w *takesAll) take(kv.Txn, kv.Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil {
		var updates []store.Update
		updates, w.end = w.Take()
		w.got = append(w.got, updates...)
	}
}

// withoutVacancy waits for the end of the watch, which must be ErrRewound.
func (w *takesAll) withoutVacancy() {
	w.t.Helper()
	ended := func() bool {
		w.take(kv.Txn{}, kv.Result{})
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.end != nil
	}
	for limit := time.After(patience); !ended(); {
		select {
		case <-w.wake:
		case <-limit:
			w.t.Fatal("the watch did not end")
		}
	}
	if !errors.Is(w.end, store.ErrRewound) {
		w.t.Errorf("it ended with %v", w.end)
	}
	for _, u := range w.got {
		if u.Kind == store.GroupChanged && u.View.State == tenure.Vacant {
			w.t.Errorf("shown as vacant under token %d", u.View.Token)
		}
	}
}

// If a restored engine still has the record, but the holder's session expired meanwhile, a
// running watch does not show the group as vacant under its last token.
func TestNoVacancyAfterLoss(t *testing.T) {
	for name, o := range map[string]mem.Options{"ordered": {}, "hints": {Hints: true}} {
		for _, raised := range []string{"not raised", "raised"} {
			t.Run(name+"/"+raised, func(t *testing.T) {
				d := newBent(t, o)
				s, other := client(t, d), client(t, d.Driver)
				id := session(t, other, "a")
				take(t, other, id)
				var backup *mem.Snapshot
				d.Do(func(_ clock.Instant, e *mem.Engine) { backup = e.Snapshot() })
				for range 5 {
					session(t, s, "b") // the index grows
				}
				end := takesAll{sub: subscribe(t, s)}
				end.take(kv.Txn{}, kv.Result{})
				d.stall.Lock()
				d.Do(func(now clock.Instant, e *mem.Engine) {
					e.Restore(now, backup)
					e.Revoke(now, string(id))
				})
				if raised == "raised" {
					_, err := s.RaiseEpoch(t.Context(), 1)
					must(t, err)
				}
				d.set(func() { d.commits = end.take })
				d.stall.Unlock()
				end.withoutVacancy()
			})
		}
	}
}
