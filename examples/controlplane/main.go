// Command controlplane shows leadership at two levels, as in Kafka. Ten shards are spread over three
// processes, each shard with an owner that is elected. One process is also the coordinator: it
// measures load and places the shards. A coordinator that was deposed is refused. Then a process
// dies, and its shards recover in parallel, within an objective that a single leader would miss.
// Everything is in memory; the program takes half a minute.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/shard"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

const (
	set         = "orders"
	coordinator = set + "-coordinator" // its group; the scope orders-* has it too
	count       = 10
	objective   = 5 * time.Second
	perShard    = time.Second // what an owner replays before it serves its shard
	ttl         = 3 * time.Second
)

// measured is the load of each shard. A real coordinator would ask the owners.
var measured = [count]int{90, 10, 10, 80, 10, 70, 10, 10, 10, 60}

// result is what the program has shown.
type result struct {
	placed      int           // shards that are where the coordinator wants them
	late        error         // of the deposed coordinator's placement
	two         int           // shards that had two owners at once
	ten, single time.Duration // from the crash until all ten shards serve, and until a single leader would
}

func main() {
	if _, err := run(context.Background(), clock.System(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, clk clock.Clock, out io.Writer) (result, error) {
	var r result
	st := mem.New(mem.Options{Clock: clk})
	defer st.Close()
	f := &fleet{ctx: ctx, clock: clk, store: st, owner: map[int]string{}, serving: map[int]string{}}
	nodes := map[string]*process{}
	defer func() {
		for _, p := range nodes {
			p.stop()
		}
	}()
	for _, id := range []string{"node-1", "node-2", "node-3"} {
		p, err := f.start(id)
		if err != nil {
			return r, err
		}
		nodes[id] = p
	}
	if err := f.wait(func() bool { return len(f.serving) == count }); err != nil {
		return r, err
	}
	say(out, "10 shards are spread over three processes, by the hash of their names.")

	// The first coordinator places the shards by load, and a second one does it again.
	first, err := nodes["node-1"].elector.Campaign(ctx)
	if err != nil {
		return r, err
	}
	plan := balance("node-1", "node-2", "node-3")
	if err := shard.Place(ctx, st, set, first.Stamp(), plan); err != nil {
		return r, err
	}
	placed := func() (n int) {
		for i, id := range plan {
			if f.serving[i] == id {
				n++
			}
		}
		return n
	}
	if err := f.wait(func() bool { return placed() == count }); err != nil {
		return r, err
	}
	r.placed = count
	say(out, "%s is the coordinator (token %d). The shards have moved to where it has placed them: %v", "node-1", first.Token(), plan)

	// It is paused before its next placement, and another coordinator is elected meanwhile.
	if err := first.Resign(ctx); err != nil {
		return r, err
	}
	second, err := nodes["node-2"].elector.Campaign(ctx)
	if err != nil {
		return r, err
	}
	defer func() { _ = second.Resign(context.WithoutCancel(ctx)) }()
	if err := shard.Place(ctx, st, set, second.Stamp(), plan); err != nil {
		return r, err
	}
	r.late = shard.Place(ctx, st, set, first.Stamp(), map[int]string{0: "node-3", 1: "node-3"})
	say(out, "The placement of the deposed coordinator comes late. Refused: %v", r.late)

	say(out, "node-3 crashes. Each shard replays for %v before it serves; a single leader would replay for all ten, one after the other.", perShard)
	f.mu.Lock()
	f.longest = 0
	f.mu.Unlock()
	crashed := clk.Now()
	nodes["node-3"].crash()
	if err := f.wait(func() bool { return len(f.serving) == count }); err != nil {
		return r, err
	}
	r.ten = clk.Now().Sub(crashed)
	f.mu.Lock()
	r.two = f.two
	recovering := f.longest
	f.mu.Unlock()
	r.single = r.ten - perShard + count*perShard // the same election, and ten times as much to replay
	verdict := func(d time.Duration) string {
		if d <= objective {
			return "met"
		}
		return "missed"
	}
	say(out, "All ten shards serve again after %.1f s (%d of them recovered at the same time): the objective of %v is %s.", r.ten.Seconds(), recovering, objective, verdict(r.ten))
	say(out, "A single leader would serve after %.1f s: %s.", r.single.Seconds(), verdict(r.single))
	return r, nil
}

func say(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }

// balance gives each shard, the one with the most load first, to the process that has the least.
func balance(nodes ...string) map[int]string {
	plan, load := map[int]string{}, map[string]int{}
	for len(plan) < count {
		heavy, to := -1, nodes[0]
		for i, l := range measured {
			if _, done := plan[i]; !done && (heavy < 0 || l > measured[heavy]) {
				heavy = i
			}
		}
		for _, id := range nodes {
			if load[id] < load[to] {
				to = id
			}
		}
		plan[heavy] = to
		load[to] += measured[heavy]
	}
	return plan
}

// fleet is three processes, and who owns and serves which shard.
type fleet struct {
	ctx   context.Context
	clock clock.Clock
	store store.Store

	mu      sync.Mutex
	owner   map[int]string
	serving map[int]string
	marks   [count]fence.Mark // what a sink of each shard keeps
	two     int
	replays int // owners that replay now
	longest int // of those, at most
}

// wait waits until the condition is true. The condition is called with the lock.
func (f *fleet) wait(until func() bool) error {
	ctx, cancel := context.WithTimeout(f.ctx, time.Minute)
	defer cancel()
	for {
		f.mu.Lock()
		done := until()
		f.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

type process struct {
	*gate
	f       *fleet
	id      string
	node    *lease.Node
	elector *lease.Elector
	cancel  context.CancelFunc
	done    chan struct{}
}

func (f *fleet) start(id string) (*process, error) {
	p := &process{gate: &gate{Store: f.store}, f: f, id: id, done: make(chan struct{})}
	var err error
	p.node, err = lease.New(p.gate, lease.Config{
		Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{set + "-*"}, Timing: lease.Timing{TTL: ttl}, Clock: f.clock, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	if p.elector, err = p.node.Elector(coordinator); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(f.ctx)
	p.cancel = cancel
	go func() {
		defer close(p.done)
		_ = shard.Run(ctx, p.node, shard.Config{Set: set, Count: count, Settle: time.Second}, p.work)
	}()
	return p, nil
}

// work recovers a shard, and serves it until it moves.
func (p *process) work(ctx context.Context, s shard.Shard) error {
	f, i := p.f, s.Index
	f.mu.Lock()
	mark, err := f.marks[i].Admit(s.Term.Stamp())
	if err == nil {
		f.marks[i] = mark
	}
	if f.owner[i] != "" {
		f.two++
	}
	f.owner[i] = p.id
	f.replays++
	f.longest = max(f.longest, f.replays)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-time.After(perShard):
	case <-ctx.Done():
	}
	f.mu.Lock()
	f.replays--
	if ctx.Err() == nil {
		f.serving[i] = p.id
	}
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.owner[i] == p.id {
		delete(f.owner, i)
		delete(f.serving, i)
	}
	return ctx.Err()
}

// stop hands over the shards, and ends the process.
func (p *process) stop() {
	p.cancel()
	<-p.done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.f.ctx), 10*time.Second)
	defer cancel()
	_ = p.node.Close(ctx)
}

// crash ends the process without a word to the store.
func (p *process) crash() {
	p.cut()
	ctx, cancel := context.WithCancel(p.f.ctx)
	cancel()
	_ = p.node.Close(ctx) // its work returns
	<-p.done
}

// gate is a process's way to the store.
type gate struct {
	store.Store
	mu     sync.Mutex
	closed bool
}

var errCrashed = errors.New("the process has crashed")

func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

func (g *gate) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errCrashed
	}
	return nil
}

// KeepAlive fails after a crash.
func (g *gate) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	if err := g.err(); err != nil {
		return store.Beat{}, err
	}
	return g.Store.KeepAlive(ctx, id, groups...)
}

// Release fails after a crash.
func (g *gate) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	if err := g.err(); err != nil {
		return nil, err
	}
	return g.Store.Release(ctx, id, to, why, held...)
}

// End fails after a crash.
func (g *gate) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	if err := g.err(); err != nil {
		return err
	}
	return g.Store.End(ctx, id, why, seen...)
}
