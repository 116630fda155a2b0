package shard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/shard"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// owners records who works on which shard, and finds two at once.
type owners struct {
	mu    sync.Mutex
	t     *testing.T
	of    map[int]string
	moves int
	gaps  []time.Duration
	ended map[int]time.Time
}

func newOwners(t *testing.T) *owners {
	return &owners{t: t, of: map[int]string{}, ended: map[int]time.Time{}}
}

func (o *owners) work(id string) func(context.Context, shard.Shard) error {
	return func(ctx context.Context, s shard.Shard) error {
		o.mu.Lock()
		if other := o.of[s.Index]; other != "" {
			o.t.Errorf("%s and %s own shard %d", other, id, s.Index)
		}
		o.of[s.Index] = id
		o.moves++
		if at, was := o.ended[s.Index]; was {
			o.gaps = append(o.gaps, time.Since(at))
		}
		o.mu.Unlock()
		<-ctx.Done()
		o.mu.Lock()
		defer o.mu.Unlock()
		o.of[s.Index] = ""
		o.ended[s.Index] = time.Now()
		return ctx.Err()
	}
}

// counts is how many shards each process owns.
func (o *owners) counts() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := map[string]int{}
	for _, id := range o.of {
		if id != "" {
			n[id]++
		}
	}
	return n
}

// seen is how often work has begun since the last reset, and how long shards had no owner before.
func (o *owners) seen() (moves int, longest time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, g := range o.gaps {
		longest = max(longest, g)
	}
	return o.moves, longest
}

func (o *owners) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.moves, o.gaps = 0, nil
}

type process struct {
	id   string
	node *lease.Node
	stop context.CancelFunc
	done chan error
}

func begin(t *testing.T, st store.Store, o *owners, id string, cfg shard.Config) *process {
	t.Helper()
	node, err := lease.New(st, lease.Config{
		Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{cfg.Set + "-*"}, Timing: lease.Timing{TTL: 3 * time.Second},
		Log: slog.New(slog.DiscardHandler), Clock: bubble{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{id, node, cancel, make(chan error, 1)}
	go func() { p.done <- shard.Run(ctx, node, cfg, o.work(id)) }()
	return p
}

func (p *process) end(t *testing.T) {
	t.Helper()
	p.stop()
	if err := <-p.done; !errors.Is(err, context.Canceled) {
		t.Errorf("%s: %v", p.id, err)
	}
	if err := p.node.Close(context.Background()); err != nil {
		t.Errorf("%s: %v", p.id, err)
	}
}

// bubble is the clock of a synctest bubble.
type bubble struct{}

var origin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (bubble) Now() clock.Instant      { return clock.Instant(time.Since(origin)) + 1 }
func (b bubble) NewTimer() clock.Timer { return clock.NewRuntimeTimer(b) }

// Ten processes share the shards evenly. One that joins gets its part and moves nothing else; one
// that is cut off loses its own only; a rolling restart moves each shard out and back.
func TestShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 500
		st := mem.New(mem.Options{Clock: bubble{}})
		defer st.Close()
		o := newOwners(t)
		cfg := shard.Config{Set: "orders", Count: count, Settle: 4 * time.Second}
		var all []*process
		for i := range 10 {
			all = append(all, begin(t, st, o, fmt.Sprintf("node-%d", i), cfg))
		}
		time.Sleep(2 * time.Minute)
		n := o.counts()
		sum, most := 0, 0
		for _, c := range n {
			sum += c
			most = max(most, c)
		}
		if sum != count || len(n) != 10 || most > count/10*14/10 {
			t.Fatalf("%d of %d shards are owned: %v", sum, count, n)
		}
		o.reset()
		time.Sleep(time.Minute)
		if moves, _ := o.seen(); moves != 0 {
			t.Errorf("%d moves at rest", moves)
		}

		all = append(all, begin(t, st, o, "node-10", cfg))
		time.Sleep(time.Minute)
		got := o.counts()["node-10"]
		if moves, _ := o.seen(); got < count/11*7/10 || moves != got {
			t.Errorf("the process that joined owns %d shards, after %d moves", got, moves)
		}
		o.reset()

		for i, p := range all {
			p.end(t)
			time.Sleep(10 * time.Second)
			all[i] = begin(t, st, o, p.id, cfg)
			time.Sleep(20 * time.Second)
		}
		moves, longest := o.seen()
		if moves > count*22/10 || longest > 100*time.Millisecond {
			t.Errorf("a rolling restart made %d moves of %d shards, and one had no owner for %v", moves, count, longest)
		}
		for _, p := range all {
			p.end(t)
		}
	})
}

// Weights, pins, cordons and limits decide who owns what.
func TestRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		st := mem.New(mem.Options{Clock: bubble{}})
		defer st.Close()
		o := newOwners(t)
		cfg := shard.Config{Set: "orders", Count: 300, Settle: time.Second}
		heavy, limited := cfg, cfg
		heavy.Weight, limited.Max = 3, 20
		all := []*process{begin(t, st, o, "a", cfg), begin(t, st, o, "heavy", heavy), begin(t, st, o, "limited", limited)}
		time.Sleep(time.Minute)
		n := o.counts()
		if n["limited"] > 20 || n["heavy"] < 2*n["a"] || n["a"]+n["heavy"]+n["limited"] != 300 {
			t.Errorf("a has weight 1, heavy 3, limited at most 20: %v", n)
		}
		for i := range 10 {
			if err := shard.Pin(ctx, st, "orders", i, "a"); err != nil {
				t.Fatal(err)
			}
		}
		if err := shard.Pin(ctx, st, "orders", 10, "absent"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		o.mu.Lock()
		for i := range 10 {
			if o.of[i] != "a" {
				t.Errorf("shard %d is pinned to a, and owned by %q", i, o.of[i])
			}
		}
		if o.of[10] == "" {
			t.Error("a shard that is pinned to nobody who lives has no owner")
		}
		o.mu.Unlock()
		for _, err := range []error{
			shard.Pin(ctx, st, "orders", 300, "a"), shard.Pin(ctx, st, "orders", 0, "A!"), shard.Weigh(ctx, st, "orders", "a", 0), shard.Weigh(ctx, st, "orders", "a", 1_000_000),
		} {
			var bad *store.ArgumentError
			if !errors.As(err, &bad) {
				t.Errorf("accepted, or %v", err)
			}
		}
		if _, err := st.SetAttributes(ctx, store.Attributes{Name: "node/heavy", Values: map[string]string{"cordon": "rolling restart"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := o.counts(); n["heavy"] != 0 || n["a"]+n["limited"] != 300 {
			t.Errorf("heavy is cordoned: %v", n)
		}
		for _, p := range all {
			p.end(t)
		}
		if n := o.counts(); len(n) != 0 {
			t.Errorf("after the end: %v", n)
		}
	})
}

// Settings that cannot work are refused, and nothing that runs is disturbed.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := mem.New(mem.Options{Clock: bubble{}})
		defer st.Close()
		o := newOwners(t)
		good := shard.Config{Set: "orders", Count: 10}
		p := begin(t, st, o, "a", good)
		time.Sleep(10 * time.Second)
		for name, cfg := range map[string]shard.Config{
			"no count":      {Set: "orders"},
			"count changed": {Set: "orders", Count: 11},
			"too many":      {Set: "orders", Count: shard.MaxCount + 1},
			"slash":         {Set: "orders/eu", Count: 10},
			"weight":        {Set: "orders", Count: 10, Weight: 1001},
			"negative":      {Set: "orders", Count: 10, Weight: -1},
			"moves":         {Set: "orders", Count: 10, MaxMoves: -1},
		} {
			node, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: "b"}, Scope: store.Scope{"orders-*"}, Log: slog.New(slog.DiscardHandler), Clock: bubble{}})
			if err != nil {
				t.Fatal(err)
			}
			var bad *store.ArgumentError
			if err := shard.Run(t.Context(), node, cfg, o.work("b")); !errors.As(err, &bad) {
				t.Errorf("%s: %v", name, err)
			}
			_ = node.Close(context.Background())
		}
		if n := o.counts(); n["a"] != 10 {
			t.Errorf("a owns %v", n)
		}
		p.end(t)
		other := good
		other.Count = 12 // nobody runs the set
		q := begin(t, st, o, "a", other)
		time.Sleep(10 * time.Second)
		if n := o.counts(); n["a"] != 12 {
			t.Errorf("a owns %v", n)
		}
		q.end(t)
	})
}

// Work that fails loses its shard to another process, and comes back later.
func TestFailingWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := mem.New(mem.Options{Clock: bubble{}})
		defer st.Close()
		o := newOwners(t)
		cfg := shard.Config{Set: "orders", Count: 20, Settle: time.Second}
		good := begin(t, st, o, "good", cfg)
		node, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: "bad"}, Scope: store.Scope{"orders-*"}, Log: slog.New(slog.DiscardHandler), Clock: bubble{}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		runs := 0
		var mu sync.Mutex
		go func() {
			done <- shard.Run(ctx, node, cfg, func(context.Context, shard.Shard) error {
				mu.Lock()
				defer mu.Unlock()
				runs++
				return errors.New("the disk is full")
			})
		}()
		time.Sleep(10 * time.Minute)
		mu.Lock()
		if runs == 0 || runs > 2000 {
			t.Errorf("the work that fails ran %d times in ten minutes", runs)
		}
		mu.Unlock()
		cancel()
		<-done
		_ = node.Close(context.Background())
		time.Sleep(time.Minute)
		if n := o.counts(); n["good"] != 20 {
			t.Errorf("good owns %v", n)
		}
		good.end(t)
	})
}

// A key has one shard, and keys are spread.
func TestOf(t *testing.T) {
	n := map[int]int{}
	for i := range 10_000 {
		n[shard.Of(fmt.Sprintf("tenant-%d", i), 10)]++
	}
	for i, c := range n {
		if c < 900 || c > 1100 {
			t.Errorf("shard %d has %d keys", i, c)
		}
	}
	if len(n) != 10 {
		t.Errorf("%d shards", len(n))
	}
}
