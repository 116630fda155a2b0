package lease_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// bubbleClock runs on package time, which is virtual inside a bubble.
type bubbleClock struct{ origin time.Time }

func (c bubbleClock) Now() clock.Instant { return clock.Instant(time.Since(c.origin)) + 1 }

func (c bubbleClock) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }

// jumpyClock is ahead of another clock by as much as it has jumped. What its
// timers were set to before a jump does not come sooner for it: so it is with
// the runtime's timers after a suspend.
type jumpyClock struct {
	clock.Clock
	ahead atomic.Int64
}

func (c *jumpyClock) Now() clock.Instant { return c.Clock.Now().Add(time.Duration(c.ahead.Load())) }

func (c *jumpyClock) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }

func (c *jumpyClock) jump(d time.Duration) { c.ahead.Add(int64(d)) }

// world is a store in memory, and virtual time.
type world struct {
	*testing.T
	clock clock.Clock
	mem   *mem.Store
}

// bubble runs f on virtual time. A goroutine that is left at the end fails the
// test.
func bubble(t *testing.T, f func(w *world)) {
	t.Helper()
	if raced {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	synctest.Test(t, func(t *testing.T) {
		c := bubbleClock{time.Now()}
		w := &world{T: t, clock: c, mem: mem.New(mem.Options{Clock: c})}
		t.Cleanup(w.mem.Close)
		f(w)
	})
}

// patience is how long a test waits, on virtual time, for what should have come
// long before: nodes beat for ever, so a wait without a bound would never end.
const patience = 10 * time.Minute

func (w *world) soon() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	w.Cleanup(cancel)
	return ctx
}

// config is candidate id, standing for everything, with the default timing.
func (w *world) config(id string, change ...func(*lease.Config)) lease.Config {
	cfg := lease.Config{
		Candidate: tenure.Candidate{ID: id},
		Scope:     store.Scope{"*"},
		Log:       slog.New(slog.DiscardHandler),
		Clock:     w.clock,
	}
	for _, c := range change {
		c(&cfg)
	}
	cfg.Timing = cfg.Timing.Resolve()
	return cfg
}

// node starts a node. It is closed with the test, whatever it holds by then.
func (w *world) node(s store.Store, id string, change ...func(*lease.Config)) *lease.Node {
	w.Helper()
	n, err := lease.New(s, w.config(id, change...))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = n.Close(ctx)
	})
	return n
}

func (w *world) elector(n *lease.Node, group string) *lease.Elector {
	w.Helper()
	e, err := n.Elector(group)
	if err != nil {
		w.Fatal(err)
	}
	return e
}

// win campaigns, and requires to lead.
func (w *world) win(n *lease.Node, group string) *tenure.Term {
	w.Helper()
	term, err := w.elector(n, group).Campaign(w.soon())
	if err != nil {
		w.Fatalf("group %q is not won: %v", group, err)
	}
	return term
}

// campaign campaigns beside the test, which goes on when nothing moves any more.
func (w *world) campaign(ctx context.Context, n *lease.Node, group string) <-chan result {
	w.Helper()
	e := w.elector(n, group)
	c := make(chan result, 1)
	go func() {
		term, err := e.Campaign(ctx)
		c <- result{term, err, time.Now()}
	}()
	synctest.Wait()
	return c
}

type result struct {
	term *tenure.Term
	err  error
	at   time.Time
}

// get waits for the result of a campaign.
func (w *world) get(c <-chan result) result {
	w.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(patience):
		w.Fatal("the campaign has not returned")
		return result{}
	}
}

// won waits for the result of a campaign, and requires to lead.
func (w *world) won(c <-chan result) result {
	w.Helper()
	r := w.get(c)
	if r.err != nil || r.term == nil {
		w.Fatalf("the campaign returned %v, %v", r.term, r.err)
	}
	return r
}

// ended waits for the end of a term and returns its cause and when it was.
func (w *world) ended(term *tenure.Term) (time.Time, error) {
	w.Helper()
	select {
	case <-term.Context().Done():
		return time.Now(), context.Cause(term.Context())
	case <-time.After(patience):
		w.Fatalf("the term of group %q does not end", term.Group())
		return time.Time{}, nil
	}
}

// resign says that the work of a term has stopped.
func (w *world) resign(term *tenure.Term) {
	w.Helper()
	if err := term.Resign(w.soon()); err != nil {
		w.Fatalf("group %q is not resigned: %v", term.Group(), err)
	}
}

// obedient is work that stops when it is told.
func obedient(term *tenure.Term) {
	context.AfterFunc(term.Context(), func() { _ = term.Resign(context.Background()) })
}

func (w *world) read(group string) store.View {
	w.Helper()
	v, err := w.mem.Read(context.Background(), group)
	if err != nil {
		w.Fatal(err)
	}
	return v
}

// led requires the store to say who leads.
func (w *world) led(group, candidate string) store.View {
	w.Helper()
	v := w.read(group)
	if v.State != tenure.Led || v.Candidate.ID != candidate {
		w.Fatalf("the store says that %q is %v by %q, want led by %q", group, v.State, v.Candidate.ID, candidate)
	}
	return v
}

func (w *world) vacant(group string) store.View {
	w.Helper()
	v := w.read(group)
	if v.State != tenure.Vacant {
		w.Fatalf("the store says that %q is %v by %q, want vacant", group, v.State, v.Candidate.ID)
	}
	return v
}

func (w *world) sessions() []store.Session {
	w.Helper()
	all, err := w.mem.Sessions(context.Background(), store.Scope{"*"}, store.Page{})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// yield lets others run for a while.
func yield(times int) {
	for range times {
		runtime.Gosched()
	}
}

// method is a method of store.Store that nodes call.
type method string

const (
	open      method = "Open"
	keepAlive method = "KeepAlive"
	closing   method = "Close"
	acquire   method = "Acquire"
	release   method = "Release"
	answer    method = "Answer"
	read      method = "Read"
	sessions  method = "Sessions"
	watch     method = "Watch"
)

// methods are all but watch, which is a stream and no call.
func methods() []method {
	return []method{open, keepAlive, closing, acquire, release, answer, read, sessions}
}

// passage is what a double does to a call: apply makes it.
type passage func(ctx context.Context, m method, apply func() error) error

// through sends everything that a node asks through one passage. Of a watch it
// is the beginning that goes through.
type through struct {
	store.Store
	pass passage
}

func pass[T any](ctx context.Context, s through, m method, f func() (T, error)) (T, error) {
	var got, zero T
	err := s.pass(ctx, m, func() (err error) {
		got, err = f()
		return err
	})
	if err != nil {
		return zero, err
	}
	return got, nil
}

func (s through) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	return pass(ctx, s, open, func() (store.Session, error) { return s.Store.Open(ctx, c, ttl, o) })
}

func (s through) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	return pass(ctx, s, keepAlive, func() (store.Beat, error) { return s.Store.KeepAlive(ctx, id, groups...) })
}

func (s through) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	return s.pass(ctx, closing, func() error { return s.Store.End(ctx, id, why, seen...) })
}

func (s through) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	return pass(ctx, s, acquire, func() ([]store.Record, error) { return s.Store.Acquire(ctx, id, seen...) })
}

func (s through) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	return pass(ctx, s, release, func() ([]store.Record, error) { return s.Store.Release(ctx, id, to, why, held...) })
}

func (s through) Answer(ctx context.Context, id store.SessionID, request string, a store.Answer) error {
	return s.pass(ctx, answer, func() error { return s.Store.Answer(ctx, id, request, a) })
}

func (s through) Read(ctx context.Context, group string) (store.View, error) {
	return pass(ctx, s, read, func() (store.View, error) { return s.Store.Read(ctx, group) })
}

func (s through) Sessions(ctx context.Context, scope store.Scope, p store.Page) ([]store.Session, error) {
	return pass(ctx, s, sessions, func() ([]store.Session, error) { return s.Store.Sessions(ctx, scope, p) })
}

func (s through) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		if err := s.pass(ctx, watch, func() error { return nil }); err != nil {
			yield(store.Update{}, err)
			return
		}
		for v, err := range s.Store.Watch(ctx, scope) {
			if !yield(v, err) {
				return
			}
		}
	}
}

// hungStore keeps the calls that hang, for ever and whatever their context says,
// until it is let go. Then they fail, because their context has ended.
type hungStore struct {
	store.Store
	freed chan struct{}

	mu    sync.Mutex
	hangs []method
	held  int // calls that hang
	total int // calls that ever hung
}

func newHungStore(t testing.TB, inner store.Store) *hungStore {
	s := &hungStore{freed: make(chan struct{})}
	s.Store = through{inner, s.hold}
	t.Cleanup(s.letGo)
	return s
}

func (s *hungStore) hold(_ context.Context, m method, apply func() error) error {
	s.mu.Lock()
	hang, freed := slices.Contains(s.hangs, m), s.freed
	if hang {
		s.held++
		s.total++
	}
	s.mu.Unlock()
	if hang {
		<-freed
		s.mu.Lock()
		s.held--
		s.mu.Unlock()
	}
	return apply()
}

// hang makes these methods hang from now on.
func (s *hungStore) hang(m ...method) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = m
}

// letGo ends all hanging.
func (s *hungStore) letGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = nil
	close(s.freed)
	s.freed = make(chan struct{})
}

func (s *hungStore) hanging() (held, total int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held, s.total
}

// slowStore takes a round trip for every call: half of it on the way there, half
// on the way back. A context that ends on the way is obeyed, and what has
// arrived is applied. What a watch brings is half a round trip old.
type slowStore struct {
	store.Store
	roundTrip time.Duration
}

func newSlowStore(inner store.Store, roundTrip time.Duration) *slowStore {
	s := &slowStore{roundTrip: roundTrip}
	s.Store = through{inner, s.travel}
	return s
}

func (s *slowStore) travel(ctx context.Context, m method, apply func() error) error {
	if m == watch {
		return nap(ctx, s.roundTrip/2)
	}
	if err := nap(ctx, s.roundTrip/2); err != nil {
		return err
	}
	err := apply()
	if lost := nap(ctx, s.roundTrip-s.roundTrip/2); lost != nil {
		return lost
	}
	return err
}

func (s *slowStore) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	type letter struct {
		update  store.Update
		err     error
		arrives time.Time
	}
	return func(yield func(store.Update, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		letters := make(chan *letter, 1<<14)
		var sender sync.WaitGroup
		defer sender.Wait()
		defer cancel()
		sender.Go(func() {
			defer close(letters)
			for v, err := range s.Store.Watch(ctx, scope) {
				select {
				case letters <- &letter{v, err, time.Now().Add(s.roundTrip / 2)}:
				case <-ctx.Done():
					return
				}
			}
		})
		for l := range letters {
			if err := nap(ctx, time.Until(l.arrives)); err != nil && l.err == nil {
				l.err = err
			}
			if !yield(l.update, l.err) {
				return
			}
		}
	}
}

func nap(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var (
	errDown = errors.New("flakyStore: down")
	errLost = errors.New("flakyStore: the reply was lost")
)

// flakyStore makes calls and loses their replies: half of them at once, the
// others by silence until the context ends. While it is down it makes no call,
// and its watches break.
type flakyStore struct {
	store.Store

	mu     sync.Mutex
	rand   *rand.Rand
	rates  map[method]float64
	lost   map[method]int
	down   bool
	broken chan struct{} // closed when it goes down
}

func newFlakyStore(inner store.Store, seed uint64) *flakyStore {
	s := &flakyStore{rand: rand.New(rand.NewPCG(seed, 1)), rates: map[method]float64{}, lost: map[method]int{}, broken: make(chan struct{})}
	s.Store = through{inner, s.stumble}
	return s
}

// lose loses the replies of these methods from now on, at this rate.
func (s *flakyStore) lose(rate float64, m ...method) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range m {
		s.rates[m] = rate
	}
}

// losses counts the replies that were lost.
func (s *flakyStore) losses(m method) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost[m]
}

func (s *flakyStore) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if down && !s.down {
		close(s.broken)
	}
	if !down && s.down {
		s.broken = make(chan struct{})
	}
	s.down = down
}

func (s *flakyStore) stumble(ctx context.Context, m method, apply func() error) error {
	s.mu.Lock()
	down := s.down
	lose := s.rand.Float64() < s.rates[m]
	silent := s.rand.IntN(2) == 0
	if lose && !down {
		s.lost[m]++
	}
	s.mu.Unlock()
	if down {
		return errDown
	}
	err := apply()
	switch {
	case !lose:
		return err
	case silent:
		<-ctx.Done()
		return context.Cause(ctx)
	default:
		return errLost
	}
}

func (s *flakyStore) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		s.mu.Lock()
		broken := s.broken
		s.mu.Unlock()
		ctx, cancel := context.WithCancelCause(ctx)
		var guard sync.WaitGroup
		defer guard.Wait()
		defer cancel(nil)
		guard.Go(func() {
			select {
			case <-broken:
				cancel(errDown)
			case <-ctx.Done():
			}
		})
		for v, err := range s.Store.Watch(ctx, scope) {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// trippingStore does something in the middle of a call: when it has been sent,
// and was not applied yet.
type trippingStore struct {
	store.Store

	mu   sync.Mutex
	on   method
	trip func()
}

func newTrippingStore(inner store.Store) *trippingStore {
	s := &trippingStore{}
	s.Store = through{inner, s.step}
	return s
}

// set says what to do in the next call of a method, once.
func (s *trippingStore) set(on method, trip func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.trip = on, trip
}

func (s *trippingStore) step(_ context.Context, m method, apply func() error) error {
	s.mu.Lock()
	var trip func()
	if m == s.on {
		trip, s.trip, s.on = s.trip, nil, ""
	}
	s.mu.Unlock()
	if trip != nil {
		trip()
	}
	return apply()
}

// countingStore counts the calls, and remembers when the newest call that
// extends trust and was acknowledged had been sent.
type countingStore struct {
	store.Store

	mu       sync.Mutex
	calls    map[method]int
	underWay map[method]int
	heard    time.Time
}

func newCountingStore(inner store.Store) *countingStore {
	s := &countingStore{calls: map[method]int{}, underWay: map[method]int{}}
	s.Store = through{inner, s.count}
	return s
}

func (s *countingStore) count(_ context.Context, m method, apply func() error) error {
	sent := time.Now()
	s.mu.Lock()
	s.calls[m]++
	s.underWay[m]++
	s.mu.Unlock()
	err := apply()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay[m]--
	if err == nil && (m == open || m == keepAlive) {
		s.heard = sent
	}
	return err
}

// waiting counts the calls that have not been answered yet.
func (s *countingStore) waiting(m method) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.underWay[m]
}

func (s *countingStore) counted(m method) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[m]
}

// total counts all calls but the watches.
func (s *countingStore) total() int {
	sum := 0
	for _, m := range methods() {
		sum += s.counted(m)
	}
	return sum
}

func (s *countingStore) lastHeard() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard
}
