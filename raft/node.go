package raft

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/raft/internal/pact"
	"github.com/tenurehq/tenure/raft/internal/wire"
)

// Node is a member of a Raft cluster that elects the leader of one group. It is a
// tenure.Elector for its own candidate.
type Node struct {
	cfg     Config
	store   *storage
	port    *wire.Port
	trans   *transport
	pact    *pact.Pact
	fsm     *machine
	raft    *hraft.Raft
	callers *wire.Callers

	ctx     context.Context // ends when the node stops
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{}
	closed  chan struct{} // closed when nothing is left
	closeTo error         // why it did not end well; after closed

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change of what is below
	seen      leadership    // as of the last step
	waiter    *waiter       // the campaign that waits
	held      *held         // the term that is held
	lingers   *held         // a term that was lost, and its work has not returned
	beginning uint64        // the number of the entry that begins a term, while it is under way
	ready     uint64        // the Raft term in which an entry of ours was applied
	line      map[string]place
	busy      bool // a task runs; there is one at a time
	pokes     bool // a heartbeat has been asked for
	closing   bool
	standing  standing
	handAt    clock.Instant // no handover before
	handPause time.Duration
}

var _ tenure.Elector = (*Node)(nil)

// The log holds beats, most of all: a day of them is some hundred thousand
// entries of a hundred bytes, of which these many are kept.
const (
	snapshotEvery     = time.Minute
	snapshotThreshold = 4096
	trailingLogs      = 1024
)

// Open starts a node. It returns when the node runs, which is before the cluster
// has a leader. What cannot work is an error that names the path or the address,
// and nothing is left running.
func Open(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.resolve()
	if cfg.TLS == nil {
		cfg.Log.Warn("raft: without TLS everybody who reaches the address can take part", "address", cfg.Listen)
	}
	log := &logSink{cfg.Log}
	life := rand.Text()
	n := &Node{
		cfg: cfg, fsm: newMachine(life),
		wake: make(chan struct{}, 1), closed: make(chan struct{}), changed: make(chan struct{}),
		line: map[string]place{},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.pact = pact.New(pact.Config{
		Clock: cfg.Clock, Self: cfg.Candidate.ID,
		Heartbeat: cfg.Heartbeat, Window: cfg.window(), Stall: cfg.Stall, Voters: n.voters,
	})
	if err := n.open(log); err != nil {
		n.cancel()
		if n.port != nil {
			_ = n.port.Close()
			n.port.Wait()
		}
		if n.trans != nil {
			_ = n.trans.Close()
		}
		if n.store != nil {
			_ = n.store.close()
		}
		return nil, err
	}
	n.running.Go(n.loop)
	n.running.Go(n.prompt)
	if cfg.Join {
		n.running.Go(n.join)
	}
	return n, nil
}

func (n *Node) open(log *logSink) (err error) {
	cfg := n.cfg
	// The libraries panic on a log with holes or pages that are torn, and bolt,
	// which maps its file, faults on one that was cut off.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("raft: data directory %s cannot be read: %v", cfg.DataDir, r)
		}
	}()
	// The address first: a directory is marked as this node's when it is opened.
	n.port, err = wire.Listen(wire.Config{
		ID: cfg.Candidate.ID, Life: n.fsm.life, Group: cfg.Group, Listen: cfg.Listen, Advertise: cfg.Advertise,
		TLS: cfg.TLS, Dial: cfg.Dial, Heartbeat: cfg.Heartbeat, Call: cfg.Call, Log: cfg.Log,
	})
	if errors.Is(err, wire.ErrTLS) {
		return fmt.Errorf("raft: %w: %w", ErrConfig, err)
	} else if err != nil {
		return fmt.Errorf("raft: %w", err)
	}
	if n.store, err = openStorage(cfg, log); err != nil {
		return err
	}
	n.callers = wire.NewCallers(n.port)
	n.trans = newTransport(cfg, n.port, n.pact, log)
	conf := hraft.DefaultConfig()
	conf.LocalID = hraft.ServerID(cfg.Candidate.ID)
	conf.HeartbeatTimeout = cfg.Heartbeat + hint
	conf.ElectionTimeout = cfg.Election + hint
	conf.LeaderLeaseTimeout = cfg.LeaderLease
	conf.CommitTimeout = cfg.Commit
	conf.SnapshotInterval = snapshotEvery
	conf.SnapshotThreshold = snapshotThreshold
	conf.TrailingLogs = trailingLogs
	// A node that was removed goes on answering its owner that it is no member.
	conf.ShutdownOnRemove = false
	conf.NoLegacyTelemetry = true
	conf.Logger = log.logger("raft")
	if err := n.store.bootstrap(cfg, conf, n.trans); err != nil {
		return err
	}
	if n.raft, err = hraft.NewRaft(conf, n.fsm, n.store.logs, n.store.bolt, n.store.snapshots, n.trans); err != nil {
		return fmt.Errorf("raft: data directory %s: %w", cfg.DataDir, err)
	}
	n.trans.start(n.raft)
	n.port.Start(n.store.identity.Founded, n.serveCalls)
	return nil
}

// voters are the members that vote, as of the newest configuration that this
// node knows.
func (n *Node) voters() []string {
	var ids []string
	for _, s := range n.servers() {
		if s.Suffrage == hraft.Voter {
			ids = append(ids, string(s.ID))
		}
	}
	return ids
}

func (n *Node) servers() []hraft.Server {
	return n.raft.GetConfiguration().Configuration().Servers
}

// leadership is whether this node is the Raft leader, and in which term.
type leadership struct {
	term    uint64
	leading bool
}

// leads reads both as of one moment: the term only grows, and a node leaves its
// leadership before it enters another term.
func (n *Node) leads() leadership {
	for {
		term := n.raft.CurrentTerm()
		leading := n.raft.State() == hraft.Leader
		if n.raft.CurrentTerm() == term {
			return leadership{term, leading}
		}
	}
}

// notify tells those who wait for a change. The caller holds mu.
func (n *Node) notify() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// nextChange is closed at the next change.
func (n *Node) nextChange() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *Node) poke() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// errStalled: an entry was not committed in time. Whether it will be is unknown.
var errStalled = errors.New("not committed in time")

// propose commits an entry in the Raft term and returns what became of it. After
// an error the outcome is unknown.
func (n *Node) propose(ctx context.Context, term uint64, e entry) (applied, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.cfg.Stall, errStalled)
	defer cancel()
	nth, result := n.fsm.expect()
	defer n.fsm.forget(nth)
	if e.Kind == begin {
		n.mu.Lock()
		n.beginning = nth
		n.mu.Unlock()
	}
	e.By, e.Life, e.Nth, e.At = n.cfg.Candidate.ID, n.fsm.life, nth, time.Now().UnixMilli()
	data, err := json.Marshal(e)
	if err != nil {
		return applied{}, err
	}
	// Its future is not waited for: see machine. It may block until the time is up.
	n.raft.Apply(data, left(ctx))
	for {
		changed := n.nextChange()
		if n.leads() != (leadership{term, true}) {
			return applied{}, errMoved
		}
		select {
		case a := <-result:
			switch {
			case a.err != nil:
				return a, a.err
			case a.term != term:
				return a, errMoved
			}
			n.mu.Lock()
			n.ready = term
			n.mu.Unlock()
			return a, nil
		case <-changed:
		case <-ctx.Done():
			return applied{}, context.Cause(ctx)
		}
	}
}

// left is the time until the context's deadline, for Raft, to which nothing at all
// means for ever.
func left(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return max(time.Millisecond, time.Until(deadline))
}

// Close ends the node: a campaign that waits fails, a term ends as if it had been
// resigned, and when its work has returned, the group is handed to another. Until
// ctx ends it waits for that; then the node stops in any case. An error says what
// did not end well.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	first := !n.closing
	n.closing = true
	if w := n.waiter; w != nil {
		n.waiter = nil
		w.result <- outcome{err: ErrClosed}
	}
	h := n.held
	if first && h != nil {
		n.stopTerm(h, tenure.ErrResigned)
	}
	n.mu.Unlock()
	if !first {
		select {
		case <-n.closed:
			return n.closeTo
		case <-ctx.Done():
			return fmt.Errorf("raft: closing node %q: %w", n.cfg.Candidate.ID, context.Cause(ctx))
		}
	}
	n.poke()

	unreturned := n.awaitWork(ctx)
	if unreturned == nil {
		n.bequeath(ctx)
	}
	go n.shutdown(unreturned)
	select {
	case <-n.closed:
		return n.closeTo
	case <-ctx.Done():
	}
	// Everything here ends at once, unless the disk hangs.
	const grace = time.Second
	select {
	case <-n.closed:
		return n.closeTo
	case <-time.After(grace):
		return errors.Join(unreturned, fmt.Errorf("raft: closing node %q: it is still busy, probably with its disk (%s): %w", n.cfg.Candidate.ID, n.cfg.DataDir, context.Cause(ctx)))
	}
}

// awaitWork waits until no work of this node runs.
func (n *Node) awaitWork(ctx context.Context) error {
	for {
		n.mu.Lock()
		h, changed := n.unreturned(), n.changed
		if h == nil {
			h = n.held // it is being released
		}
		n.mu.Unlock()
		if h == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("raft: closing node %q: work of token %d has not returned: %w", n.cfg.Candidate.ID, h.token, context.Cause(ctx))
		}
	}
}

// bequeath hands Raft's leadership over, so that nobody has to wait for a
// heartbeat that will not come.
func (n *Node) bequeath(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Election)
	defer cancel()
	if !n.takeTask(ctx) {
		return
	}
	defer n.endTask()
	now := n.leads()
	if !now.leading {
		return
	}
	if heir := cmp.Or(n.first(), n.anyOther()); heir != "" {
		if err := n.handOver(ctx, now.term, heir); err != nil {
			n.cfg.Log.Info("raft: closing without a hand-over", "to", heir, "error", err)
		}
	}
}

// shutdown stops everything and waits for it.
func (n *Node) shutdown(cause error) {
	n.mu.Lock()
	if h := n.held; h != nil {
		n.dropTerm(h, tenure.ErrLost)
	}
	n.cancel() // under mu: whoever finds ctx alive there may still start something
	n.mu.Unlock()
	stopped := n.raft.Shutdown()
	// Before waiting for Raft: it may wait for peers that do not answer.
	_ = n.port.Close()
	_ = stopped.Error()
	_ = n.trans.Close()
	n.running.Wait()
	n.port.Wait()
	n.closeTo = errors.Join(cause, n.store.close())
	close(n.closed)
}
