package raft

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/elector"
	"github.com/tenurehq/tenure/fence"
)

// waiter is a campaign that waits. Its result is buffered by one.
type waiter struct{ result chan outcome }

type outcome struct {
	term *tenure.Term
	err  error
}

// held is a term that this node holds, from its beginning until it is given up or
// lost. It is an elector.Grant.
type held struct {
	node   *Node
	token  fence.Token
	raft   uint64 // the Raft term
	trust  *elector.Trust
	term   *tenure.Term
	end    func(error) bool
	leader tenure.Leader // as LeaderRead answers

	// Under the node's mu:
	ending   error // why it ended, if its work may still be running
	returned bool  // its work has returned
	release  *release
	gone     chan struct{} // closed when it is no longer held
}

// unreturned is the term whose work still runs. The caller holds mu.
func (n *Node) unreturned() *held {
	if n.held != nil && !n.held.returned {
		return n.held
	}
	return n.lingers
}

// release is the request to give up a term whose work has returned.
type release struct {
	to   string
	done chan error // buffered by one
}

// loop calls step after every event that can change its decision.
func (n *Node) loop() {
	timer := n.cfg.Clock.NewTimer()
	defer timer.Stop()
	tick := time.NewTicker(n.cfg.tellEvery())
	defer tick.Stop()
	observed := make(chan hraft.Observation, 16)
	observer := hraft.NewObserver(observed, false, func(o *hraft.Observation) bool {
		_, leader := o.Data.(hraft.LeaderObservation)
		return leader
	})
	n.raft.RegisterObserver(observer)
	defer n.raft.DeregisterObserver(observer)
	for {
		timer.Set(n.step())
		select {
		case <-n.wake:
		case <-n.raft.LeaderCh():
		case <-observed:
		case <-timer.C():
		case <-tick.C:
		case <-n.ctx.Done():
			return
		}
	}
}

// step makes all decisions of the node and starts the task that follows. It returns the
// time at which trust ends.
func (n *Node) step() clock.Instant {
	now := n.leads()
	n.mu.Lock()
	defer n.mu.Unlock()
	if now != n.seen {
		n.seen = now
		n.handAt, n.handPause = 0, 0
		n.register(now)
		n.notify()
	}
	if h := n.held; h != nil {
		switch {
		case !now.leading || now.term != h.raft:
			n.dropTerm(h, tenure.ErrLost)
		case h.ending == nil && h.trust.Remaining() <= 0:
			n.expire(h)
		}
	}
	switch {
	case n.busy || n.ctx.Err() != nil:
	case !now.leading:
		n.tell()
	case n.held != nil && n.held.release != nil:
		h := n.held
		n.start(func() { n.giveUp(h) })
	case n.held != nil || n.closing:
	case n.waiter != nil && n.pact.Usable(now.term):
		n.start(func() { n.beginTerm(now.term) })
	case n.waiter != nil && n.anyOther() == "":
		// All other voters have left, so nobody can have taken over.
		n.pact.Reclaim(now.term)
		n.poke()
	case n.waiter != nil:
		// The handover failed, and now this node campaigns: it needs another Raft term.
		n.pact.Abdicate(now.term)
	default:
		if heir := n.inLine(); heir != "" && n.cfg.Clock.Now() >= n.handAt {
			n.start(func() { n.passOn(now.term, heir) })
		}
	}
	if n.held != nil && n.held.ending == nil {
		return n.pact.Ends()
	}
	return clock.Never
}

// start runs a task in the background. The caller holds mu and has checked that none runs.
func (n *Node) start(task func()) {
	n.busy = true
	n.running.Go(func() {
		defer n.endTask()
		task()
	})
}

// takeTask waits until no task runs and starts that of the caller; false if ctx ends first.
func (n *Node) takeTask(ctx context.Context) bool {
	for {
		n.mu.Lock()
		if !n.busy {
			n.busy = true
			n.mu.Unlock()
			return true
		}
		changed := n.changed
		n.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (n *Node) endTask() {
	n.mu.Lock()
	n.busy = false
	n.notify()
	n.mu.Unlock()
	n.poke()
}

// beginTerm raises the token and, if this node then still leads and can trust it,
// hands the term to the campaign that waits.
func (n *Node) beginTerm(term uint64) {
	if now, _ := n.fsm.state(); now.Lost {
		n.cfg.Log.Error("raft: no term begins: the cluster lost data; raise the epoch", "group", n.cfg.Group)
		n.pause(n.cfg.Heartbeat)
		return
	}
	proposed := n.cfg.Clock.Now()
	a, err := n.propose(n.ctx, term, entry{Kind: begin, Candidate: n.cfg.Candidate, Deployment: rand.Text()})
	n.mu.Lock()
	nth := n.beginning
	if err == nil && n.waiter != nil {
		err = n.installTerm(term, nth, proposed, a.record)
	}
	withdrawn := err == nil && n.held == nil
	n.mu.Unlock()
	if withdrawn {
		_, err = n.propose(n.ctx, term, entry{Kind: end, Token: a.record.Token, Reason: reasonResigned})
	}
	n.mu.Lock()
	n.beginning = 0
	n.mu.Unlock()
	if err != nil && n.ctx.Err() == nil {
		n.cfg.Log.Info("raft: the term could not begin", "raft_term", term, "error", err)
		if errors.Is(err, errStalled) && n.anyOther() != "" {
			// A node that cannot commit its first entry will not commit others.
			n.pact.Abdicate(term)
			return
		}
		n.pause(n.cfg.Commit)
	}
}

// installTerm begins the term that the record grants. The caller holds mu.
func (n *Node) installTerm(term, nth uint64, proposed clock.Instant, granted record) error {
	now, _ := n.fsm.state()
	newest := now.newest()
	if newest.Life != n.fsm.life || newest.Nth != nth || newest.End != 0 {
		return fmt.Errorf("token %d was overtaken by %d", granted.Token, now.Token)
	}
	trust := n.pact.Begin(term, proposed)
	if trust == nil {
		return errors.New("no quorum answered in time to trust it")
	}
	if n.leads() != (leadership{term, true}) {
		n.pact.Stop()
		return errMoved
	}
	h := &held{node: n, token: newest.Token, raft: term, trust: trust, leader: now.leader(n.cfg.Group, true), gone: make(chan struct{})}
	h.term, h.end = elector.NewTerm(elector.TermConfig{
		Group: n.cfg.Group, Token: newest.Token, Deployment: now.Deployment,
		Session:   fence.SessionDigest(fmt.Sprintf("%s/%d", newest.Life, newest.Nth)),
		Candidate: n.cfg.Candidate, Trust: trust, Grant: h,
	})
	n.held = h
	n.waiter.result <- outcome{term: h.term}
	n.waiter = nil
	n.notify()
	n.running.Go(h.beats)
	n.cfg.Log.Info("raft: term begins", "token", h.token, "raft_term", term)
	return nil
}

// beats commits an entry every Beat while the term lasts, to prove that the disk works.
func (h *held) beats() {
	n := h.node
	ctx, cancel := context.WithCancel(h.term.Context())
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	tick := time.NewTicker(n.cfg.Beat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		proposed := n.cfg.Clock.Now()
		if _, err := n.propose(ctx, h.raft, entry{Kind: beat}); err == nil {
			n.pact.Proved(h.raft, proposed)
			n.poke()
		}
	}
}

// stopTerm ends the term. Its work may still run, so the node holds it until Release. The
// caller holds mu.
func (n *Node) stopTerm(h *held, cause error) {
	if n.held != h || h.ending != nil {
		return
	}
	h.ending = cause
	n.pact.Stop()
	h.end(cause)
	n.notify()
}

// dropTerm ends the term and no longer holds it. The caller holds mu.
func (n *Node) dropTerm(h *held, cause error) {
	if n.held != h {
		return
	}
	n.held = nil
	n.pact.Stop()
	if h.end(cause) {
		n.cfg.Log.Warn("raft: term ends", "token", h.token, "raft_term", h.raft, "cause", cause)
	}
	if !h.returned {
		n.lingers = h
	}
	if r := h.release; r != nil {
		r.done <- h.lostBefore(r.to)
	}
	close(h.gone)
	n.notify()
}

// expire drops a term that can no longer be trusted. If the disk hangs, the node also stops
// its heartbeats, so that the others elect a leader. The caller holds mu.
func (n *Node) expire(h *held) {
	stalled := n.pact.Stalled()
	n.dropTerm(h, tenure.ErrExpired)
	if stalled && n.anyOther() != "" {
		n.cfg.Log.Warn("raft: nothing was committed in time, so another is to lead", "within", n.cfg.Stall, "data", n.cfg.DataDir)
		n.pact.Abdicate(h.raft)
	}
}

// Ended implements elector.Grant.
func (h *held) Ended(cause error) {
	n := h.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if errors.Is(cause, tenure.ErrExpired) {
		if n.held == h {
			n.expire(h)
		}
	} else {
		n.stopTerm(h, cause)
	}
	n.poke()
}

// Successor implements elector.Grant.
func (h *held) Successor(ctx context.Context, candidate string) error {
	n := h.node
	address := n.addressOf(candidate)
	if address == "" {
		return fmt.Errorf("raft: %q is no voter of group %q: %w", candidate, n.cfg.Group, tenure.ErrSuccessor)
	}
	a, err := n.attempt(ctx, candidate, address, request{Op: opStanding})
	switch {
	case err != nil:
		return fmt.Errorf("raft: candidate %q of group %q does not answer (%w): %w", candidate, n.cfg.Group, err, tenure.ErrSuccessor)
	case !a.Campaigning:
		return fmt.Errorf("raft: %q does not campaign for group %q: %w", candidate, n.cfg.Group, tenure.ErrSuccessor)
	}
	return nil
}

// Suspect implements elector.Grant.
func (h *held) Suspect(ctx context.Context, seen fence.Token) error {
	n := h.node
	l, err := n.Leader(ctx)
	switch {
	case err != nil:
		return err
	case l.State != tenure.Led || l.Token != h.token || l.Candidate.ID != n.cfg.Candidate.ID:
		return nil
	}
	if _, err := n.propose(ctx, h.raft, entry{Kind: suspect, Token: seen}); err != nil {
		return err // not the Raft leader, or not committed: the caller retries, or the term ends
	}
	n.cfg.Log.Error("raft: the cluster lost data", "token", h.token, "seen", seen)
	return fmt.Errorf("raft: group %q was granted with token %d, but a sink has seen token %d (epoch %d): %w", n.cfg.Group, h.token, seen, seen.Epoch(), tenure.ErrDataLost)
}

// Release implements elector.Grant.
func (h *held) Release(ctx context.Context, to string) error {
	n := h.node
	n.mu.Lock()
	h.returned = true
	if n.lingers == h {
		n.lingers = nil
		n.notify()
	}
	if n.held != h {
		n.mu.Unlock()
		return h.lostBefore(to)
	}
	var first chan error // not nil: this call is the first to release
	if h.release == nil {
		first = make(chan error, 1)
		h.release = &release{to: to, done: first}
	}
	n.mu.Unlock()
	n.poke()
	gone := h.gone
	if first != nil {
		gone = nil
	}
	select {
	case err := <-first:
		return err
	case <-gone:
		return nil
	case <-ctx.Done():
		return h.unconfirmed(context.Cause(ctx))
	}
}

func (h *held) unconfirmed(cause error) error {
	return fmt.Errorf("raft: the release of group %q (token %d) is not confirmed: %w", h.node.cfg.Group, h.token, cause)
}

// lostBefore is the answer to a release or, with a successor, a transfer of a lost term.
func (h *held) lostBefore(to string) error {
	if to == "" {
		return nil
	}
	return fmt.Errorf("raft: group %q was lost before %q could take over: %w", h.node.cfg.Group, to, tenure.ErrSuccessor)
}

// giveUp commits the end of the term and hands over Raft's leadership.
func (n *Node) giveUp(h *held) {
	n.mu.Lock()
	cause := cmp.Or(h.ending, tenure.ErrResigned)
	n.mu.Unlock()
	_, err := n.propose(n.ctx, h.raft, entry{Kind: end, Token: h.token, Reason: reason(cause)})
	n.mu.Lock()
	if n.held != h {
		n.mu.Unlock()
		return // lost meanwhile: dropTerm has answered
	}
	r := h.release
	h.release = nil // it is answered here
	n.dropTerm(h, cause)
	heir := cmp.Or(r.to, n.inLine())
	n.mu.Unlock()
	switch {
	case err != nil:
		if n.anyOther() != "" {
			n.pact.Abdicate(h.raft)
		}
		err = h.unconfirmed(err)
	case r.to != "":
		if err = n.handOver(n.ctx, h.raft, heir); err != nil {
			err = fmt.Errorf("raft: group %q is left vacant: %w: %w", n.cfg.Group, err, tenure.ErrSuccessor)
		}
	case heir != "":
		// The group is released even if the handover fails.
		r.done <- nil
		n.passOn(h.raft, heir)
		return
	}
	r.done <- err
}

// passOn hands Raft's leadership from this node, which does not campaign, to one that does.
func (n *Node) passOn(term uint64, heir string) {
	err := n.handOver(n.ctx, term, heir)
	if err == nil || n.ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handPause = min(max(2*n.handPause, n.cfg.Heartbeat), 30*n.cfg.Heartbeat)
	n.handAt = n.cfg.Clock.Now().Add(n.handPause)
	delete(n.line, heir) // if it still campaigns, it tells us again
	n.cfg.Log.Info("raft: hand-over failed", "to", heir, "raft_term", term, "again_in", n.handPause, "error", err)
}

// handOver gives the Raft term up for good and tells heir, a voter, to take over. It returns
// when another node leads the Raft cluster, with an error if that is not heir.
func (n *Node) handOver(ctx context.Context, term uint64, heir string) error {
	address := n.addressOf(heir)
	if address == "" {
		return fmt.Errorf("%q is no voter", heir)
	}
	n.pact.HandOver(term)
	// Time for Raft to bring heir up to date, and for the election.
	ctx, cancel := context.WithTimeout(ctx, 2*n.cfg.Election)
	defer cancel()
	// We do not wait for its future: see machine.
	n.raft.LeadershipTransferToServer(hraft.ServerID(heir), hraft.ServerAddress(address))
	for {
		changed := n.nextChange()
		if n.leads() != (leadership{term, true}) {
			if _, id := n.raft.LeaderWithID(); string(id) == heir {
				return nil
			} else if id != "" {
				return fmt.Errorf("%q leads the Raft cluster instead of %q", id, heir)
			}
		}
		select {
		case <-changed:
		case <-time.After(n.cfg.Commit): // changed does not report a new Raft leader
		case <-ctx.Done():
			return fmt.Errorf("%q did not take over: %w", heir, context.Cause(ctx))
		}
	}
}

// pause waits for d, or until the node stops.
func (n *Node) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-n.ctx.Done():
	}
}

// addressOf returns the address of another voter, or "".
func (n *Node) addressOf(id string) string {
	for _, s := range n.servers() {
		if string(s.ID) == id && s.Suffrage == hraft.Voter && id != n.cfg.Candidate.ID {
			return string(s.Address)
		}
	}
	return ""
}

// anyOther returns the other voter that answered the newest message, or "".
func (n *Node) anyOther() string {
	others := slices.DeleteFunc(n.voters(), func(id string) bool { return id == n.cfg.Candidate.ID })
	if len(others) == 0 {
		return ""
	}
	return n.pact.Newest(others)
}
