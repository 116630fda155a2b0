package kv_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// patience is far longer than any of this takes.
const patience = 30 * time.Second

// bent is a memory driver that does what the test wants around its calls.
type bent struct {
	*mem.Driver
	stall   sync.Mutex
	mu      sync.Mutex
	listed  func(prefix string)       // after a listing, before it is returned
	commits func(kv.Txn, kv.Result)   // after a commit, before it is returned
	revokes func(ctx context.Context) // instead of a revocation
}

func (b *bent) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func hook[T any](b *bent, f *T) T {
	b.mu.Lock()
	defer b.mu.Unlock()
	return *f
}

func (b *bent) List(ctx context.Context, prefix, after string, limit int) ([]kv.Item, error) {
	items, err := b.Driver.List(ctx, prefix, after, limit)
	if f := hook(b, &b.listed); f != nil {
		f(prefix)
	}
	return items, err
}

func (b *bent) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	r, err := b.Driver.Commit(ctx, t)
	if f := hook(b, &b.commits); f != nil {
		f(t, r)
	}
	return r, err
}

// Watch stops while the test holds stall.
func (b *bent) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return func(yield func(kv.Change, error) bool) {
		for c, err := range b.Driver.Watch(ctx, tick, prefixes...) {
			b.stall.Lock()
			b.stall.Unlock() //nolint:staticcheck,gocritic // it only waits
			if !yield(c, err) {
				return
			}
		}
	}
}

func (b *bent) Revoke(ctx context.Context, id string) error {
	if f := hook(b, &b.revokes); f != nil {
		f(ctx)
		return ctx.Err()
	}
	return b.Driver.Revoke(ctx, id)
}

func newBent(t *testing.T, o mem.Options) *bent {
	d := mem.NewDriver(o)
	t.Cleanup(d.Close)
	return &bent{Driver: d}
}

func client(t *testing.T, d kv.Driver) *kv.Store {
	t.Helper()
	s, err := kv.New(t.Context(), d, kv.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func session(t *testing.T, s *kv.Store, id string) store.SessionID {
	t.Helper()
	n, err := s.Open(t.Context(), tenure.Candidate{ID: id}, time.Hour, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	return n.ID
}

// take acquires the group g.
func take(t *testing.T, s *kv.Store, id store.SessionID) store.Record {
	t.Helper()
	v, err := s.Read(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	held, err := s.Acquire(t.Context(), id, v.Record)
	if err != nil {
		t.Fatal(err)
	}
	return held[0]
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sub is a watch that the test takes from when it wants.
type sub struct {
	*kv.Sub
	t     *testing.T
	s     *kv.Store
	scope store.Scope
	wake  chan struct{}
}

func subscribe(t *testing.T, s *kv.Store, scope ...string) sub {
	t.Helper()
	if len(scope) == 0 {
		scope = []string{"*"}
	}
	w := sub{t: t, s: s, scope: scope, wake: make(chan struct{}, 1)}
	var err error
	w.Sub, err = s.Subscribe(t.Context(), scope, func() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	})
	must(t, err)
	t.Cleanup(w.Close)
	select {
	case <-w.wake: // the snapshot is there
	case <-time.After(patience):
		t.Fatalf("no snapshot within %v", patience)
	}
	return w
}

// The first watch of a store lists everything once.
func TestFirstWatchListsOnce(t *testing.T) {
	d := newBent(t, mem.Options{})
	var lists atomic.Int64
	s := client(t, d)
	session(t, s, "a")
	d.set(func() {
		d.listed = func(prefix string) {
			if prefix == "session/" {
				lists.Add(1)
			}
		}
	})
	w := subscribe(t, s)
	// What began after the snapshot comes after everything that the watch reads at first.
	id := session(t, s, "b")
	w.until("waiting for a session that began later", began(id))
	if n := lists.Load(); n != 1 {
		t.Errorf("sessions were listed %d times", n)
	}
}

// until takes updates until one is right, and returns all. A watch that ends because the
// engine lost data is begun again, as users must.
func (w sub) until(what string, right func(store.Update) bool) (all []store.Update) {
	w.t.Helper()
	limit := time.After(patience)
	for {
		updates, err := w.Take()
		if errors.Is(err, store.ErrRewound) {
			w = subscribe(w.t, w.s, w.scope...)
			continue
		}
		must(w.t, err)
		all = append(all, updates...)
		for _, u := range updates {
			if right(u) {
				return all
			}
		}
		select {
		case <-w.wake:
		case <-limit:
			w.t.Fatalf("%s: not within %v, after %d updates", what, patience, len(all))
		}
	}
}

func began(id store.SessionID) func(store.Update) bool {
	return func(u store.Update) bool { return u.Kind == store.SessionBegan && u.Session.ID == id }
}

func ended(id store.SessionID) func(store.Update) bool {
	return func(u store.Update) bool { return u.Kind == store.SessionEnded && u.Session.ID == id }
}

// What waits in a watch that nobody reads is bounded by what lives: a session that began and
// ended meanwhile is not told at all, one that was told before is told to have ended.
func TestWaitingUpdatesBounded(t *testing.T) {
	d := newBent(t, mem.Options{})
	s, other := client(t, d), client(t, d)
	before := session(t, other, "before")
	w, witness := subscribe(t, s), subscribe(t, s)
	first, err := w.Take()
	must(t, err)
	if len(first) != 2 || first[0].Session.ID != before || first[1].Kind != store.Synced {
		t.Fatalf("the snapshot is %+v", first)
	}
	for i := range 50 {
		id := session(t, other, fmt.Sprintf("n%d", i))
		witness.until("waiting for the beginning of a session", began(id))
		must(t, other.End(t.Context(), id, store.Closed))
		witness.until("waiting for the end of a session", ended(id))
	}
	must(t, other.End(t.Context(), before, store.Closed))
	witness.until("waiting for the end of the first", ended(before))
	got, err := w.Take()
	must(t, err)
	if len(got) != 1 || got[0].Kind != store.SessionEnded || got[0].Session.ID != before {
		t.Errorf("%d updates wait", len(got))
	}
}

// A holder that dies while a watch reads its beginning is not shown as leading.
func TestDeathWhileWatchBegins(t *testing.T) {
	for name, o := range map[string]mem.Options{"ordered": {}, "hints": {Hints: true}} {
		t.Run(name, func(t *testing.T) {
			d := newBent(t, o)
			s, other := client(t, d), client(t, d)
			holder := session(t, other, "holder")
			held := take(t, other, holder)
			witness := subscribe(t, s, "another-group")
			witness.until("waiting for the store to watch", began(session(t, other, "other")))
			var once sync.Once
			d.set(func() {
				d.listed = func(prefix string) {
					if prefix == "beat/" {
						once.Do(func() {
							must(t, other.End(context.WithoutCancel(t.Context()), holder, store.Closed))
							witness.until("waiting for the death", ended(holder))
						})
					}
				}
			})
			w := subscribe(t, s)
			told := w.until("waiting for the vacancy", func(u store.Update) bool {
				return u.Kind == store.GroupChanged && u.View.State == tenure.Vacant && u.View.Version == held.Version
			})
			for _, u := range append(told, w.until("waiting for another session", began(session(t, other, "next")))...) {
				if began(holder)(u) {
					t.Error("the dead session is shown as living")
				}
			}
		})
	}
}

// A store whose watch lags behind learns from another one's beginning that the giver of a
// group has died. It shows no vacancy: the group was handed over before.
func TestNoVacancyWhileWatchLags(t *testing.T) {
	d := newBent(t, mem.Options{})
	s, other := client(t, d), client(t, d.Driver)
	giver, next := session(t, other, "giver"), session(t, other, "next")
	w := subscribe(t, s)
	held := take(t, other, giver)
	led := func(r store.Record) func(store.Update) bool {
		return func(u store.Update) bool { return u.View.Version == r.Version && u.View.State == tenure.Led }
	}
	w.until("waiting for the grant", led(held))
	d.stall.Lock()
	given, err := other.Release(t.Context(), giver, next, "", held)
	must(t, err)
	must(t, other.End(t.Context(), giver, store.Closed))
	var told []store.Update
	take := func() {
		updates, err := w.Take()
		must(t, err)
		told = append(told, updates...)
	}
	d.set(func() { d.commits = func(kv.Txn, kv.Result) { take() } }) // whenever the store reads
	late := subscribe(t, s)
	d.set(func() { d.commits = nil })
	take()
	d.stall.Unlock()
	for _, u := range append(told, late.until("waiting for the snapshot", led(given[0]))...) {
		if u.Kind == store.GroupChanged && u.View.State == tenure.Vacant {
			t.Errorf("shown as vacant at version %d, handed over at version %d", u.View.Version, given[0].Version)
		}
	}
}

// After a rewind and a raise a watch shows groups as they are, though their versions are
// below those that it has shown before.
func TestWatchAfterRaise(t *testing.T) {
	for name, o := range map[string]mem.Options{"ordered": {}, "hints": {Hints: true}} {
		t.Run(name, func(t *testing.T) {
			d := newBent(t, o)
			s, other := client(t, d), client(t, d)
			id := session(t, other, "a")
			var backup *mem.Snapshot
			d.Do(func(_ clock.Instant, e *mem.Engine) { backup = e.Snapshot() })
			w := subscribe(t, s)
			var last store.Record
			for range 10 {
				last = take(t, other, id)
				_, err := other.Release(t.Context(), id, "", store.Resigned, last)
				must(t, err)
			}
			w.until("waiting for the last term", func(u store.Update) bool { return u.View.Token == last.Token })
			d.stall.Lock() // a watch that sees the rewind before the raise ends
			d.Do(func(now clock.Instant, e *mem.Engine) { e.Restore(now, backup) })
			if m, err := other.Meta(t.Context()); err != nil || !m.Rewound {
				t.Fatalf("%+v, %v", m, err)
			}
			_, err := other.RaiseEpoch(t.Context(), 1)
			must(t, err)
			_, err = s.Meta(t.Context())
			must(t, err)
			d.stall.Unlock()
			held := take(t, other, id)
			if held.Version >= last.Version {
				t.Fatalf("version %d after %d: it did not go back", held.Version, last.Version)
			}
			w.until("waiting for the term after the raise", func(u store.Update) bool {
				return u.View.Token == held.Token && u.View.State == tenure.Led
			})
			if m, err := s.Meta(t.Context()); err != nil || m.Rewound {
				t.Errorf("the watch has marked it again: %+v, %v", m, err)
			}
		})
	}
}

// An answer from before the raise that arrives after it says nothing about lost data.
func TestAnswerFromBeforeRaise(t *testing.T) {
	d := newBent(t, mem.Options{})
	slow, other := client(t, d), client(t, d.Driver)
	var backup *mem.Snapshot
	d.Do(func(_ clock.Instant, e *mem.Engine) { backup = e.Snapshot() })
	take(t, slow, session(t, slow, "a"))
	d.Do(func(now clock.Instant, e *mem.Engine) { e.Restore(now, backup) })
	read, let := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.set(func() {
		d.commits = func(txn kv.Txn, _ kv.Result) {
			if slices.Contains(txn.Read, "record/g") {
				once.Do(func() { close(read); <-let })
			}
		}
	})
	done := make(chan error, 1)
	go func() {
		_, err := slow.Read(context.WithoutCancel(t.Context()), "g")
		done <- err
	}()
	<-read
	_, err := other.RaiseEpoch(t.Context(), 1)
	must(t, err)
	_, err = slow.Meta(t.Context())
	must(t, err)
	if m, err := slow.Meta(t.Context()); err != nil || m.Rewound { // it knows of the raise
		_, err = other.RaiseEpoch(t.Context(), 2)
		must(t, err)
		_, err = slow.Meta(t.Context())
		must(t, err)
	}
	close(let)
	must(t, <-done)
	if m, err := slow.Meta(t.Context()); err != nil || m.Rewound {
		t.Errorf("%+v, %v", m, err)
	}
}

// Leases are revoked beside everything else, a bounded number at once, and closing does not
// wait for them.
func TestRevokesBounded(t *testing.T) {
	d := newBent(t, mem.Options{})
	s := client(t, d)
	var mu sync.Mutex
	now, most := 0, 0
	d.set(func() {
		d.revokes = func(ctx context.Context) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			now--
			mu.Unlock()
		}
	})
	for i := range 100 {
		must(t, s.End(t.Context(), session(t, s, fmt.Sprintf("n%d", i)), store.Closed))
	}
	s.Close()
	mu.Lock()
	defer mu.Unlock()
	if most > 64 || most == 0 || now != 0 {
		t.Errorf("%d revocations at once, %d after the end", most, now)
	}
}

// manual is a clock that the test moves.
type manual struct {
	clock.Clock
	mu  sync.Mutex
	now clock.Instant
}

func (m *manual) Now() clock.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *manual) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(d)
}

// What a dead session left behind is swept up after a while, but not the reason of its end
// while a record needs it.
func TestSweep(t *testing.T) {
	for name, o := range map[string]mem.Options{"many keys": {Observed: true}, "one key": oneKey} {
		t.Run(name, func(t *testing.T) {
			c := &manual{Clock: clock.System(), now: 1}
			d := newBent(t, o)
			s, err := kv.New(t.Context(), d, kv.Config{Clock: c})
			must(t, err)
			t.Cleanup(s.Close)
			id, gone := session(t, s, "stays"), session(t, s, "gone")
			forced := session(t, s, "forced")
			take(t, s, forced)
			must(t, s.Ask(t.Context(), gone, store.Request{ID: "r", Verb: store.StepDown, Group: "g", TTL: time.Minute}))
			must(t, s.End(t.Context(), gone, store.Closed))
			must(t, s.End(t.Context(), forced, store.Forced))
			subscribe(t, s)
			for range 30 {
				must(t, s.Sweep(t.Context()))
				c.Advance(time.Minute)
				_, err := s.KeepAlive(t.Context(), id)
				must(t, err)
			}
			want := []string{"session/" + string(id), "session/" + string(forced), "beat/" + string(id)}
			if o.Keys == 1 {
				want = append(want, "beat/"+string(forced))
			}
			var left []string
			for _, prefix := range []string{"session/", "requests/", "beat/"} {
				items, err := d.List(t.Context(), prefix, "", 1000)
				must(t, err)
				for _, i := range items {
					left = append(left, i.Key)
				}
			}
			slices.Sort(want)
			slices.Sort(left)
			if !slices.Equal(left, want) {
				t.Errorf("left are %v, want %v", left, want)
			}
			terms, err := client(t, d).History(t.Context(), "g", store.Page{})
			if err != nil || len(terms) != 1 || terms[0].Reason != store.Forced {
				t.Errorf("%+v, %v", terms, err)
			}
		})
	}
}
