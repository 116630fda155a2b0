package raft

import (
	"strings"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/raft/internal/pact"
)

// handClock is set by hand.
type handClock struct{ now clock.Instant }

func (c *handClock) Now() clock.Instant    { return c.now }
func (c *handClock) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }

func newPact(c *handClock) *pact.Pact {
	p := pact.New(pact.Config{
		Clock: c, Self: "a", Heartbeat: 100 * time.Millisecond, Window: 85 * time.Millisecond, Stall: time.Second,
		Voters: func() []string { return []string{"a", "b", "c"} },
	})
	c.now = c.now.Add(time.Hour) // it is not patient any more
	return p
}

// handState is what Raft says about itself, set by hand.
type handState struct {
	term  uint64
	state hraft.RaftState
}

func (h *handState) CurrentTerm() uint64    { return h.term }
func (h *handState) State() hraft.RaftState { return h.state }

// slowNet takes 30 ms for everything, and writes down what it is asked.
type slowNet struct {
	carrier
	clock  *handClock
	answer hraft.AppendEntriesResponse
	votes  []hraft.RequestVoteRequest
	pre    int
}

func (s *slowNet) AppendEntries(_ hraft.ServerID, _ hraft.ServerAddress, _ *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse) error {
	s.clock.now = s.clock.now.Add(30 * time.Millisecond)
	*resp = s.answer
	return nil
}

func (s *slowNet) RequestVote(_ hraft.ServerID, _ hraft.ServerAddress, args *hraft.RequestVoteRequest, _ *hraft.RequestVoteResponse) error {
	s.votes = append(s.votes, *args)
	return nil
}

func (s *slowNet) RequestPreVote(hraft.ServerID, hraft.ServerAddress, *hraft.RequestPreVoteRequest, *hraft.RequestPreVoteResponse) error {
	s.pre++
	return nil
}

// Trust is counted from before the sending, and only messages count that were
// accepted in the Raft term they were sent in. A Raft term that was silenced sends
// nothing.
func TestSending(t *testing.T) {
	c := &handClock{now: 1000}
	p := newPact(c)
	s := &slowNet{clock: c}
	tr := &transport{net: s, pact: p}
	send := func(term uint64) error {
		return tr.AppendEntries("b", "127.0.0.1:1", &hraft.AppendEntriesRequest{Term: term}, &hraft.AppendEntriesResponse{})
	}
	for _, refused := range []hraft.AppendEntriesResponse{{Term: 5}, {Term: 6}, {Term: 6, Success: true}} {
		s.answer = refused
		if err := send(5); err != nil {
			t.Fatal(err)
		}
		if p.Begin(5, c.now) != nil {
			t.Errorf("the answer %+v is trusted in Raft term 5", refused)
		}
	}
	s.answer = hraft.AppendEntriesResponse{Term: 5, Success: true}
	sent := c.now
	if err := send(5); err != nil {
		t.Fatal(err)
	}
	trust := p.Begin(5, c.now)
	if trust == nil || p.Ends() != sent.Add(85*time.Millisecond) {
		t.Fatalf("trust ends at %v, want 85 ms after %v", p.Ends(), sent)
	}
	p.Abdicate(5)
	before := c.now
	if send(5) == nil || c.now != before || tr.InstallSnapshot("b", "127.0.0.1:1", &hraft.InstallSnapshotRequest{Term: 5}, nil, nil) == nil {
		t.Error("a Raft term that was silenced still sends")
	}
	if send(6) != nil {
		t.Error("the next one does not")
	}
}

// A node that is patient asks for no votes. After a hand-over it does, with the
// privilege to override the patience of others, in that one Raft term.
func TestAsking(t *testing.T) {
	c := &handClock{now: 1000}
	p := newPact(c)
	s := &slowNet{clock: c}
	tr := &transport{net: s, pact: p}
	vote := func(term uint64, transfer bool) error {
		return tr.RequestVote("b", "127.0.0.1:1", &hraft.RequestVoteRequest{Term: term, LeadershipTransfer: transfer}, nil)
	}
	preVote := func() error { return tr.RequestPreVote("b", "127.0.0.1:1", &hraft.RequestPreVoteRequest{}, nil) }
	p.Answers("c", 5)
	if vote(6, false) == nil || vote(6, true) == nil || preVote() == nil || len(s.votes)+s.pre > 0 {
		t.Error("it asks for votes while it is patient")
	}
	p.TakeOver(5)
	if vote(7, true) == nil {
		t.Error("the privilege is for Raft term 6, and it asks in 7")
	}
	if err := vote(6, true); err != nil || len(s.votes) != 1 || !s.votes[0].LeadershipTransfer {
		t.Errorf("after the hand-over: %v, %+v", err, s.votes)
	}
	c.now = c.now.Add(time.Second)
	if err := vote(9, true); err != nil || len(s.votes) != 2 || s.votes[1].LeadershipTransfer {
		t.Errorf("later it asks without the privilege: %v, %+v", err, s.votes)
	}
	if preVote() != nil || s.pre != 1 {
		t.Error("without patience it does not ask")
	}
}

// The transport refuses a hand-over that does not name the current Raft term, and
// does not start one that was not given up.
func TestHandOverMessages(t *testing.T) {
	p := newPact(&handClock{now: 1000})
	raft := &handState{5, hraft.Follower}
	tr := &transport{pact: p, raft: raft}
	ask := func(addr string) error {
		r := tr.inspect(hraft.RPC{Command: &hraft.TimeoutNowRequest{RPCHeader: hraft.RPCHeader{Addr: []byte(addr)}}})
		if r == nil {
			return nil
		}
		return r.Error
	}
	for _, addr := range []string{"", "127.0.0.1:1", "term:", "term:4", "term:6", "term:-5"} {
		if ask(addr) == nil {
			t.Errorf("%q is obeyed in Raft term 5", addr)
		}
	}
	if p.Privileged(6) {
		t.Error("a refused hand-over left a privilege")
	}
	raft.state = hraft.Candidate
	if ask("term:5") == nil {
		t.Error("obeyed by a candidate, which has lost its leader")
	}
	raft.state = hraft.Follower
	if err := ask("term:5"); err != nil || !p.Privileged(6) {
		t.Errorf("a good hand-over is refused: %v", err)
	}
	for _, given := range []uint64{0, 4, 6} {
		if given > 0 {
			p.HandOver(given)
		}
		err := tr.TimeoutNow("b", "127.0.0.1:1", &hraft.TimeoutNowRequest{}, &hraft.TimeoutNowResponse{})
		if err == nil || !strings.Contains(err.Error(), "not given up") {
			t.Errorf("Raft term 5 is handed over, and %d was given up: %v", given, err)
		}
	}
}

// An answer that must not be sent is an error to the one who waits for it: both
// for heartbeats, which pass Raft's main loop by, and for entries.
func TestAnswerWithheld(t *testing.T) {
	p := newPact(&handClock{now: 1000})
	tr := &transport{pact: p}
	accept := func(term uint64) hraft.RPCResponse {
		return tr.filterAnswer(&hraft.AppendEntriesRequest{RPCHeader: hraft.RPCHeader{ID: []byte("b")}, Term: term},
			hraft.RPCResponse{Response: &hraft.AppendEntriesResponse{Term: term, Success: true}})
	}
	if r := accept(3); r.Error != nil {
		t.Fatal(r.Error)
	}
	if until, leader := p.Patience(); leader != "b" || until != p.Clock.Now().Add(p.Heartbeat) {
		t.Errorf("its patience is with %q until %v", leader, until)
	}
	if err := p.MayVote("c", 4, true, false); err != nil {
		t.Fatal(err)
	}
	if r := accept(3); r.Error == nil {
		t.Error("a leader is answered while a vote against it is decided")
	}
	vote := &hraft.RequestVoteRequest{Term: 4}
	tr.filterAnswer(vote, hraft.RPCResponse{Response: &hraft.RequestVoteResponse{Granted: true}})
	if r := accept(3).Response.(*hraft.AppendEntriesResponse); r.Success || r.Term != 4 {
		t.Errorf("after a vote in Raft term 4 the leader of term 3 is answered %+v", r)
	}
}
