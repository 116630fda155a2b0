package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/placement"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// fleet is some processes that run a set, and what their work has seen.
type fleet struct {
	t     *testing.T
	store store.Store
	cfg   Config
	drain time.Duration // how long work takes to return

	mu     sync.Mutex
	owner  map[int]string
	begun  map[string]int
	two    int // two owners at once
	ending int // work that was told to end and has not returned
	most   int // of those, at a time
}

func newFleet(t *testing.T, cfg Config) *fleet {
	st := mem.New(mem.Options{Clock: bubble{}})
	t.Cleanup(st.Close)
	return &fleet{t: t, store: st, cfg: cfg, owner: map[int]string{}, begun: map[string]int{}}
}

func (f *fleet) run(id string, change ...func(*Config)) (stop func() error) {
	return f.runOn(f.store, id, change...)
}

func (f *fleet) runOn(st store.Store, id string, change ...func(*Config)) (stop func() error) {
	f.t.Helper()
	cfg := f.cfg
	for _, c := range change {
		c(&cfg)
	}
	node, err := lease.New(st, lease.Config{
		Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{cfg.Set + "-*"}, Timing: lease.Timing{TTL: 3 * time.Second},
		Log: slog.New(slog.DiscardHandler), Clock: bubble{},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, node, cfg, f.work(id)) }()
	return sync.OnceValue(func() error {
		cancel()
		err := <-done
		_ = node.Close(context.Background())
		return err
	})
}

func (f *fleet) work(id string) func(context.Context, Shard) error {
	return func(ctx context.Context, s Shard) error {
		f.mu.Lock()
		if f.owner[s.Index] != "" {
			f.two++
		}
		f.owner[s.Index] = id
		f.begun[id]++
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		f.ending++
		f.most = max(f.most, f.ending)
		drain := f.drain
		f.mu.Unlock()
		time.Sleep(drain)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ending--
		if f.owner[s.Index] == id {
			f.owner[s.Index] = ""
		}
		return ctx.Err()
	}
}

// owned is how many shards have an owner, and how many this one has.
func (f *fleet) owned(id string) (all, own int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.owner {
		if o != "" {
			all++
		}
		if o == id {
			own++
		}
	}
	return all, own
}

func (f *fleet) starts(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begun[id]
}

type bubble struct{}

var origin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (bubble) Now() clock.Instant      { return clock.Instant(time.Since(origin)) + 1 }
func (b bubble) NewTimer() clock.Timer { return clock.NewRuntimeTimer(b) }

// rules are what shards promise, and the bugs that break them. A check returns what was broken.
var rules = map[string]struct {
	bug   plant.Bug
	check func(t *testing.T, p plant.Set) string
}{
	"a shard moves after its work has returned": {plant.MoveBeforeDrain, func(t *testing.T, p plant.Set) string {
		f := newFleet(t, Config{Set: "s", Count: 40, Settle: time.Second, plant: p})
		f.drain = 300 * time.Millisecond
		a := f.run("a")
		time.Sleep(10 * time.Second)
		b := f.run("b")
		time.Sleep(20 * time.Second)
		_, _ = a(), b()
		if f.starts("b") == 0 {
			t.Error("nothing moved")
		}
		if f.two > 0 {
			return fmt.Sprintf("%d shards had two owners", f.two)
		}
		return ""
	}},
	"a process that has just begun gets nothing": {plant.SettleIgnored, func(t *testing.T, p plant.Set) string {
		f := newFleet(t, Config{Set: "s", Count: 40, Settle: 8 * time.Second, plant: p})
		a := f.run("a")
		time.Sleep(time.Minute)
		b := f.run("b")
		time.Sleep(7 * time.Second)
		early := f.starts("b")
		time.Sleep(time.Minute)
		if f.starts("b") == 0 {
			t.Error("nothing moved")
		}
		_, _ = a(), b()
		if early > 0 {
			return fmt.Sprintf("%d shards moved before it had settled", early)
		}
		return ""
	}},
	"a process owns at most Max": {plant.CapIgnored, func(t *testing.T, p plant.Set) string {
		f := newFleet(t, Config{Set: "s", Count: 40, Settle: time.Second, plant: p})
		a, b := f.run("a"), f.run("b", func(c *Config) { c.Max = 5 })
		time.Sleep(time.Minute)
		all, own := f.owned("b")
		_, _ = a(), b()
		if all != 40 {
			t.Errorf("%d shards have an owner", all)
		}
		if own > 5 {
			return fmt.Sprintf("it owns %d", own)
		}
		return ""
	}},
	"processes that disagree move a shard ever less often": {plant.MoveTwice, func(t *testing.T, p plant.Set) string {
		f := newFleet(t, Config{Set: "s", Count: 1, Settle: time.Second, plant: p})
		a, b := f.runOn(pinned{f.store, "b"}, "a"), f.runOn(pinned{f.store, "a"}, "b")
		time.Sleep(2 * time.Minute)
		_, _ = a(), b()
		if n := f.starts("a") + f.starts("b"); n > 20 {
			return fmt.Sprintf("%d moves in two minutes", n)
		}
		return ""
	}},
}

// pinned is a store in which shard 0 is pinned to a candidate, for whoever asks it.
type pinned struct {
	store.Store
	to string
}

func (p pinned) ListAttributes(ctx context.Context, prefix string, page store.Page) ([]store.Attributes, error) {
	if prefix == "shard/s/" {
		return []store.Attributes{{Name: pinName("s", 0), Values: map[string]string{candidateKey: p.to}}}, nil
	}
	return p.Store.ListAttributes(ctx, prefix, page)
}

func TestPromises(t *testing.T) {
	for name, c := range rules {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if broken := c.check(t, plant.Set{}); broken != "" {
					t.Error(broken)
				}
			})
		})
	}
}

// A process that stops hands over MaxMoves shards at a time, and work that hangs holds up its own
// shard only.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Config{Set: "s", Count: 40, Settle: time.Second, MaxMoves: 4})
		f.drain = 100 * time.Millisecond
		a := f.run("a")
		time.Sleep(10 * time.Second)
		b := f.run("b")
		time.Sleep(20 * time.Second)
		_ = a()
		if f.most > 4 {
			t.Errorf("%d shards moved at a time", f.most)
		}
		time.Sleep(10 * time.Second)
		f.mu.Lock()
		f.drain = 5 * time.Minute
		f.mu.Unlock()
		began := time.Now()
		done := make(chan struct{})
		go func() { _ = b(); close(done) }()
		time.Sleep(50 * time.Second)
		f.mu.Lock()
		if f.ending != 40 {
			t.Errorf("after %v %d of 40 were told to end", time.Since(began), f.ending)
		}
		f.mu.Unlock()
		<-done
	})
}

// Of two processes that begin at the same moment with different counts one goes on, and it owns
// every shard.
func TestTwoCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Config{Set: "s", Count: 10, Settle: time.Second})
		a := f.run("a")
		b := f.run("b", func(c *Config) { c.Count = 12 })
		time.Sleep(time.Minute)
		var bad *store.ArgumentError
		rules, err := ReadRules(t.Context(), f.store, "s")
		if err != nil {
			t.Fatal(err)
		}
		all, _ := f.owned("")
		one, two := a(), b()
		if errors.As(one, &bad) == errors.As(two, &bad) || all != rules.Count {
			t.Errorf("%d of %d shards have an owner: %v, %v", all, rules.Count, one, two)
		}
	})
}

// What an operator has weighed survives a restart of the process.
func TestWeighed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Config{Set: "s", Count: 10, Settle: time.Second})
		if err := Weigh(t.Context(), f.store, "s", "a", 7); err != nil {
			t.Fatal(err)
		}
		a := f.run("a")
		time.Sleep(10 * time.Second)
		_ = a()
		if r, err := ReadRules(t.Context(), f.store, "s"); err != nil || r.Weights["a"] != 7 {
			t.Errorf("%v, %v", r.Weights, err)
		}
	})
}

// Run ends when its node is closed, and refuses a Settle that it cannot keep.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := mem.New(mem.Options{Clock: bubble{}})
		defer st.Close()
		node, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: "a"}, Scope: store.Scope{"s-*"}, Log: slog.New(slog.DiscardHandler), Clock: bubble{}})
		if err != nil {
			t.Fatal(err)
		}
		work := func(ctx context.Context, _ Shard) error { <-ctx.Done(); return nil }
		var bad *store.ArgumentError
		if err := Run(t.Context(), node, Config{Set: "s", Count: 3, Settle: 1}, work); !errors.As(err, &bad) {
			t.Errorf("a Settle of 1 ns: %v", err)
		}
		done := make(chan error, 1)
		go func() { done <- Run(t.Context(), node, Config{Set: "s", Count: 3}, work) }()
		time.Sleep(10 * time.Second)
		if err := node.Close(context.Background()); err != nil {
			t.Error(err)
		}
		select {
		case err := <-done:
			if !errors.Is(err, lease.ErrClosed) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("Run goes on without a node")
		}
	})
}

// A process that waits for thousands of shards has no goroutine for each, and at rest writes nothing
// but keep-alives.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Config{Set: "s", Count: 1000, Settle: time.Second})
		a := f.run("a", func(c *Config) { c.Weight = MaxWeight })
		time.Sleep(10 * time.Second)
		before := runtime.NumGoroutine()
		w := &writes{Store: f.store}
		b := f.runOn(w, "b", func(c *Config) { c.Max = 1 })
		time.Sleep(time.Minute)
		if n := runtime.NumGoroutine() - before; n > 100 {
			t.Errorf("%d goroutines", n)
		}
		at := w.n.Load()
		time.Sleep(time.Minute)
		if n := w.n.Load() - at; n != 0 {
			t.Errorf("%d writes at rest", n)
		}
		_, _ = a(), b()
	})
}

// Nothing moves at rest, although a process that is full should own more.
func TestFullRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Config{Set: "s", Count: 40, Settle: time.Second})
		a, b := f.run("a"), f.run("b", func(c *Config) { c.Max, c.Weight = 5, 100 })
		time.Sleep(5 * time.Minute)
		before := f.starts("a") + f.starts("b")
		time.Sleep(15 * time.Minute)
		if n := f.starts("a") + f.starts("b") - before; n != 0 {
			t.Errorf("%d moves at rest", n)
		}
		if all, own := f.owned("b"); all != 40 || own != 5 {
			t.Errorf("%d shards have an owner, and the full process owns %d", all, own)
		}
		_ = a()
		time.Sleep(time.Minute)
		if _, own := f.owned("b"); own != 5 {
			t.Errorf("%d", own)
		}
		_ = b()
	})
}

// writes counts the writes to a store that are no keep-alives.
type writes struct {
	store.Store
	n atomic.Int64
}

func (w *writes) Acquire(ctx context.Context, s store.SessionID, seen ...store.Record) ([]store.Record, error) {
	w.n.Add(1)
	return w.Store.Acquire(ctx, s, seen...)
}

func (w *writes) Release(ctx context.Context, s, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	w.n.Add(1)
	return w.Store.Release(ctx, s, to, why, held...)
}

func (w *writes) SetAttributes(ctx context.Context, a store.Attributes) (store.Attributes, error) {
	w.n.Add(1)
	return w.Store.SetAttributes(ctx, a)
}

// The rank of a candidate and the shard of a key are the same in every version: a process that is
// upgraded gets its shards back.
func TestRankStable(t *testing.T) {
	if got := placement.Digest("orders-17", "node-3"); got != 0x2d4b091989d0225d {
		t.Errorf("digest %#x", got)
	}
	if got := Of("tenant-42", 10); got != 7 {
		t.Errorf("shard %d", got)
	}
}
