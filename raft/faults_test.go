package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// stallingLogs is a disk that hangs while it is told to, or is full.
type stallingLogs struct {
	hraft.LogStore
	full  atomic.Bool
	mu    sync.Mutex
	until chan struct{} // closed: it writes
}

func (s *stallingLogs) stall() (resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	s.until = c
	return sync.OnceFunc(func() { close(c) })
}

func (s *stallingLogs) StoreLog(l *hraft.Log) error { return s.StoreLogs([]*hraft.Log{l}) }

func (s *stallingLogs) StoreLogs(l []*hraft.Log) error {
	if s.full.Load() {
		return syscall.ENOSPC
	}
	s.mu.Lock()
	c := s.until
	s.mu.Unlock()
	if c != nil {
		<-c
	}
	return s.LogStore.StoreLogs(l)
}

// A leader whose disk hangs heartbeats on, but its term ends within Stall, and
// another leads although the hanging one is still there.
func TestStalledDisk(t *testing.T) {
	t.Parallel()
	disks := map[string]*stallingLogs{}
	f := newFleet(t, func(c *Config) {
		c.Stall = 1500 * time.Millisecond
		id := c.Candidate.ID
		c.logs = func(l hraft.LogStore) hraft.LogStore {
			disks[id] = &stallingLogs{LogStore: l}
			return disks[id]
		}
	}, "a", "b", "c")
	f.start("a", "b", "c")
	term := f.win("a")
	next := f.campaign("b")
	time.Sleep(2 * time.Second)
	if err := term.Check(); err != nil {
		t.Fatalf("with a disk that works: %v", err)
	}
	resume := disks["a"].stall()
	defer resume()
	start := time.Now()
	if err := ended(t, term); !errors.Is(err, tenure.ErrExpired) {
		t.Errorf("the term ends: %v, want expired", err)
	}
	if took, bound := time.Since(start), 1500*time.Millisecond+calm().Heartbeat; took > bound {
		t.Errorf("the term ended %v after the disk did", took)
	}
	newer := comes(t, "another leads", next)
	if newer.Token() <= term.Token() {
		t.Errorf("token %d after %d", newer.Token(), term.Token())
	}
	resume()
	// The one that hung comes back as a follower.
	ctx, cancel := within(patience)
	defer cancel()
	eventually(t, "it is told who leads", func() bool {
		l, err := f.nodes["a"].Leader(ctx)
		return err == nil && l.Token == newer.Token() && l.State == tenure.Led
	})
	if err := newer.Check(); err != nil {
		t.Error(err)
	}
}

// A leader whose disk is full steps down, and another leads.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disks := map[string]*stallingLogs{}
	f := newFleet(t, func(c *Config) {
		id := c.Candidate.ID
		c.logs = func(l hraft.LogStore) hraft.LogStore {
			disks[id] = &stallingLogs{LogStore: l}
			return disks[id]
		}
	}, "a", "b", "c")
	f.start("a", "b", "c")
	term := f.win("a")
	next := f.campaign("b")
	disks["a"].full.Store(true)
	if err := ended(t, term); !errors.Is(err, tenure.ErrLost) {
		t.Errorf("the term ends: %v, want lost", err)
	}
	if newer := comes(t, "another leads", next); newer.Token() <= term.Token() {
		t.Errorf("token %d after %d", newer.Token(), term.Token())
	}
}

// A node whose disk hangs is not closed in time, and says so; it ends when the
// disk comes back. Until then it is a single node, which leads by itself.
func TestAlone(t *testing.T) {
	t.Parallel()
	var disk *stallingLogs
	f := newFleet(t, func(c *Config) {
		c.logs = func(l hraft.LogStore) hraft.LogStore {
			disk = &stallingLogs{LogStore: l}
			return disk
		}
	}, "a")
	f.start("a")
	ctx, cancel := within(patience)
	defer cancel()
	term := f.win("a")
	if err := f.nodes["a"].RaiseEpoch(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if err := f.nodes["a"].RaiseEpoch(ctx, 2); err == nil || !strings.Contains(err.Error(), "only rises") {
		t.Errorf("raised to the same again: %v", err)
	}
	f.stop("a")
	f.start("a")
	n := f.nodes["a"]
	again := f.win("a")
	if again.Token().Epoch() != 2 || again.Token().Counter() <= term.Token().Counter() {
		t.Errorf("token %d after %d, with the epoch raised to 2", again.Token(), term.Token())
	}
	if l, err := n.Leader(ctx); err != nil || l.Token != again.Token() {
		t.Errorf("%+v, %v", l, err)
	}
	time.Sleep(2 * calm().Heartbeat)
	if err := again.Check(); err != nil {
		t.Fatal(err)
	}
	resume := disk.stall()
	defer resume()
	time.Sleep(2 * calm().Beat)
	short, cancelShort := within(100 * time.Millisecond)
	defer cancelShort()
	go func() { _ = again.Resign(ctx) }()
	if err := n.Close(short); err == nil {
		t.Error("closed, with a disk that hangs")
	}
	if again.Check() == nil {
		t.Error("the term outlives Close")
	}
	if err := n.Close(short); err == nil || !strings.Contains(err.Error(), "closing node") {
		t.Errorf("a second Close, meanwhile: %v", err)
	}
	resume()
	if err := n.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("when the disk is back: %v", err)
	}
	comes(t, "everything ends", n.closed)
	delete(f.nodes, "a")
	f.start("a") // the directory is free
}

// A node that is far behind is sent a snapshot, which keeps the token; so does a
// restart of all from their snapshots.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	// Long enough for a term to outlast the load on a busy machine.
	f := newFleet(t, func(c *Config) { c.Heartbeat, c.LeaderLease, c.Election = 3*time.Second, 2*time.Second, 3*time.Second }, "a", "b", "c")
	f.start("a", "b")
	term := f.win("a")
	a := f.nodes["a"]
	ctx, cancel := within(3 * patience)
	defer cancel()
	var load sync.WaitGroup
	for range 64 {
		load.Go(func() {
			for range (trailingLogs + 200) / 64 {
				if _, err := a.propose(ctx, a.leads().term, entry{Kind: beat}); err != nil {
					t.Errorf("a beat: %v", err)
					return
				}
			}
		})
	}
	load.Wait()
	for _, id := range []string{"a", "b"} {
		if err := f.nodes[id].raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
	}
	f.start("c")
	c := f.nodes["c"]
	eventually(t, "c has a snapshot", func() bool {
		list, err := c.store.snapshots.List()
		r, _ := c.fsm.state()
		return err == nil && len(list) > 0 && r.Token == term.Token()
	})
	if err := term.Check(); err != nil {
		t.Errorf("the term did not survive: %v", err)
	}
	for _, id := range []string{"a", "b", "c"} {
		f.stop(id)
	}
	f.start("a", "b", "c")
	if next := f.win("c"); next.Token() <= term.Token() || next.Stamp().Deployment != term.Stamp().Deployment {
		t.Errorf("%v after %v", next.Stamp(), term.Stamp())
	}
}

// A node that was just started votes for nobody: it may have promised its
// patience to a leader before it was. After one Heartbeat it votes.
func TestRestartRefusesVotes(t *testing.T) {
	t.Parallel()
	f := newFleet(t, func(c *Config) { c.Heartbeat, c.LeaderLease, c.Election = 2*time.Second, time.Second, 2*time.Second }, "a", "b", "c")
	f.start("a")
	n := f.nodes["a"]
	header := hraft.RPCHeader{ProtocolVersion: hraft.ProtocolVersionMax, ID: []byte("b"), Addr: []byte(f.peers["b"])}
	pass := func(command any) any {
		seen := make(chan hraft.RPCResponse, 1)
		n.trans.pass(hraft.RPC{Command: command, RespChan: seen})
		return (<-seen).Response
	}
	votes := func() bool {
		return pass(&hraft.RequestVoteRequest{RPCHeader: header, Term: 10, LastLogIndex: 100, LastLogTerm: 100}).(*hraft.RequestVoteResponse).Granted
	}
	preVotes := func() bool {
		return pass(&hraft.RequestPreVoteRequest{RPCHeader: header, Term: 10, LastLogIndex: 100, LastLogTerm: 100}).(*hraft.RequestPreVoteResponse).Granted
	}
	until, _ := n.pact.Patience()
	for refused := 0; ; refused++ {
		pre, vote, asks := preVotes(), votes(), n.pact.MayAsk(10, false, true) == nil
		if clock.System().Now() >= until {
			if refused == 0 {
				t.Fatal("could not tell: the machine stood still for a Heartbeat")
			}
			break
		}
		if pre || vote || asks {
			t.Fatalf("in its first Heartbeat it gives a pre-vote %v, a vote %v, asks for votes %v", pre, vote, asks)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !preVotes() {
		t.Error("it gives no pre-vote after a Heartbeat")
	}
	if !votes() {
		t.Error("it does not vote after a Heartbeat")
	}
}

// A transfer that fails ends the term for good. The node may lead again, but with
// a new token and in a new Raft term, and the message that told the other to take
// over has no effect when it arrives at last.
func TestFailedTransfer(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, "a", "b", "c")
	f.start("a", "b", "c")
	term := f.win("a")
	raftTerm := f.nodes["a"].raft.CurrentTerm()
	waiting := f.campaign("b")
	ctx, cancel := within(patience)
	defer cancel()
	h := f.nodes["a"].holding()
	eventually(t, "b campaigns", func() bool { return h.Successor(ctx, "b") == nil })
	f.net.isolate("b")
	h.end(tenure.ErrTransferred) // as TransferTo does after Successor said yes
	h.Ended(tenure.ErrTransferred)
	if h.trust.Remaining() > 0 {
		t.Error("trust goes on although the term is to be handed over")
	}
	if err := h.Release(ctx, "b"); !errors.Is(err, tenure.ErrSuccessor) {
		t.Errorf("handing over to who is cut off: %v", err)
	}
	again := f.win("a")
	if again.Token() <= term.Token() {
		t.Errorf("token %d after %d", again.Token(), term.Token())
	}
	if now := f.nodes["a"].raft.CurrentTerm(); now <= raftTerm {
		t.Errorf("it leads in Raft term %d, which it had given up", now)
	}
	if term.Check() == nil {
		t.Error("the old term is back")
	}
	f.net.heal("b")
	time.Sleep(4 * calm().Heartbeat)
	if err := again.Check(); err != nil {
		t.Errorf("the late hand-over unseated it: %v", err)
	}
	select {
	case w := <-waiting:
		t.Errorf("b leads with token %d", w.Token())
	default:
	}
}

// A hand-over that arrives when its Raft term is over is not obeyed: by itself
// Raft would, and unseat a leader that knows nothing of it.
func TestLateHandOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, "a", "b", "c")
	f.start("a", "b", "c")
	ctx, cancel := within(2 * patience)
	defer cancel()
	if err := f.win("a").Resign(ctx); err != nil {
		t.Fatal(err)
	}
	a, b := f.nodes["a"], f.nodes["b"]
	term := a.leads().term
	deliver := func() error {
		seen := make(chan hraft.RPCResponse, 1)
		rpc := hraft.RPC{RespChan: seen, Command: &hraft.TimeoutNowRequest{
			RPCHeader: hraft.RPCHeader{ProtocolVersion: 3, Addr: fmt.Append(nil, handedPrefix, term)},
		}}
		b.trans.pass(rpc)
		return (<-seen).Error
	}
	eventually(t, "b follows", func() bool { return b.raft.CurrentTerm() == term })
	f.net.isolate("b")
	if err := a.handOver(ctx, term, "b"); err == nil {
		t.Fatal("b took over, and was cut off")
	}
	again := f.win("a")
	if now := a.raft.CurrentTerm(); now <= term {
		t.Errorf("it leads in Raft term %d, which it had given up", now)
	}
	f.net.heal("")
	eventually(t, "b follows the leader", func() bool {
		_, id := b.raft.LeaderWithID()
		return id == "a" && b.raft.CurrentTerm() == a.raft.CurrentTerm()
	})
	if deliver() == nil {
		t.Error("a hand-over of an old Raft term is obeyed")
	}
	time.Sleep(2 * calm().Heartbeat)
	if err := again.Check(); err != nil {
		t.Errorf("the late hand-over unseated the leader: %v", err)
	}
}

// rated is a clock that runs at another rate.
type rated struct {
	clock.Clock
	rate  float64
	start clock.Instant
}

func (c *rated) Now() clock.Instant {
	return c.start.Add(time.Duration(float64(c.Clock.Now().Sub(c.start)) * c.rate))
}

func (c *rated) NewTimer() clock.Timer { return &ratedTimer{c.Clock.NewTimer(), c} }

type ratedTimer struct {
	clock.Timer
	clock *rated
}

func (t *ratedTimer) Set(at clock.Instant) {
	if at != clock.Never {
		at = t.clock.start.Add(time.Duration(float64(at.Sub(t.clock.start)) / t.clock.rate))
	}
	t.Timer.Set(at)
}

// hurried is a fleet in which a has a good clock, and those named have one that
// is faster by the rate, Raft's own timers included.
func hurried(t *testing.T, rate float64, fast ...string) *fleet {
	const heartbeat = 1500 * time.Millisecond
	shorter := func(d time.Duration) time.Duration { return time.Duration(float64(d) / rate) }
	f := newFleet(t, func(c *Config) {
		// Raft's lease must not end the term before trust does: trust is tested.
		c.Heartbeat, c.Election, c.LeaderLease = heartbeat, heartbeat, heartbeat
		if slices.Contains(fast, c.Candidate.ID) {
			c.Clock = &rated{clock.System(), rate, clock.System().Now()}
			c.LeaderLease = shorter(heartbeat)
		}
	}, "a", "b", "c")
	f.start("a", "b", "c")
	for _, id := range fast {
		raft := f.nodes[id].raft
		timeouts := raft.ReloadableConfig()
		timeouts.HeartbeatTimeout, timeouts.ElectionTimeout = shorter(heartbeat)+hint, shorter(heartbeat)+hint
		if err := raft.ReloadConfig(timeouts); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// overlap lets a lead and cuts it off, and returns for how long it still read
// that it leads when another read the same. A gap is negative.
func (f *fleet) overlap() time.Duration {
	f.t.Helper()
	f.win("a")
	b, c := f.campaign("b"), f.campaign("c")
	reads := func(id string) bool {
		_, err := f.nodes[id].LeaderRead()
		return err == nil
	}
	var last, first clock.Instant
	stop := make(chan struct{})
	var watchers sync.WaitGroup
	watch := func(look func()) {
		watchers.Go(func() {
			for {
				look()
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	watch(func() {
		if now := clock.System().Now(); reads("a") { // at now or later
			last = now
		}
	})
	watch(func() {
		if first == 0 && (reads("b") || reads("c")) {
			first = clock.System().Now() // or earlier
		}
	})
	f.net.isolate("a")
	select {
	case <-b:
	case <-c:
	case <-time.After(patience):
		f.t.Fatal("nobody else leads")
	}
	time.Sleep(2 * time.Second) // more than a Heartbeat: a has stopped by now, whatever its clock
	close(stop)
	watchers.Wait()
	if last == 0 || first == 0 {
		f.t.Fatal("nobody read that it leads: nothing was tested")
	}
	return last.Sub(first)
}

// LeaderRead holds while the others' clocks are no faster than the bound allows,
// and also if only one of them is. When they run faster and faster, the bound is
// broken: the leader that is cut off reads that it leads, and so does the next.
func TestLeaderReadDrift(t *testing.T) {
	t.Parallel()
	timing := Timing{}.Resolve()
	bound := float64(timing.Heartbeat) / float64(timing.window())
	for _, tt := range []struct {
		rate float64
		fast []string
	}{{1, nil}, {0.999 * bound, []string{"b", "c"}}, {3, []string{"b"}}} {
		t.Run(fmt.Sprintf("%.3f %v", tt.rate, tt.fast), func(t *testing.T) {
			t.Parallel()
			d := hurried(t, tt.rate, tt.fast...).overlap()
			t.Logf("%v from the other's beginning to the last belief", d.Round(time.Millisecond))
			if d >= 0 {
				t.Errorf("within the bound of %.3f, it read for %v after another began", bound, d)
			}
		})
	}
	t.Run("beyond", func(t *testing.T) {
		t.Parallel()
		// Far beyond, heartbeats come too slowly for such followers, so that they
		// unseat a leader that can still be told.
		for _, rate := range []float64{1.5, 2, 2.5, 3, 3.5} {
			d := hurried(t, rate, "b", "c").overlap()
			t.Logf("rate %v: %v from the other's beginning to the last belief", rate, d.Round(time.Millisecond))
			if d >= 0 {
				return
			}
		}
		t.Error("the bound was never broken: this test tests nothing")
	})
}

// suspending is a clock that leaps, as that of a machine that was suspended does:
// the timers of the process have stood still.
type suspending struct {
	clock.Clock
	leapt atomic.Int64
}

func (c *suspending) Now() clock.Instant {
	return c.Clock.Now().Add(time.Duration(c.leapt.Load()))
}

func (c *suspending) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }

// A leader whose machine was suspended finds out by itself, before anything could
// tell it: the first LeaderRead and the first Check fail.
func TestSuspended(t *testing.T) {
	t.Parallel()
	c := &suspending{Clock: clock.System()}
	f := newFleet(t, func(cfg *Config) {
		if cfg.Candidate.ID == "a" {
			cfg.Clock = c
		}
	}, "a", "b", "c")
	f.start("a", "b", "c")
	term := f.win("a")
	if _, err := f.nodes["a"].LeaderRead(); err != nil {
		t.Errorf("before: %v", err)
	}
	f.net.isolate("a")
	c.leapt.Store(int64(calm().Heartbeat))
	if l, err := f.nodes["a"].LeaderRead(); !errors.Is(err, ErrNotLeading) {
		t.Errorf("after a Heartbeat it reads %+v, %v", l, err)
	}
	if err := term.Check(); !errors.Is(err, tenure.ErrExpired) && !errors.Is(err, tenure.ErrLost) {
		t.Errorf("after a Heartbeat its term is: %v", err)
	}
}

// A node joins and another leaves while the leader works: the term goes on. The
// one that left comes back from the dead with its old configuration, and disturbs
// nobody.
func TestJoinLeave(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, "a", "b", "c")
	f.start("a", "b", "c")
	term := f.win("a")
	ctx, cancel := within(2 * patience)
	defer cancel()

	// Load: reads from everywhere.
	load, stop := context.WithCancel(ctx)
	var readers sync.WaitGroup
	for _, n := range f.nodes {
		readers.Go(func() {
			for load.Err() == nil {
				if l, err := n.Leader(load); err == nil && (l.Token != term.Token() || l.State != tenure.Led) {
					t.Errorf("while members come and go, a read says %v with token %d", l.State, l.Token)
				}
			}
		})
	}

	f.net.add(t, "d")
	adapt := f.adapt
	f.adapt = func(c *Config) {
		if adapt != nil {
			adapt(c)
		}
		if c.Candidate.ID == "d" {
			c.Join, c.Advertise = true, f.net.real["d"]
		}
	}
	f.start("d")
	eventually(t, "d is a member", func() bool { return f.nodes["a"].Members()["d"] != "" && len(f.nodes["d"].Members()) == 4 })

	// c is cut off, so it does not learn that it is removed.
	f.net.isolate("c")
	if err := f.nodes["d"].Remove(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	if err := f.nodes["b"].Leave(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	readers.Wait()
	got := Config{Peers: f.nodes["a"].Members()}.peerIDs()
	if want := []string{"a", "d"}; !slices.Equal(got, want) {
		t.Errorf("members are %v, want %v", got, want)
	}
	if err := term.Check(); err != nil {
		t.Fatalf("the term did not survive: %v", err)
	}
	raftTerm := f.nodes["a"].raft.CurrentTerm()
	lost := f.campaign("c")
	gone := f.campaign("b")
	eventually(t, "c has lost its patience", func() bool { return f.nodes["c"].raft.State() == hraft.Candidate })
	f.net.heal("c")
	time.Sleep(4 * calm().Heartbeat)        // c asks for votes
	for _, id := range []string{"a", "d"} { // and now as rudely as it can
		var resp hraft.RequestVoteResponse
		err := f.nodes["c"].trans.net.RequestVote(hraft.ServerID(id), to(hraft.ServerID(id), hraft.ServerAddress(f.net.real[id])), &hraft.RequestVoteRequest{
			RPCHeader: f.nodes["c"].trans.self, Term: raftTerm + 10, LastLogIndex: 1 << 20, LastLogTerm: raftTerm + 9, LeadershipTransfer: true,
		}, &resp)
		if err != nil || resp.Granted {
			t.Errorf("%s is asked by the removed node for its vote: granted %v, %v", id, resp.Granted, err)
		}
	}
	if now := f.nodes["a"].raft.CurrentTerm(); now != raftTerm {
		t.Errorf("the removed node drove the Raft term from %d to %d", raftTerm, now)
	}
	if err := term.Check(); err != nil {
		t.Errorf("the removed node ended the term: %v", err)
	}
	if err := f.nodes["a"].Leave(ctx); err == nil {
		t.Error("the leader left in the middle of its term")
	}

	// The leader is removed: its term ends, and the one that is left takes over.
	next := f.campaign("d")
	if err := f.nodes["d"].Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, term); !errors.Is(err, tenure.ErrLost) {
		t.Errorf("the term of the removed leader: %v", err)
	}
	if newer := comes(t, "d leads alone", next); newer.Token() <= term.Token() {
		t.Errorf("token %d after %d", newer.Token(), term.Token())
	}
	for _, c := range []<-chan *tenure.Term{lost, gone} {
		select {
		case w := <-c:
			t.Errorf("a removed node leads with token %d", w.Token())
		default:
		}
	}
}

// A Raft leader that does not campaign hands over to one who does; while nobody
// does, the group is vacant.
func TestIdle(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, "a", "b", "c")
	f.start("a", "b", "c")
	ctx, cancel := within(patience)
	defer cancel()
	eventually(t, "the group is vacant", func() bool {
		l, err := f.nodes["a"].Leader(ctx)
		if err == nil && (l.State != tenure.Vacant || l.Token != 0) {
			t.Errorf("nobody campaigned: %+v", l)
		}
		return err == nil
	})
	last := fence.Token(0)
	for range 3 {
		for _, id := range []string{"a", "b", "c"} {
			term := f.win(id)
			if term.Token() <= last {
				t.Errorf("token %d after %d", term.Token(), last)
			}
			last = term.Token()
			if err := term.Resign(ctx); err != nil {
				t.Error(err)
			}
		}
	}
}

// The first in line is the one with the highest priority, and of equals the one
// that waits for longest.
func TestLine(t *testing.T) {
	t.Parallel()
	f := newFleet(t, func(c *Config) {
		if c.Candidate.ID == "c" {
			c.Candidate.Priority = 5
		}
	}, "a", "b", "c")
	f.start("a", "b", "c")
	term := f.win("a")
	b := f.campaign("b")
	n := f.nodes["a"]
	eventually(t, "b is in line", func() bool { return n.first() == "b" })
	c := f.campaign("c")
	eventually(t, "c is before it", func() bool { return n.first() == "c" })
	ctx, cancel := within(patience)
	defer cancel()
	if err := term.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	next := comes(t, "c leads", c)
	if err := next.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	comes(t, "b leads", b)
}

// A single node whose disk hangs while it resigns leads again when the disk is
// back: there is nobody else for whom it could have given its Raft term up. Until
// its work has returned it neither campaigns nor closes without saying so.
func TestAloneAgain(t *testing.T) {
	t.Parallel()
	var disk *stallingLogs
	f := newFleet(t, func(c *Config) {
		c.Stall = time.Second
		c.logs = func(l hraft.LogStore) hraft.LogStore {
			disk = &stallingLogs{LogStore: l}
			return disk
		}
	}, "a")
	f.start("a")
	term := f.win("a")
	resume := disk.stall()
	defer resume()
	ctx, cancel := within(patience)
	defer cancel()
	if err := term.Resign(ctx); err == nil {
		t.Error("the release is confirmed by a disk that hangs")
	}
	resume()
	again := f.win("a")
	if again.Token() <= term.Token() {
		t.Errorf("token %d after %d", again.Token(), term.Token())
	}
	f.nodes["a"].mu.Lock()
	f.nodes["a"].dropTerm(f.nodes["a"].held, tenure.ErrLost)
	f.nodes["a"].mu.Unlock()
	if _, err := f.nodes["a"].Campaign(ctx); err == nil || !strings.Contains(err.Error(), "has not returned") {
		t.Errorf("a campaign under work of its own: %v", err)
	}
	short, cancelShort := within(100 * time.Millisecond)
	defer cancelShort()
	if err := f.nodes["a"].Close(short); err == nil || !strings.Contains(err.Error(), "has not returned") {
		t.Errorf("closed over work that has not returned: %v", err)
	}
	delete(f.nodes, "a")
}

// A node that asks to join from where it cannot be reached is not made a voter: it
// would count against the quorum for ever.
func TestJoinUnreachable(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, "a")
	f.start("a")
	term := f.win("a")
	ctx, cancel := within(patience)
	defer cancel()
	_, err := f.nodes["a"].ask(ctx, request{Op: opJoin, ID: "b", Address: "127.0.0.1:1"})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("joined from nowhere: %v", err)
	}
	if m := f.nodes["a"].Members(); len(m) != 1 {
		t.Errorf("members are %v", m)
	}
	if err := term.Check(); err != nil {
		t.Error(err)
	}
}
