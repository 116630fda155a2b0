package raft

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
)

// calm is a timing for tests in which speed is not the subject: it stands a busy
// machine with the race detector on.
func calm() Timing {
	return Timing{Heartbeat: 800 * time.Millisecond, LeaderLease: 700 * time.Millisecond, Commit: 20 * time.Millisecond, Beat: 250 * time.Millisecond, Stall: 3 * time.Second, Call: time.Second}
}

// testLog is quiet unless TENURE_RAFT_LOG is set.
func testLog() *slog.Logger {
	level := slog.LevelError
	if os.Getenv("TENURE_RAFT_LOG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// fleet is some nodes in this process.
type fleet struct {
	t     *testing.T
	net   *network
	dir   string
	peers map[string]string
	nodes map[string]*Node
	adapt func(*Config)
}

// newFleet describes nodes; start starts them. adapt may be nil.
func newFleet(t *testing.T, adapt func(*Config), ids ...string) *fleet {
	f := &fleet{t: t, net: newNetwork(t, ids...), dir: t.TempDir(), peers: map[string]string{}, nodes: map[string]*Node{}, adapt: adapt}
	for _, id := range ids {
		f.peers[id] = f.net.real[id]
	}
	t.Cleanup(func() {
		for id := range f.nodes {
			f.stop(id)
		}
	})
	return f
}

func (f *fleet) config(id string) Config {
	cfg := Config{
		Candidate: tenure.Candidate{ID: id, Address: "http://" + id, Metadata: map[string]string{"zone": "z-" + id}},
		Group:     "g", Peers: f.peers, DataDir: filepath.Join(f.dir, id),
		Timing: calm(), Dial: dialVia(f.net.routes(id)), Log: testLog(), Clock: clock.System(),
	}
	if f.adapt != nil {
		f.adapt(&cfg)
	}
	return cfg
}

func (f *fleet) start(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		n, err := Open(f.config(id))
		if err != nil {
			f.t.Fatal(err)
		}
		f.nodes[id] = n
	}
}

// stop closes a node.
func (f *fleet) stop(id string) {
	f.t.Helper()
	ctx, cancel := within(20 * time.Second)
	defer cancel()
	if h := f.nodes[id].holding(); h != nil {
		go func() { _ = h.term.Resign(ctx) }()
	}
	if err := f.nodes[id].Close(ctx); err != nil {
		f.t.Errorf("closing %s: %v", id, err)
	}
	delete(f.nodes, id)
}

func (n *Node) holding() *held {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held == nil {
		return n.lingers
	}
	return n.held
}

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// patience is how long a test waits for what should come.
const patience = 20 * time.Second

// win campaigns and requires to lead.
func (f *fleet) win(id string) *tenure.Term {
	f.t.Helper()
	ctx, cancel := within(patience)
	defer cancel()
	term, err := f.nodes[id].Campaign(ctx)
	if err != nil {
		f.t.Fatalf("%s campaigns: %v", id, err)
	}
	return term
}

// campaign runs one in the background.
func (f *fleet) campaign(id string) <-chan *tenure.Term {
	won := make(chan *tenure.Term, 1)
	n := f.nodes[id]
	go func() {
		term, err := n.Campaign(f.t.Context())
		if err == nil {
			won <- term
		} else if !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
			f.t.Errorf("%s campaigns: %v", id, err)
		}
	}()
	return won
}

// comes requires something to come.
func comes[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: not in %v", what, patience)
		panic("not reached")
	}
}

// eventually requires something to become true.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in %v", what, patience)
		}
	}
}

// ended requires the term to end, and returns why.
func ended(t *testing.T, term *tenure.Term) error {
	t.Helper()
	comes(t, "the term ends", term.Context().Done())
	return context.Cause(term.Context())
}
