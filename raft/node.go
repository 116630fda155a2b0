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
	"github.com/tenurehq/tenure/store"
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
	secret  string // its digest is the life of this node: see Notices

	ctx     context.Context // ends when the node stops
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{}
	closed  chan struct{} // closed when everything has stopped
	closeTo error         // the result of Close; valid after closed

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change of what is below
	seen      leadership    // as of the last step
	waiter    *waiter       // the campaign that waits
	held      *held         // the term that is held
	lingers   *held         // a lost term whose work has not returned
	beginning uint64        // the number of the entry that begins a term, while it is proposed
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

// Most entries of the log are beats: some hundred thousand a day, of a hundred bytes each.
// Snapshots keep it short.
const (
	snapshotEvery     = time.Minute
	snapshotThreshold = 4096
	trailingLogs      = 1024
)

// Open starts a node. It returns when the node runs, which is before the cluster has a
// leader. An error names the path or the address that failed, and nothing is left running.
func Open(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.resolve()
	if cfg.TLS == nil {
		cfg.Log.Warn("raft: without TLS everybody who reaches the address can take part", "address", cfg.Listen)
	}
	log := &logSink{cfg.Log}
	secret := rand.Text()
	n := &Node{
		cfg: cfg, secret: secret, fsm: newMachine(store.InstanceDigest(secret)),
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
	// The libraries panic if the log has gaps or torn pages. bolt maps its file and causes a
	// fault if the file was truncated.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("raft: data directory %s cannot be read: %v", cfg.DataDir, r)
		}
	}()
	// The address first: openStorage writes this node's identity into the directory.
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
	// A removed node keeps running, so that it can tell its owner that it is no member.
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

// leads reads both at one moment: the term only grows, and a node stops leading before it
// enters another term.
func (n *Node) leads() leadership {
	for {
		term := n.raft.CurrentTerm()
		leading := n.raft.State() == hraft.Leader
		if n.raft.CurrentTerm() == term {
			return leadership{term, leading}
		}
	}
}

// notify wakes everyone who waits for a change. The caller holds mu.
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

// propose commits an entry in the Raft term and returns the result of applying it. After an
// error the outcome is unknown.
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
	// We do not wait for its future: see machine. Apply may block until the timeout.
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

// left returns the time until the context's deadline, above 0: to Raft, 0 is no timeout.
func left(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return max(time.Millisecond, time.Until(deadline))
}

// Close ends the node. A waiting campaign fails. A term ends as if it had been resigned, and
// when its work has returned, the group is handed to another node. Close waits for that
// until ctx ends; then the node stops in any case. An error says what did not stop.
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
		n.handOverAtClose(ctx)
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

// handOverAtClose hands over Raft's leadership, so that the others need not wait for a
// heartbeat timeout.
func (n *Node) handOverAtClose(ctx context.Context) {
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
	n.cancel() // under mu: others check ctx under mu before they start a goroutine
	n.mu.Unlock()
	stopped := n.raft.Shutdown()
	// Before waiting for Raft: it may wait for peers that do not answer.
	_ = n.port.Close()
	_ = stopped.Error()
	_ = n.trans.Close()
	n.running.Wait()
	n.register(leadership{})
	n.port.Wait()
	n.closeTo = errors.Join(cause, n.store.close())
	close(n.closed)
}
