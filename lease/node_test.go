package lease_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// trustOf is how long one keep-alive may be believed.
func trustOf(t lease.Timing) time.Duration { return t.Explain(lease.Assume{}).Trust }

// endsAt requires the term to be good until a millisecond before that moment,
// and to be over at it, with that cause.
func (w *world) endsAt(term *tenure.Term, at time.Time, cause error) {
	w.Helper()
	time.Sleep(time.Until(at) - time.Millisecond)
	synctest.Wait()
	if err := term.Context().Err(); err != nil {
		w.Fatalf("the term has ended too early: %v", context.Cause(term.Context()))
	}
	if err := term.Check(); err != nil {
		w.Fatalf("a millisecond before the end: %v", err)
	}
	time.Sleep(time.Millisecond)
	synctest.Wait()
	if err := context.Cause(term.Context()); !errors.Is(err, cause) {
		w.Fatalf("the context of the term says %v, want %v", err, cause)
	}
	if err := term.Check(); !errors.Is(err, cause) {
		w.Fatalf("Check says %v, want %v", err, cause)
	}
}

// A call that hangs, and ignores its context for ever, does not delay the end of
// a term: it ends when trust does, counted from the sending of the last
// keep-alive that was acknowledged, to the millisecond.
func TestHungCallDelaysNoEnd(t *testing.T) {
	for name, hangs := range map[string][]method{
		"keep-alive": {keepAlive},
		"everything": append(methods(), watch),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				hung := newHungStore(w, newSlowStore(w.mem, 300*time.Millisecond))
				store := newCountingStore(hung)
				n := w.node(store, "a")
				term := w.win(n, "g")
				time.Sleep(7 * time.Second)
				hung.hang(hangs...)
				w.endsAt(term, store.lastHeard().Add(trustOf(lease.Default())), tenure.ErrExpired)
				if held, _ := hung.hanging(); held == 0 {
					w.Error("nothing hangs: the test has tested nothing")
				}
			})
		})
	}
}

// However long a store hangs, only so many calls wait in it, and when it comes
// back the node leads again, without anybody's help.
func TestHungCallsAreBounded(t *testing.T) {
	const most = 128
	bubble(t, func(w *world) {
		hung := newHungStore(w, w.mem)
		n := w.node(hung, "a")
		term := w.win(n, "g")
		before := runtime.NumGoroutine()
		hung.hang(methods()...)
		if _, err := w.ended(term); !errors.Is(err, tenure.ErrExpired) {
			w.Fatal(err)
		}
		w.resign(term)
		again := w.campaign(w.Context(), n, "g")
		for range 60 {
			time.Sleep(time.Minute / 2)
			held, _ := hung.hanging()
			if more := runtime.NumGoroutine() - before; held > most || more > most+10 {
				w.Fatalf("%d calls hang, and %d goroutines are new", held, more)
			}
		}
		if held, total := hung.hanging(); held < most/2 {
			w.Errorf("%d calls hang of %d: the bound of %d was not tested", held, total, most)
		}
		hung.letGo()
		if r := w.won(again); r.term.Token() <= term.Token() {
			w.Errorf("token %d after %d", r.term.Token(), term.Token())
		}
	})
}

// A watch is no call, but one that hangs is a goroutine too: their number has a
// bound like that of the calls.
func TestHungWatchesAreBounded(t *testing.T) {
	bubble(t, func(w *world) {
		hung := newHungStore(w, w.mem)
		hung.hang(watch)
		n := w.node(hung, "a")
		again := w.campaign(w.Context(), n, "g")
		time.Sleep(time.Hour)
		if held, _ := hung.hanging(); held > 128 {
			w.Errorf("%d watches hang", held)
		}
		hung.letGo()
		w.won(again)
	})
}

// A watch that breaks is started anew: a candidate in line hears of the vacancy.
func TestBrokenWatchIsReplaced(t *testing.T) {
	bubble(t, func(w *world) {
		flaky := newFlakyStore(w.mem, 1)
		a, b := w.node(w.mem, "a"), w.node(flaky, "b")
		term := w.win(a, "g")
		next := w.campaign(w.soon(), b, "g")
		for range 5 {
			flaky.setDown(true)
			time.Sleep(time.Second)
			flaky.setDown(false)
			time.Sleep(lease.Default().BackoffMax)
		}
		begin := time.Now()
		w.resign(term)
		if took := w.won(next).at.Sub(begin); took > 100*time.Millisecond {
			w.Errorf("b leads after %v", took)
		}
	})
}

// A watch that says nothing is given up before another is started: there is
// never more than one.
func TestSilentWatchIsReplaced(t *testing.T) {
	bubble(t, func(w *world) {
		flaky := newFlakyStore(w.mem, 1)
		store := newCountingStore(flaky)
		flaky.lose(1, watch)
		n := w.node(store, "a")
		c := w.campaign(w.Context(), n, "g")
		for range 100 {
			time.Sleep(lease.Default().TTL / 4)
			synctest.Wait()
			if n := store.waiting(watch); n > 1 {
				w.Fatalf("%d watches at once", n)
			}
		}
		if flaky.losses(watch) < 10 {
			w.Errorf("only %d watches were started", flaky.losses(watch))
		}
		flaky.lose(0, watch)
		begin := time.Now()
		if took := w.won(c).at.Sub(begin); took > lease.Default().TTL+lease.Default().BackoffMax {
			w.Errorf("led %v after the watches work again", took)
		}
	})
}

// mutedStore has watches that show nothing any more from when it is muted. Those that
// begin later show everything.
type mutedStore struct {
	store.Store
	mutes atomic.Int64
}

func (s *mutedStore) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		before := s.mutes.Load()
		for u, err := range s.Store.Watch(ctx, scope) {
			if s.mutes.Load() == before && !yield(u, err) {
				return
			}
		}
	}
}

// A candidate whose watch has fallen silent learns from its keep-alives that the leader
// died, or that another leads, and starts another watch.
func TestKeepAlivesNoticeSilentWatch(t *testing.T) {
	bubble(t, func(w *world) {
		st := &mutedStore{Store: w.mem}
		a, b := w.node(w.mem, "a"), w.node(st, "b")
		w.win(a, "g")
		next := w.campaign(w.Context(), b, "g")
		time.Sleep(time.Minute)
		st.mutes.Add(1)
		if err := w.mem.End(w.Context(), w.read("g").Holder, store.Forced); err != nil {
			w.Fatal(err)
		}
		begin := time.Now()
		if took := w.won(next).at.Sub(begin); took > 4*lease.Default().Beat {
			w.Errorf("b leads after %v", took)
		}
	})
}

// At rest candidates and leaders send keep-alives, and nothing else.
func TestRestIsKeepAlives(t *testing.T) {
	bubble(t, func(w *world) {
		store := newCountingStore(w.mem)
		for i := range 5 {
			n := w.node(store, fmt.Sprintf("n%d", i))
			for g := range 3 {
				w.campaign(w.Context(), n, fmt.Sprintf("g%d", g))
			}
		}
		time.Sleep(time.Minute)
		calls, beats, watches := store.total(), store.counted(keepAlive), store.counted(watch)
		time.Sleep(10 * time.Minute)
		calls, beats, watches = store.total()-calls, store.counted(keepAlive)-beats, store.counted(watch)-watches
		if beats < 1000 || calls != beats || watches != 0 {
			w.Errorf("%d calls and %d watches for %d keep-alives", calls, watches, beats)
		}
	})
}

// Many groups that fall vacant at once are acquired in batches that do not collide: every
// candidate is the first for its part of them.
func TestMassVacancy(t *testing.T) {
	bubble(t, func(w *world) {
		const groups = 1500
		w.mem = mem.New(mem.Options{Clock: w.clock, Keys: 30}) // small batches, so that they are many
		w.Cleanup(w.mem.Close)
		a := w.node(w.mem, "a")
		terms := w.winAll(a, groups)
		defer func() {
			for _, term := range terms {
				_ = term.Resign(context.Background())
			}
		}()
		holder := w.read("g0").Holder
		var tries, conflicts atomic.Int64
		count := func(_ context.Context, m method, apply func() error) error {
			err := apply()
			if m == acquire {
				tries.Add(1)
				if err != nil {
					conflicts.Add(1)
				}
			}
			return err
		}
		for _, id := range []string{"b", "c", "d"} {
			n := w.node(newSlowStore(through{w.mem, count}, 10*time.Millisecond), id)
			for g := range groups {
				w.campaign(w.Context(), n, fmt.Sprintf("g%d", g))
			}
		}
		time.Sleep(time.Minute)
		if err := w.mem.End(w.Context(), holder, store.Forced); err != nil {
			w.Fatal(err)
		}
		begin := time.Now()
		for vacant := true; vacant; time.Sleep(10 * time.Millisecond) {
			vacant = false
			for after := ""; ; {
				views, err := w.mem.Groups(w.Context(), store.Scope{"*"}, store.Page{After: after})
				if err != nil {
					w.Fatal(err)
				}
				vacant = vacant || slices.ContainsFunc(views, func(v store.View) bool { return v.State != tenure.Led })
				if len(views) < store.MaxPage {
					break
				}
				after = views[len(views)-1].Group
			}
			if time.Since(begin) > patience {
				w.Fatal("some groups are not led")
			}
		}
		w.Logf("all are led after %v: %d batches, %d conflicts", time.Since(begin), tries.Load(), conflicts.Load())
		if conflicts.Load() > tries.Load()/20 || tries.Load() < 100 {
			w.Errorf("%d of %d batches conflict", conflicts.Load(), tries.Load())
		}
	})
}

// gate is what blocks for ever, until it is opened.
type gate chan struct{}

// blockingHandler is a log whose disk is full: it blocks until its gate opens,
// and then remembers what it was told.
type blockingHandler struct {
	slog.Handler
	gate gate

	mu   sync.Mutex
	said []slog.Record
}

func newBlockingHandler() *blockingHandler {
	return &blockingHandler{Handler: slog.DiscardHandler, gate: make(gate)}
}

func (h *blockingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *blockingHandler) Handle(_ context.Context, r slog.Record) error {
	<-h.gate
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, r)
	return nil
}

// find returns the records with that message.
func (h *blockingHandler) find(message string) []slog.Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []slog.Record
	for _, r := range h.said {
		if r.Message == message {
			found = append(found, r)
		}
	}
	return found
}

// attr returns the value of an attribute.
func attr(r slog.Record, key string) (value slog.Value) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			value = a.Value
		}
		return true
	})
	return value
}

// A log or an OnNote that blocks for ever does not delay the end of a term, and
// Close does not wait for it for ever either: it says that something hangs.
func TestBlockedLogDelaysNoEnd(t *testing.T) {
	for name, block := range map[string]func(*lease.Config, gate){
		"log": func(c *lease.Config, g gate) {
			h := newBlockingHandler()
			h.gate = g
			c.Log = slog.New(h)
		},
		"OnNote": func(c *lease.Config, g gate) { c.OnNote = func(lease.Note) { <-g } },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				g := make(gate)
				hung := newHungStore(w, w.mem)
				store := newCountingStore(hung)
				n := w.node(store, "a", func(c *lease.Config) { block(c, g) })
				term := w.win(n, "g")
				time.Sleep(time.Hour + time.Second)
				hung.hang(keepAlive)
				w.endsAt(term, store.lastHeard().Add(trustOf(lease.Default())), tenure.ErrExpired)
				w.resign(term)
				hung.letGo()
				if err := n.Close(w.soon()); err == nil || !strings.Contains(err.Error(), "hangs and is left behind") {
					w.Errorf("Close says %v", err)
				}
				close(g)
			})
		})
	}
}

// Notes that a slow log cannot take are dropped; how many there were is said as
// soon as it takes some again.
func TestDroppedNotesAreCounted(t *testing.T) {
	bubble(t, func(w *world) {
		h := newBlockingHandler()
		store := newCountingStore(w.mem)
		var told notes
		n := w.node(store, "a", func(c *lease.Config) { c.Log, c.OnNote = slog.New(h), told.add })
		obedient(w.win(n, "g"))
		time.Sleep(2000 * lease.Default().Beat)
		close(h.gate)
		synctest.Wait()
		var dropped int64
		for _, r := range h.find("tenure: notes dropped, the log is too slow") {
			dropped += attr(r, "count").Int64()
		}
		// There is a note for every beat, and what is not about a beat was noted
		// while there was room.
		beats, noted := store.counted(keepAlive), len(told.of(lease.NoteBeat, ""))
		if noted < 500 || dropped < 500 || noted+int(dropped) != beats {
			w.Errorf("of %d beats %d are noted, and %d are said to be dropped", beats, noted, dropped)
		}
		if n := len(h.find("tenure: " + string(lease.NoteBeat))); n != noted {
			w.Errorf("%d beats in the log, %d in the notes", n, noted)
		}
	})
}

// winAll campaigns for many groups at once, and requires to lead them all.
func (w *world) winAll(n *lease.Node, groups int) []*tenure.Term {
	w.Helper()
	ctx := w.soon()
	terms := make([]*tenure.Term, groups)
	errs := make([]error, groups)
	var all sync.WaitGroup
	for i := range groups {
		e := w.elector(n, fmt.Sprintf("g%d", i))
		all.Go(func() { terms[i], errs[i] = e.Campaign(ctx) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		w.Fatal(err)
	}
	return terms
}

// What a process asks of the store does not depend on how many groups it leads,
// and is what Explain says.
func TestCallsPerProcess(t *testing.T) {
	const minutes = 10
	cost := map[int]float64{}
	for _, groups := range []int{1, 1000} {
		bubble(t, func(w *world) {
			store := newCountingStore(w.mem)
			n := w.node(store, "a")
			// Another one stands in line for all of them.
			waiting := w.node(w.mem, "b", func(c *lease.Config) { c.Candidate.Priority = -1 })
			for _, term := range w.winAll(n, groups) {
				obedient(term)
			}
			ctx, cancel := context.WithCancel(w.Context())
			defer cancel()
			for i := range groups {
				go func(e *lease.Elector) {
					if _, err := e.Campaign(ctx); err == nil {
						w.Error("another leads")
					}
				}(w.elector(waiting, fmt.Sprintf("g%d", i)))
			}
			time.Sleep(5 * time.Minute)
			before := store.total()
			time.Sleep(minutes * time.Minute)
			cost[groups] = float64(store.total()-before) / minutes
		})
	}
	want := 60 * lease.Default().Explain(lease.Assume{}).CallsPerSecond
	for groups, calls := range cost {
		if calls < want-1.5 || calls > want+0.5 {
			t.Errorf("%d groups cost %.1f calls a minute, Explain says %.1f", groups, calls, want)
		}
	}
	t.Log(cost, want)
}

// A process that leads ten thousand groups hands all of them over by closing one
// session, and whoever takes them needs as few acquires as the batch allows, and
// little time.
func TestTakeoverOfTenThousand(t *testing.T) {
	groups := 10_000
	if raced {
		groups = 2_000
	}
	const roundTrip = 5 * time.Millisecond
	bubble(t, func(w *world) {
		batch := w.mem.Caps().Batch
		few := groups/batch + 20
		first, second := newCountingStore(newSlowStore(w.mem, roundTrip)), newCountingStore(newSlowStore(w.mem, roundTrip))
		a := w.node(first, "a")
		b := w.node(second, "b")
		begin := time.Now()
		for _, term := range w.winAll(a, groups) {
			obedient(term)
		}
		if calls := first.counted(acquire); calls < groups/batch || calls > few {
			w.Errorf("%d groups were won by %d acquires, want about %d", groups, calls, groups/batch)
		}
		w.Logf("won in %v by %d acquires", time.Since(begin), first.counted(acquire))

		var waiting sync.WaitGroup
		var late atomic.Int64
		ctx := w.soon()
		for i := range groups {
			e := w.elector(b, fmt.Sprintf("g%d", i))
			waiting.Go(func() {
				term, err := e.Campaign(ctx)
				if err != nil || term.Check() != nil || term.Token() != 2 {
					late.Add(1)
					return
				}
				obedient(term)
			})
		}
		time.Sleep(time.Minute)
		if n := second.counted(acquire); n != 0 {
			w.Errorf("%d acquires while all groups were led", n)
		}
		begin = time.Now()
		if err := a.Close(w.soon()); err != nil {
			w.Error(err)
		}
		waiting.Wait()
		took := time.Since(begin)
		w.Logf("taken over in %v by %d acquires", took, second.counted(acquire))
		if late.Load() > 0 {
			w.Errorf("%d of %d groups were not taken over", late.Load(), groups)
		}
		if n := first.counted(closing); n != 1 || first.counted(release) != 0 {
			w.Errorf("handed over by %d closed sessions and %d releases, want 1 and 0", n, first.counted(release))
		}
		if calls := second.counted(acquire); calls < groups/batch || calls > few {
			w.Errorf("%d groups were taken over by %d acquires, want about %d", groups, calls, groups/batch)
		}
		if took > 500*time.Millisecond {
			w.Errorf("the takeover took %v", took)
		}
	})
}

// BenchmarkTakeover10000 measures, in real time, how long ten thousand groups
// are without a leader when the process that leads them closes: the mean and
// the last.
func BenchmarkTakeover10000(b *testing.B) {
	const groups = 10_000
	var mean, last time.Duration
	for b.Loop() {
		st := mem.New(mem.Options{})
		node := func(id string) *lease.Node {
			n, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{"*"}, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
		lead := func(n *lease.Node, led func()) *sync.WaitGroup {
			var all, entered sync.WaitGroup
			entered.Add(groups)
			defer entered.Wait()
			for i := range groups {
				e, err := n.Elector(fmt.Sprintf("g%d", i))
				if err != nil {
					b.Fatal(err)
				}
				all.Go(func() {
					entered.Done()
					term, err := e.Campaign(b.Context())
					if err != nil {
						b.Error(err)
						return
					}
					led()
					context.AfterFunc(term.Context(), func() { _ = term.Resign(context.Background()) })
				})
			}
			return &all
		}
		old, next := node("old"), node("next")
		lead(old, func() {}).Wait()
		var began time.Time
		var sum atomic.Int64
		taken := lead(next, func() { sum.Add(int64(time.Since(began))) })
		inLine(b, st, 2)
		began = time.Now()
		if err := old.Close(b.Context()); err != nil {
			b.Error(err)
		}
		taken.Wait()
		last += time.Since(began)
		mean += time.Duration(sum.Load() / groups)
		if err := next.Close(b.Context()); err != nil {
			b.Error(err)
		}
		st.Close()
	}
	b.ReportMetric(float64(mean.Microseconds())/1000/float64(b.N), "ms-mean-takeover")
	b.ReportMetric(float64(last.Microseconds())/1000/float64(b.N), "ms-last-takeover")
	b.ReportMetric(0, "ns/op") // says how long the preparation took
}

// inLine waits until so many sessions stand in line.
func inLine(tb testing.TB, st store.Store, n int) {
	tb.Helper()
	for {
		line, err := st.Sessions(tb.Context(), store.Scope{"*"}, store.Page{})
		if err != nil {
			tb.Fatal(err)
		}
		if len(line) == n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// health is a check that answers what it is told to, or hangs, whatever its
// context says.
type health struct {
	mu      sync.Mutex
	err     error
	hangs   gate // nil: it does not
	running int
	most    int
}

func (h *health) set(err error, hangs gate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err, h.hangs = err, hangs
}

func (h *health) check(context.Context) error {
	h.mu.Lock()
	h.running++
	h.most = max(h.most, h.running)
	err, hangs := h.err, h.hangs
	h.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	h.mu.Lock()
	h.running--
	h.mu.Unlock()
	return err
}

func (h *health) atOnce() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most
}

// A leader whose health check fails, or hangs, hands over long before it would
// expire; the record says why. While it is unwell it does not lead even what
// nobody else wants, and when it is well it campaigns again by itself.
func TestHealthGate(t *testing.T) {
	errIll := errors.New("disk full")
	for _, tt := range []struct {
		name   string
		ail    func(*health, gate)
		within time.Duration
	}{
		{"failing", func(h *health, _ gate) { h.set(errIll, nil) }, lease.Default().Beat},
		{"hanging", func(h *health, g gate) { h.set(nil, g) }, 2 * lease.Default().Beat},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				var h health
				hang := make(gate)
				a := w.node(w.mem, "a", func(c *lease.Config) { c.Health = h.check })
				b := w.node(w.mem, "b")
				term := w.win(a, "g")
				obedient(term)
				next := w.campaign(w.soon(), b, "g")
				time.Sleep(time.Minute + time.Second)

				ill := time.Now()
				tt.ail(&h, hang)
				at, err := w.ended(term)
				if !errors.Is(err, tenure.ErrUnhealthy) || at.Sub(ill) > tt.within {
					w.Fatalf("the term ended after %v: %v", at.Sub(ill), err)
				}
				if err := term.Check(); !errors.Is(err, tenure.ErrUnhealthy) {
					w.Errorf("Check says %v", err)
				}
				led := w.won(next)
				if d := led.at.Sub(at); d > 100*time.Millisecond {
					w.Errorf("handed over %v after the end of the term", d)
				}
				if v := w.led("g", "b"); v.Terms[0].Reason != store.Unhealthy {
					w.Errorf("the record says that the term ended because it was %q", v.Terms[0].Reason)
				}

				again := w.campaign(w.soon(), a, "g")
				w.resign(led.term)
				time.Sleep(time.Minute)
				if v := w.vacant("g"); v.Token != led.term.Token() {
					w.Errorf("the unwell one tried: the token went from %d to %d", led.term.Token(), v.Token)
				}
				if most := h.atOnce(); most != 1 {
					w.Errorf("%d checks at once", most)
				}

				well := time.Now()
				h.set(nil, nil)
				close(hang)
				if d := w.won(again).at.Sub(well); d > lease.Default().Beat+100*time.Millisecond {
					w.Errorf("led again %v after it was well", d)
				}
			})
		})
	}
}

// A process that has not been found well yet does not lead: neither while its
// first check takes its time, nor when that says that it is unwell.
func TestHealthIsAskedFirst(t *testing.T) {
	bubble(t, func(w *world) {
		var h health
		slow := make(gate)
		h.set(errors.New("still starting"), slow)
		n := w.node(w.mem, "a", func(c *lease.Config) { c.Health = h.check })
		c := w.campaign(w.soon(), n, "g")
		time.Sleep(lease.Default().Beat / 2)
		w.vacant("g")
		close(slow)
		time.Sleep(time.Minute)
		if v := w.vacant("g"); v.Token != 0 {
			w.Errorf("it has led, with token %d", v.Token)
		}
		h.set(nil, nil)
		w.won(c)
	})
}

// notes keeps what OnNote was told.
type notes struct {
	mu   sync.Mutex
	all  []lease.Note
	when []time.Time
}

func (n *notes) add(note lease.Note) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, note)
	n.when = append(n.when, time.Now())
}

// of lists when there were notes of that kind about a group.
func (n *notes) of(kind lease.NoteKind, group string) []time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	var when []time.Time
	for i, note := range n.all {
		if note.Kind == kind && note.Group == group {
			when = append(when, n.when[i])
		}
	}
	return when
}

// exits remembers when Exit was called, and how.
type exits struct {
	mu    sync.Mutex
	codes []int
	when  []time.Time
}

func (e *exits) exit(code int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.codes = append(e.codes, code)
	e.when = append(e.when, time.Now())
}

func (e *exits) called() ([]int, []time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.codes), slices.Clone(e.when)
}

// Work that does not return when its term has expired is reported, once, when
// another may lead; work that returns is not.
func TestOverrunIsReported(t *testing.T) {
	bubble(t, func(w *world) {
		var told notes
		hung := newHungStore(w, w.mem)
		n := w.node(hung, "a", func(c *lease.Config) { c.OnNote = told.add })
		stuck, stops := w.win(n, "stuck"), w.win(n, "stops")
		obedient(stops)
		hung.hang(keepAlive)
		end, err := w.ended(stuck)
		if !errors.Is(err, tenure.ErrExpired) {
			w.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		said := told.of(lease.NoteOverrun, "stuck")
		if len(said) != 1 || said[0].Sub(end) != lease.Default().Margin {
			w.Errorf("reported at %v, want once, %v after %v", said, lease.Default().Margin, end)
		}
		if said := told.of(lease.NoteOverrun, "stops"); len(said) != 0 {
			w.Errorf("work that has returned is reported at %v", said)
		}
		w.resign(stuck)
	})
}

// Work that holds a group up after its leader was asked to step down is reported
// again and again: nobody else can lead meanwhile.
func TestOverrunOfAHandover(t *testing.T) {
	bubble(t, func(w *world) {
		var told notes
		n := w.node(w.mem, "a", func(c *lease.Config) { c.OnNote = told.add })
		term := w.win(n, "g")
		w.ask(store.Request{ID: "1", Verb: store.StepDown})
		end, err := w.ended(term)
		if !errors.Is(err, tenure.ErrResigned) {
			w.Fatal(err)
		}
		trust := trustOf(lease.Default())
		time.Sleep(3*trust + trust/2)
		said := told.of(lease.NoteOverrun, "g")
		if len(said) != 3 || said[0].Sub(end) != trust || said[2].Sub(end) != 3*trust {
			w.Errorf("reported at %v, want at every %v after %v", said, trust, end)
		}
		w.led("g", "a")
		w.resign(term)
		w.vacant("g")
	})
}

// ask leaves a request with whoever leads the group.
func (w *world) ask(r store.Request) {
	w.Helper()
	r.Group = "g"
	if r.TTL == 0 {
		r.TTL = time.Minute
	}
	if err := w.mem.Ask(w.Context(), w.read(r.Group).Holder, r); err != nil {
		w.Fatal(err)
	}
}

// With Exit set, a process whose work has not returned shortly before trust ends
// is ended, with the code that says so, while nobody else can lead. If the work
// returns within the grace, it is not.
func TestExit(t *testing.T) {
	const (
		grace = time.Second
		early = 100 * time.Millisecond // for the exit itself
	)
	for _, tt := range []struct {
		name  string
		takes time.Duration // to return, from the end of the term
		exits bool
	}{
		{"in time", grace - early - time.Millisecond, false},
		{"too late", grace + time.Millisecond, true},
		{"never", patience, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				var ended exits
				hung := newHungStore(w, w.mem)
				store := newCountingStore(hung)
				n := w.node(store, "a", func(c *lease.Config) { c.Exit, c.Grace = ended.exit, grace })
				term := w.win(n, "g")
				time.Sleep(time.Minute + time.Millisecond) // between two keep-alives
				hung.hang(keepAlive)
				trust := store.lastHeard().Add(trustOf(lease.Default()))
				w.endsAt(term, trust.Add(-grace), tenure.ErrExpired)
				time.AfterFunc(tt.takes, func() { _ = term.Resign(context.Background()) })

				time.Sleep(time.Until(trust))
				synctest.Wait()
				codes, when := ended.called()
				switch {
				case !tt.exits && len(codes) != 0:
					w.Errorf("Exit%v was called for work that has returned", codes)
				case tt.exits && (!slices.Equal(codes, []int{lease.OverrunExitCode}) || !when[0].Equal(trust.Add(-early))):
					w.Errorf("Exit%v was called at %v, want one call with %d at %v", codes, when, lease.OverrunExitCode, trust.Add(-early))
				}
				if tt.exits {
					w.led("g", "a") // so nobody else has begun
				}
				time.Sleep(patience)
				if later, _ := ended.called(); len(later) != len(codes) {
					w.Errorf("Exit%v was called later", later[len(codes):])
				}
			})
		})
	}
}

// Exit comes also for work that does not return when its leader steps down: as
// long after as one keep-alive is believed.
func TestExitOfAHandover(t *testing.T) {
	bubble(t, func(w *world) {
		var ended exits
		n := w.node(w.mem, "a", func(c *lease.Config) { c.Exit, c.Grace = ended.exit, time.Second })
		term := w.win(n, "g")
		w.ask(store.Request{ID: "1", Verb: store.StepDown})
		end, _ := w.ended(term)
		time.Sleep(trustOf(lease.Default()))
		synctest.Wait()
		codes, when := ended.called()
		if !slices.Equal(codes, []int{lease.OverrunExitCode}) || when[0].Sub(end) != trustOf(lease.Default()) {
			w.Errorf("Exit%v was called at %v", codes, when)
		}
		w.led("g", "a")
		w.resign(term)
	})
}

// Work that has returned is no overrun, however long the store takes to confirm
// the release.
func TestNoExitWhileReleasing(t *testing.T) {
	bubble(t, func(w *world) {
		var ended exits
		var told notes
		hung := newHungStore(w, w.mem)
		n := w.node(hung, "a", func(c *lease.Config) { c.Exit, c.Grace, c.OnNote = ended.exit, time.Second, told.add })
		term := w.win(n, "g")
		obedient(term)
		hung.hang(release)
		w.ask(store.Request{ID: "1", Verb: store.StepDown})
		_, _ = w.ended(term)
		time.Sleep(5 * lease.Default().TTL)
		codes, _ := ended.called()
		if said := told.of(lease.NoteOverrun, "g"); len(codes)+len(said) != 0 {
			w.Errorf("Exit%v was called, and an overrun was reported at %v", codes, said)
		}
		w.led("g", "a")
	})
}

// A log that blocks does not keep Exit from being called: it is the last thing
// that stands between stuck work and two leaders.
func TestBlockedLogDelaysNoExit(t *testing.T) {
	const grace = time.Second
	bubble(t, func(w *world) {
		var ended exits
		h := newBlockingHandler()
		hung := newHungStore(w, w.mem)
		store := newCountingStore(hung)
		n := w.node(store, "a", func(c *lease.Config) { c.Exit, c.Grace, c.Log = ended.exit, grace, slog.New(h) })
		term := w.win(n, "g")
		hung.hang(keepAlive)
		time.Sleep(time.Until(store.lastHeard().Add(trustOf(lease.Default()))))
		synctest.Wait()
		if codes, _ := ended.called(); !slices.Equal(codes, []int{lease.OverrunExitCode}) {
			w.Errorf("Exit%v was called, want one call with %d", codes, lease.OverrunExitCode)
		}
		close(h.gate)
		hung.letGo()
		w.resign(term)
	})
}

// Close ends the terms, waits until their work has returned, and only then
// closes the session, with the reason in the record. Whoever waited in line
// leads at that moment. What returned long before the last is not held up by it.
func TestClose(t *testing.T) {
	bubble(t, func(w *world) {
		a, b := w.node(w.mem, "a"), w.node(w.mem, "b")
		quick, slow := w.win(a, "quick"), w.win(a, "slow")
		next := w.campaign(w.soon(), b, "slow")
		closed := make(chan error, 1)
		go func() { closed <- a.Close(context.Background()) }()
		for _, term := range []*tenure.Term{quick, slow} {
			if _, err := w.ended(term); !errors.Is(err, tenure.ErrResigned) || !errors.Is(term.Check(), tenure.ErrResigned) {
				w.Errorf("the term of %q ended with %v", term.Group(), err)
			}
		}
		begin := time.Now()
		w.resign(quick)
		if took := time.Since(begin); took > lease.Default().Beat {
			w.Errorf("%q was held up for %v", quick.Group(), took)
		}
		if v := w.vacant("quick"); v.Terms[0].Reason != store.Resigned {
			w.Errorf("the record of %q says %q", v.Group, v.Terms[0].Reason)
		}
		time.Sleep(time.Minute) // much longer than a session lives without a beat
		select {
		case err := <-closed:
			w.Fatalf("Close returned %v while work runs", err)
		case r := <-next:
			w.Fatalf("b leads while the work of a runs: %v", r.err)
		default:
		}
		w.led("slow", "a")

		begin = time.Now()
		w.resign(slow)
		if err := <-closed; err != nil {
			w.Errorf("Close: %v", err)
		}
		if r := w.won(next); r.at.Sub(begin) > 100*time.Millisecond {
			w.Errorf("b leads %v after the work of a has returned", r.at.Sub(begin))
		}
		if v := w.led("slow", "b"); v.Terms[0].Reason != store.Resigned {
			w.Errorf("the record of %q says %q", v.Group, v.Terms[0].Reason)
		}
		if line := w.sessions(); len(line) != 1 || line[0].Candidate.ID != "b" {
			w.Errorf("in line: %v", line)
		}
	})
}

// A closed node is closed: to close it again says the same, a campaign and what
// is left of its terms are told ErrClosed, and what reads the store still works.
func TestClosedIsClosed(t *testing.T) {
	bubble(t, func(w *world) {
		n := w.node(w.mem, "a")
		e := w.elector(n, "g")
		term := w.win(n, "g")
		obedient(term)
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if err := n.Close(context.Background()); err != nil {
					w.Errorf("Close: %v", err)
				}
			})
		}
		both.Wait()
		if err := n.Close(context.Background()); err != nil {
			w.Errorf("Close once more: %v", err)
		}
		if term, err := e.Campaign(w.soon()); term != nil || !errors.Is(err, lease.ErrClosed) {
			w.Errorf("Campaign: %v, %v", term, err)
		}
		if err := term.Resign(w.soon()); !errors.Is(err, lease.ErrClosed) {
			w.Errorf("Resign: %v", err)
		}
		if l, err := e.Leader(w.soon()); err != nil || l.State != tenure.Vacant {
			w.Errorf("Leader: %v, %v", l, err)
		}
	})
}

// A node that never campaigned closes without a word to the store.
func TestCloseUnused(t *testing.T) {
	bubble(t, func(w *world) {
		store := newCountingStore(w.mem)
		n := w.node(store, "a", func(c *lease.Config) { c.Health = func(context.Context) error { return nil } })
		time.Sleep(time.Minute)
		if err := n.Close(context.Background()); err != nil {
			w.Error(err)
		}
		if store.total()+store.counted(watch) != 0 {
			w.Errorf("%d calls", store.total())
		}
	})
}

// Close returns when everything that the node has started has ended, also what
// takes its time to obey.
func TestCloseWaits(t *testing.T) {
	const slow = time.Second
	bubble(t, func(w *world) {
		var last time.Time
		n := w.node(w.mem, "a", func(c *lease.Config) {
			c.Health = func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(slow)
				last = time.Now()
				return ctx.Err()
			}
		})
		synctest.Wait()
		begin := time.Now()
		if err := n.Close(context.Background()); err != nil {
			w.Error(err)
		}
		if took := time.Since(begin); took != slow || !last.Equal(time.Now()) {
			w.Errorf("Close took %v, the health check ended %v ago", took, time.Since(last))
		}
	})
}

// If the context of Close ends first, the session is left to expire, so that
// nobody is granted what work may still be at; the error names the groups whose
// work it was, and no others.
func TestCloseInAHurry(t *testing.T) {
	bubble(t, func(w *world) {
		a, b := w.node(w.mem, "a"), w.node(w.mem, "b")
		stuck, stops := w.win(a, "stuck"), w.win(a, "stops")
		obedient(stops)
		next := w.campaign(w.soon(), b, "stuck")
		time.Sleep(time.Second)
		beat := time.Now().Add(-time.Second) // the last one
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		begin := time.Now()
		another := make(chan error, 1)
		go func() { another <- a.Close(ctx) }()
		err := a.Close(ctx)
		if took := time.Since(begin); took != 500*time.Millisecond {
			w.Errorf("Close took %v", took)
		}
		if same := <-another; same == nil || same.Error() != err.Error() {
			w.Errorf("Close says %v to another", same)
		}
		if err == nil || !strings.Contains(err.Error(), "stuck") || strings.Contains(err.Error(), "stops") || !strings.Contains(err.Error(), "left to expire within 8s") {
			w.Errorf("Close says %v", err)
		}
		if again := a.Close(context.Background()); again == nil || again.Error() != err.Error() {
			w.Errorf("Close says %v the second time", again)
		}
		if err := stuck.Check(); !errors.Is(err, tenure.ErrResigned) {
			w.Errorf("Check says %v", err)
		}
		if r := w.won(next); r.at.Sub(beat) != lease.Default().TTL {
			w.Errorf("b leads %v after the last beat of a, want %v", r.at.Sub(beat), lease.Default().TTL)
		}
		if err := stuck.Resign(w.soon()); !errors.Is(err, lease.ErrClosed) {
			w.Errorf("Resign: %v", err)
		}
	})
}

// Where Exit is set, a Close whose context ends first does not let go of work that
// runs: the process is ended if it does not return in time, and if it does,
// closing comes to its end.
func TestCloseInAHurryWithExit(t *testing.T) {
	for _, returns := range []bool{true, false} {
		t.Run(fmt.Sprintf("returns=%v", returns), func(t *testing.T) {
			bubble(t, func(w *world) {
				var ended exits
				n := w.node(w.mem, "a", func(c *lease.Config) { c.Exit, c.Grace = ended.exit, time.Second })
				term := w.win(n, "g")
				ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errEnough)
				defer cancel()
				begin := time.Now()
				if err := n.Close(ctx); !errors.Is(err, errEnough) || !strings.Contains(err.Error(), "closing goes on") {
					w.Errorf("Close: %v", err)
				}
				if returns {
					w.resign(term)
				}
				time.Sleep(time.Until(begin.Add(trustOf(lease.Default()))))
				synctest.Wait()
				codes, _ := ended.called()
				if returns {
					w.vacant("g")
					if len(codes) != 0 {
						w.Errorf("Exit%v was called for work that has returned", codes)
					}
				} else {
					w.led("g", "a")
					if !slices.Equal(codes, []int{lease.OverrunExitCode}) {
						w.Errorf("Exit%v was called, want one call with %d", codes, lease.OverrunExitCode)
					}
					w.resign(term)
				}
				if err := n.Close(w.soon()); err != nil {
					w.Errorf("Close at the end: %v", err)
				}
				if line := w.sessions(); len(line) != 0 {
					w.Errorf("in line: %v", line)
				}
			})
		})
	}
}

// Close with a context that has ended already ends everything all the same: the
// terms, and the campaigns that wait. Of many groups whose work has not returned
// it names a few.
func TestCloseAtOnce(t *testing.T) {
	const groups = 30
	bubble(t, func(w *world) {
		w.win(w.node(w.mem, "leader"), "taken")
		n := w.node(w.mem, "a")
		terms := w.winAll(n, groups)
		waits := w.campaign(w.soon(), n, "taken")
		over, cancel := context.WithCancel(context.Background())
		cancel()
		err := n.Close(over)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("and %d more", groups-10)) {
			w.Errorf("Close says %v", err)
		}
		for _, term := range terms {
			if err := context.Cause(term.Context()); !errors.Is(err, tenure.ErrResigned) {
				w.Fatalf("the context of a term says %v", err)
			}
		}
		if r := w.get(waits); !errors.Is(r.err, lease.ErrClosed) {
			w.Errorf("the campaign returned %v", r.err)
		}
	})
}

// Whatever a node is at when it is closed at once, every campaign returns, with
// ErrClosed or with a term that is over.
func TestCloseRacesWithWins(t *testing.T) {
	bubble(t, func(w *world) {
		store := newTrippingStore(w.mem)
		rng := rand.New(rand.NewPCG(1, 1))
		over, cancel := context.WithCancel(context.Background())
		cancel()
		won, refused := 0, 0
		for i := range 300 {
			early, late := rng.IntN(100), rng.IntN(40)
			tripped := make(chan struct{})
			if i%2 == 0 {
				store.set([]method{open, acquire, acquire}[rng.IntN(3)], func() {
					close(tripped)
					yield(late)
				})
			}
			n := w.node(store, "a")
			results := make(chan result, 10)
			for g := range cap(results) {
				e := w.elector(n, fmt.Sprintf("g%d", g))
				go func() {
					term, err := e.Campaign(w.Context())
					results <- result{term: term, err: err}
				}()
			}
			if i%2 == 0 {
				<-tripped
			} else {
				yield(early)
			}
			_ = n.Close(over)
			for range cap(results) {
				switch r := w.get(results); {
				case errors.Is(r.err, lease.ErrClosed):
					refused++
				case r.err != nil:
					w.Fatal(r.err)
				case !errors.Is(context.Cause(r.term.Context()), tenure.ErrResigned):
					w.Fatalf("the context of a term says %v", context.Cause(r.term.Context()))
				default:
					won++
				}
			}
			time.Sleep(lease.Default().TTL)
		}
		if won < 10 || refused < 10 {
			w.Errorf("%d won, %d refused: they did not fall together", won, refused)
		}
		w.Logf("%d won, %d refused", won, refused)
	})
}

// Close ends the campaigns that wait: in line, for a session, for a store that
// is down.
func TestCloseWhileCampaigning(t *testing.T) {
	bubble(t, func(w *world) {
		slow, flaky := newSlowStore(w.mem, 100*time.Millisecond), newFlakyStore(w.mem, 1)
		flaky.setDown(true)
		leader := w.node(w.mem, "leader")
		obedient(w.win(leader, "g"))
		for name, tt := range map[string]struct {
			store store.Store
			after time.Duration
		}{
			"at once":      {w.mem, 0},
			"in line":      {w.mem, time.Minute},
			"while opens":  {slow, 30 * time.Millisecond},
			"opened":       {slow, 70 * time.Millisecond},
			"reads line":   {slow, 130 * time.Millisecond},
			"store down":   {flaky, time.Minute},
			"down at once": {flaky, 0},
		} {
			n := w.node(tt.store, "a")
			c := w.campaign(w.soon(), n, "g")
			time.Sleep(tt.after)
			begin := time.Now()
			if err := n.Close(context.Background()); err != nil {
				w.Errorf("%s: Close: %v", name, err)
			}
			if took := time.Since(begin); took > 250*time.Millisecond {
				w.Errorf("%s: Close took %v", name, took)
			}
			if r := w.get(c); r.term != nil || !errors.Is(r.err, lease.ErrClosed) {
				w.Errorf("%s: %v, %v", name, r.term, r.err)
			}
			if line := w.sessions(); len(line) != 1 {
				w.Errorf("%s: in line: %v", name, line)
			}
		}
		w.led("g", "leader")
	})
}

// A store that hangs holds Close up for a few timeouts at most, or for as long
// as its context allows if that is less; Close says what was left behind. The
// goroutine in the store ends when the store lets it go.
func TestCloseWhileStoreHangs(t *testing.T) {
	timeout := lease.Default().CallTimeout
	for _, tt := range []struct {
		name  string
		leads bool
		hangs []method
		limit time.Duration // of the context of Close
		most  time.Duration
		says  []string
	}{
		{"close hangs", true, []method{closing}, time.Hour, 4 * timeout,
			[]string{"was not closed and holds its groups until it expires", "hangs and is left behind"}},
		{"everything hangs", true, append(methods(), watch), time.Hour, 4 * timeout,
			[]string{"was not closed", "left behind"}},
		{"in a hurry", true, []method{closing}, time.Second, time.Second + timeout,
			[]string{"closed before everything had stopped", "left behind"}},
		{"open hangs", false, []method{open}, time.Hour, 2 * timeout,
			[]string{"left behind"}},
		{"watch hangs", false, []method{watch}, time.Hour, timeout,
			[]string{"left behind"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				hung := newHungStore(w, w.mem)
				n := w.node(hung, "a")
				var c <-chan result
				if tt.leads {
					obedient(w.win(n, "g"))
					hung.hang(tt.hangs...)
				} else {
					hung.hang(tt.hangs...)
					c = w.campaign(w.soon(), n, "g")
				}
				ctx, cancel := context.WithTimeout(context.Background(), tt.limit)
				defer cancel()
				begin := time.Now()
				err := n.Close(ctx)
				if took := time.Since(begin); took > tt.most {
					w.Errorf("Close took %v, want %v at most", took, tt.most)
				}
				for _, part := range tt.says {
					if err == nil || !strings.Contains(err.Error(), part) {
						w.Errorf("Close says %v, not %q", err, part)
					}
				}
				if c != nil {
					if r := w.get(c); !errors.Is(r.err, lease.ErrClosed) {
						w.Errorf("the campaign returned %v", r.err)
					}
				}
				hung.letGo()
			})
		})
	}
}

// In real time, with the clock of the machine, nothing runs any more when Close
// has returned.
func TestCloseLeavesNothingRunning(t *testing.T) {
	const groups = 20
	before := runtime.NumGoroutine()
	st := mem.New(mem.Options{})
	var work sync.WaitGroup
	led := make(chan struct{}, 2*groups)
	node := func(id string) *lease.Node {
		n, err := lease.New(st, lease.Config{
			Candidate: tenure.Candidate{ID: id},
			Scope:     store.Scope{"*"},
			Timing:    lease.Timing{TTL: time.Second},
			Health:    func(context.Context) error { return nil },
			Log:       slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		for g := range groups {
			e, err := n.Elector(fmt.Sprintf("g%d", g))
			if err != nil {
				t.Fatal(err)
			}
			work.Go(func() {
				for {
					term, err := e.Campaign(context.Background())
					if errors.Is(err, lease.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					led <- struct{}{}
					<-term.Context().Done()
					_ = term.Resign(context.Background())
				}
			})
		}
		return n
	}
	handOver := func(n *lease.Node, next func() *lease.Node) *lease.Node {
		for range groups {
			select {
			case <-led:
			case <-time.After(10 * time.Second):
				t.Fatal("not all groups are led")
			}
		}
		after := next()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
		return after
	}
	second := handOver(node("first"), func() *lease.Node { return node("second") })
	handOver(second, func() *lease.Node { return nil })
	work.Wait()
	st.Close()
	// A goroutine that has done its last may take a moment to be gone.
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// What is nil is refused with an error, not with a panic.
func TestNil(t *testing.T) {
	bubble(t, func(w *world) {
		cfg := lease.Config{Candidate: tenure.Candidate{ID: "a"}, Scope: store.Scope{"g"}}
		n := w.node(w.mem, "a")
		e := w.elector(n, "g")
		var none context.Context
		_, st := lease.New(nil, cfg)
		_, typed := lease.New((*mem.Store)(nil), cfg)
		_, ctx := e.Campaign(none)
		_, leader := e.Leader(none)
		_, elector := (*lease.Elector)(nil).Campaign(t.Context())
		var leaders error
		for _, leaders = range e.Leaders(none) {
			break
		}
		for what, err := range map[string]error{
			"store": st, "typed nil store": typed, "context of Campaign": ctx, "context of Leader": leader,
			"elector": elector, "context of Leaders": leaders, "context of Close": n.Close(none),
		} {
			if !errors.Is(err, store.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
