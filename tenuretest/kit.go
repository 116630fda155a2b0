package tenuretest

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// Kit is one store and its nodes, on virtual time.
type Kit struct {
	t      *testing.T
	store  *mem.Store
	clock  clock.Clock
	log    *slog.Logger
	level  *slog.LevelVar
	change []func(*lease.Config)
	turn   chan struct{} // synctest lets one goroutine wait at a time

	mu    sync.Mutex
	nodes []*Node
}

// Run runs f on virtual time: time stands still while any goroutine of the test is busy, and
// jumps to the next timer when all of them wait. So eight seconds of failover take no time,
// and the test need not poll or sleep.
//
// Each change is applied to the configuration of every node. When f has returned and the
// context of t has ended, everything that the kit started is closed. A goroutine of the test
// that still runs a virtual minute later fails the test, with its stack.
//
// Nodes send keep-alives for ever, so a test that waits for something that never comes ends
// with the timeout of go test. Give such a wait a context with a deadline.
//
// The rules of testing/synctest apply: no network, no processes, and inside f
// neither t.Run nor t.Parallel.
func Run(t *testing.T, f func(t *testing.T, k *Kit), change ...func(*lease.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := bubbleClock{time.Now()}
		k := &Kit{
			t: t, clock: c, change: change, store: mem.New(mem.Options{Clock: c}),
			level: new(slog.LevelVar), turn: make(chan struct{}, 1),
		}
		k.log = newLog(t, k.level)
		t.Cleanup(k.close)
		f(t, k)
	})
}

func newLog(t *testing.T, level slog.Leveler) *slog.Logger {
	start := time.Now()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Duration("at", a.Value.Time().Sub(start))
		}
		return a
	}}))
}

// patience is how long, on virtual time, work may take to return at the end.
const patience = time.Minute

// close stops everything. It first ends all faults, which would delay it, and stops logging,
// so that earlier messages stay visible.
func (k *Kit) close() {
	k.level.Set(slog.LevelError + 1)
	k.mu.Lock()
	nodes := slices.Clone(k.nodes)
	k.mu.Unlock()
	var closing sync.WaitGroup
	for _, n := range nodes {
		n.Resume()
		n.Heal()
		closing.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			// A term that the test has not resigned is not work that hangs.
			_ = n.Close(ctx)
		})
	}
	closing.Wait()
	k.store.Close()
	k.Advance(patience)
}

// Node starts a process: a candidate for every group, with the timing of lease.Default unless
// a change says otherwise. It is closed with the kit. An invalid configuration fails the
// test.
func (k *Kit) Node(id string, change ...func(*lease.Config)) *Node {
	k.t.Helper()
	cfg := lease.Config{
		Candidate: tenure.Candidate{ID: id},
		Scope:     store.Scope{"*"},
		Timing:    lease.Default(),
		Log:       k.log,
		Clock:     k.clock,
	}
	for _, c := range slices.Concat(k.change, change) {
		c(&cfg)
	}
	n, err := NewNode(k.store, cfg)
	if err != nil {
		k.t.Fatalf("tenuretest: node %q: %v", id, err)
	}
	k.mu.Lock()
	k.nodes = append(k.nodes, n)
	k.mu.Unlock()
	return n
}

// WithTiming sets the timing; zero fields are derived from the TTL.
func WithTiming(t lease.Timing) func(*lease.Config) {
	return func(c *lease.Config) { c.Timing = t }
}

// Advance advances the time by d and then settles.
func (k *Kit) Advance(d time.Duration) {
	time.Sleep(d)
	k.Settle()
}

// Settle returns when every goroutine waits: for a timer, for the end of a fault, or for the
// test. No time passes.
func (k *Kit) Settle() {
	k.turn <- struct{}{}
	synctest.Wait()
	<-k.turn
}

// Leader reads who leads a group directly from the store, so no fault of a node affects it.
func (k *Kit) Leader(group string) tenure.Leader {
	k.t.Helper()
	v, err := k.store.Read(context.Background(), group)
	if err != nil {
		k.t.Fatalf("tenuretest: %v", err)
	}
	return v.Leader()
}

// Store returns the store that the nodes share: to ask a leader to step down, to read the
// history, to restore a backup.
func (k *Kit) Store() *mem.Store { return k.store }

// Log returns a log for the service under test. It writes to t.Log, with the virtual time
// since the start.
func (k *Kit) Log() *slog.Logger { return k.log }
