package raft

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure/raft/internal/pact"
)

// transport sends and receives Raft's messages. It enforces pact.Pact: it records the send
// time of each message that a follower accepted, and drops the votes, requests for votes
// and answers that Pact forbids.
//
// It implements what hashicorp/raft 1.8 looks for in a transport besides the
// Transport interface itself: WithPreVote and WithClose.
type transport struct {
	net  carrier
	pact *pact.Pact
	self hraft.RPCHeader
	raft state // of this node

	inbox   chan hraft.RPC
	notices chan hraft.RPC // see takeOver
	// handing keeps heartbeats out while a handover is checked and takes effect. Raft handles
	// heartbeats outside of its main loop, and one may bring a new Raft term: Raft would then
	// enter a term above that of the new leader, and replace it.
	handing sync.RWMutex

	stop    chan struct{}
	closing sync.Once
	running sync.WaitGroup
}

// state is what the transport asks an hraft.Raft.
type state interface {
	CurrentTerm() uint64
	State() hraft.RaftState
}

// carrier is an hraft.NetworkTransport.
type carrier interface {
	hraft.Transport
	hraft.WithPreVote
	hraft.WithClose
}

var (
	_ hraft.Transport   = (*transport)(nil)
	_ hraft.WithPreVote = (*transport)(nil)
	_ hraft.WithClose   = (*transport)(nil)
)

func newTransport(cfg Config, s hraft.StreamLayer, p *pact.Pact, log *logSink) *transport {
	return &transport{
		net: hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
			Logger: log.logger("raft-net"),
			Stream: s,
			// A heartbeat and an append at a time, and one spare.
			MaxPool: 3,
			Timeout: cfg.Call,
		}),
		pact: p,
		self: hraft.RPCHeader{
			ProtocolVersion: hraft.ProtocolVersionMax,
			ID:              []byte(cfg.Candidate.ID),
			Addr:            []byte(cfg.Advertise),
		},
		inbox:   make(chan hraft.RPC),
		notices: make(chan hraft.RPC),
		stop:    make(chan struct{}),
	}
}

// start begins to pass received messages to Raft.
func (t *transport) start(raft state) {
	t.raft = raft
	t.running.Go(t.receive)
}

// receive passes messages to Raft one at a time and handles each answer. Raft's main loop
// answers in the same order, so this adds no delay.
func (t *transport) receive() {
	for {
		select {
		case rpc := <-t.net.Consumer():
			t.pass(rpc)
		case rpc := <-t.notices:
			t.pass(rpc)
		case <-t.stop:
			return
		}
	}
}

// pass shows Raft a message, if it may see it, and answers it.
func (t *transport) pass(rpc hraft.RPC) {
	_, handOver := rpc.Command.(*hraft.TimeoutNowRequest)
	if handOver {
		t.handing.Lock()
		defer t.handing.Unlock()
		if refusal := t.inspect(rpc); refusal != nil {
			rpc.RespChan <- *refusal
			return
		}
		// Raft may be about to follow another leader: it changes its state at once, but its
		// term only when that is on disk. So send it a message of Raft term 0, which it refuses
		// without an effect. After the answer that change is complete, and the term of a
		// follower changes by messages only. Then inspect once more.
		if _, ok := t.show(hraft.RPC{Command: &hraft.AppendEntriesRequest{RPCHeader: t.self}}); !ok {
			return
		}
	}
	if refusal := t.inspect(rpc); refusal != nil {
		rpc.RespChan <- *refusal
		return
	}
	term := t.raft.CurrentTerm()
	resp, ok := t.show(rpc)
	if !ok {
		return
	}
	rpc.RespChan <- t.filterAnswer(rpc.Command, resp)
	if handOver {
		t.settle(term)
	}
}

// show passes a message to Raft's main loop and waits for the answer. ok is false if the
// transport is closed.
func (t *transport) show(rpc hraft.RPC) (resp hraft.RPCResponse, ok bool) {
	seen := make(chan hraft.RPCResponse, 1)
	rpc.RespChan = seen
	select {
	case t.inbox <- rpc:
	case <-t.stop:
		return resp, false
	}
	select {
	case resp = <-seen:
		return resp, true
	case <-t.stop:
		return resp, false
	}
}

// settle waits until Raft has left the term that was handed over: Raft is about to add one
// to its current term, whichever that is.
func (t *transport) settle(term uint64) {
	const look = time.Millisecond
	for waited := time.Duration(0); t.raft.CurrentTerm() == term && waited < t.pact.Heartbeat; waited += look {
		select {
		case <-time.After(look):
		case <-t.stop:
			return
		}
	}
}

// inspect returns the answer to a message that Raft must not see, and nil for others.
func (t *transport) inspect(rpc hraft.RPC) *hraft.RPCResponse {
	switch m := rpc.Command.(type) {
	case *hraft.RequestVoteRequest:
		if err := t.pact.MayVote(string(m.ID), m.Term, m.LeadershipTransfer, false); err != nil {
			return &hraft.RPCResponse{Response: &hraft.RequestVoteResponse{RPCHeader: t.self, Term: t.raft.CurrentTerm()}}
		}
	case *hraft.RequestPreVoteRequest:
		if err := t.pact.MayVote(string(m.ID), m.Term, false, true); err != nil {
			return &hraft.RPCResponse{Response: &hraft.RequestPreVoteResponse{RPCHeader: t.self, Term: t.raft.CurrentTerm()}}
		}
	case *hraft.TimeoutNowRequest:
		// Raft obeys this message whenever it arrives, however late.
		term, err := handedTerm(m.Addr)
		if now := t.raft.CurrentTerm(); err == nil && term != now {
			err = fmt.Errorf("handover of Raft term %d refused: this node is in term %d", term, now)
		} else if err == nil && t.raft.State() != hraft.Follower {
			err = fmt.Errorf("handover of Raft term %d refused: this node is not a follower", term)
		}
		if err != nil {
			return &hraft.RPCResponse{Response: &hraft.TimeoutNowResponse{RPCHeader: t.self}, Error: err}
		}
		t.pact.TakeOver(term)
	}
	return nil
}

// filterAnswer returns the answer to send: Raft's own, or a refusal if Pact forbids that.
func (t *transport) filterAnswer(command any, resp hraft.RPCResponse) hraft.RPCResponse {
	switch m := command.(type) {
	case *hraft.RequestVoteRequest:
		r, ok := resp.Response.(*hraft.RequestVoteResponse)
		t.pact.Decided(m.Term, ok && resp.Error == nil && r.Granted)
	case *hraft.AppendEntriesRequest:
		r, ok := resp.Response.(*hraft.AppendEntriesResponse)
		if !ok || resp.Error != nil || !r.Success || t.pact.Answers(string(m.ID), m.Term) {
			return resp
		}
		if voted := t.pact.Voted(); voted > m.Term {
			// The answer that Raft itself would give a moment later.
			return hraft.RPCResponse{Response: &hraft.AppendEntriesResponse{RPCHeader: r.RPCHeader, Term: voted, LastLog: r.LastLog}}
		}
		return hraft.RPCResponse{Response: r, Error: errors.New("a vote in a later term is being decided")}
	}
	return resp
}

// SetHeartbeatHandler implements hraft.Transport: heartbeats bypass Raft's main loop, which
// may hang on the disk.
func (t *transport) SetHeartbeatHandler(handle func(hraft.RPC)) {
	t.net.SetHeartbeatHandler(func(rpc hraft.RPC) {
		seen := make(chan hraft.RPCResponse, 1)
		passed := rpc
		passed.RespChan = seen
		t.handing.RLock()
		handle(passed)
		t.handing.RUnlock()
		select {
		case resp := <-seen:
			rpc.RespChan <- t.filterAnswer(rpc.Command, resp)
		default: // shut down
		}
	})
}

// to returns the address in the form of wire.Port: id@host:port.
func to(id hraft.ServerID, addr hraft.ServerAddress) hraft.ServerAddress {
	return hraft.ServerAddress(string(id) + "@" + string(addr))
}

var errSilent = errors.New("this node has given its Raft term up and sends nothing more in it")

// AppendEntries implements hraft.Transport.
func (t *transport) AppendEntries(id hraft.ServerID, target hraft.ServerAddress, args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse) error {
	if t.pact.Silent(args.Term) {
		return errSilent
	}
	// Read the clock before sending: the follower's patience begins between then and the answer.
	sent := t.pact.Clock.Now()
	err := t.net.AppendEntries(id, to(id, target), args, resp)
	if err == nil && resp.Success && resp.Term == args.Term {
		t.pact.Acknowledged(string(id), args.Term, sent)
	}
	return err
}

// AppendEntriesPipeline implements hraft.Transport. A log that grows by a few
// entries a second gains nothing from a pipeline, and without one each message has one send
// time and one answer.
func (t *transport) AppendEntriesPipeline(hraft.ServerID, hraft.ServerAddress) (hraft.AppendPipeline, error) {
	return nil, hraft.ErrPipelineReplicationNotSupported
}

// RequestVote implements hraft.Transport.
func (t *transport) RequestVote(id hraft.ServerID, target hraft.ServerAddress, args *hraft.RequestVoteRequest, resp *hraft.RequestVoteResponse) error {
	if args.LeadershipTransfer && !t.pact.Privileged(args.Term) {
		plain := *args
		plain.LeadershipTransfer = false
		args = &plain
	}
	if err := t.pact.MayAsk(args.Term, args.LeadershipTransfer, false); err != nil {
		return err
	}
	return t.net.RequestVote(id, to(id, target), args, resp)
}

// RequestPreVote implements hraft.WithPreVote.
func (t *transport) RequestPreVote(id hraft.ServerID, target hraft.ServerAddress, args *hraft.RequestPreVoteRequest, resp *hraft.RequestPreVoteResponse) error {
	if err := t.pact.MayAsk(args.Term, false, true); err != nil {
		return err
	}
	return t.net.RequestPreVote(id, to(id, target), args, resp)
}

// InstallSnapshot implements hraft.Transport.
func (t *transport) InstallSnapshot(id hraft.ServerID, target hraft.ServerAddress, args *hraft.InstallSnapshotRequest, resp *hraft.InstallSnapshotResponse, data io.Reader) error {
	if t.pact.Silent(args.Term) {
		return errSilent
	}
	return t.net.InstallSnapshot(id, to(id, target), args, resp, data)
}

// handedPrefix marks a header whose address is a Raft term: TimeoutNow has no
// field for it, and its address is not used.
const handedPrefix = "term:"

func handedTerm(header []byte) (uint64, error) {
	s, ok := strings.CutPrefix(string(header), handedPrefix)
	term, err := strconv.ParseUint(s, 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("handover refused: the message names no Raft term")
	}
	return term, nil
}

// TimeoutNow implements hraft.Transport: the peer is told to take over the Raft
// term that this node has given up.
func (t *transport) TimeoutNow(id hraft.ServerID, target hraft.ServerAddress, args *hraft.TimeoutNowRequest, resp *hraft.TimeoutNowResponse) error {
	term := t.pact.HandsOver()
	if term == 0 || term != t.raft.CurrentTerm() {
		return errors.New("this node has not given up its Raft term")
	}
	named := *args
	named.Addr = []byte(handedPrefix + strconv.FormatUint(term, 10))
	return t.net.TimeoutNow(id, to(id, target), &named, resp)
}

// Consumer implements hraft.Transport.
func (t *transport) Consumer() <-chan hraft.RPC { return t.inbox }

// LocalAddr implements hraft.Transport.
func (t *transport) LocalAddr() hraft.ServerAddress { return t.net.LocalAddr() }

// EncodePeer implements hraft.Transport.
func (t *transport) EncodePeer(id hraft.ServerID, addr hraft.ServerAddress) []byte {
	return t.net.EncodePeer(id, addr)
}

// DecodePeer implements hraft.Transport.
func (t *transport) DecodePeer(b []byte) hraft.ServerAddress { return t.net.DecodePeer(b) }

// Close implements hraft.WithClose. Raft calls it when its loops have ended.
func (t *transport) Close() error {
	t.closing.Do(func() { close(t.stop) })
	err := t.net.Close()
	t.running.Wait()
	return err
}
