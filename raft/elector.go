package raft

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

var errNoContext = errors.New("raft: the context is nil")

// Campaign implements tenure.Elector. One campaign can wait at a time:
// ErrCampaigning. If ctx ends at the moment of the win, Campaign returns the term, and the
// caller must resign it if it does not want it. A node that was removed from the cluster
// waits until ctx ends.
func (n *Node) Campaign(ctx context.Context) (*tenure.Term, error) {
	switch {
	case n == nil:
		return nil, errors.New("raft: the node is nil")
	case ctx == nil:
		return nil, errNoContext
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	w := &waiter{result: make(chan outcome, 1)}
	n.mu.Lock()
	switch {
	case n.closing:
		n.mu.Unlock()
		return nil, ErrClosed
	case n.waiter != nil:
		n.mu.Unlock()
		return nil, fmt.Errorf("group %q: %w", n.cfg.Group, ErrCampaigning)
	}
	if h := n.unreturned(); h != nil {
		n.mu.Unlock()
		return nil, fmt.Errorf("raft: work of this node for group %q with token %d has not returned: resign that term first", n.cfg.Group, h.token)
	}
	n.waiter = w
	n.mu.Unlock()
	n.poke()
	select {
	case o := <-w.result:
		return o.term, o.err
	case <-ctx.Done():
	}
	n.mu.Lock()
	waiting := n.waiter == w
	if waiting {
		n.waiter = nil
	}
	n.mu.Unlock()
	n.poke()
	if waiting {
		return nil, context.Cause(ctx)
	}
	o := <-w.result
	return o.term, o.err
}

// Leader implements tenure.Elector: the Raft leader is asked, and answers after a
// quorum has confirmed that it is one. Without a quorum the state is Unknown and
// the error wraps ErrUnavailable.
func (n *Node) Leader(ctx context.Context) (tenure.Leader, error) {
	if ctx == nil {
		return tenure.Leader{Group: n.cfg.Group}, errNoContext
	}
	a, err := n.ask(ctx, request{Op: opLeader})
	if err != nil {
		return tenure.Leader{Group: n.cfg.Group}, err
	}
	return a.Record.leader(n.cfg.Group, a.Led), nil
}

// LeaderRead returns the candidate and token of this node from memory, without a message, if
// this node leads. Otherwise, or if no quorum answered in time, it returns ErrNotLeading.
//
// The answer is as good as Leader's as long as the clock of no other node runs
// faster than this one's by more than a factor of 1/(1 − Drift − Margin/Heartbeat),
// which is 1.075 by default: until trust ends here, a quorum is patient there, and
// nobody else can begin a term. Beyond that bound it may still name this node for
// up to Heartbeat·(factor − 1) after another has begun.
func (n *Node) LeaderRead() (tenure.Leader, error) {
	n.mu.Lock()
	h := n.held
	if h != nil && h.ending != nil {
		h = nil
	}
	n.mu.Unlock()
	// Read the clock last: the answer was true at that moment.
	if h == nil || h.trust.Remaining() <= 0 {
		return tenure.Leader{Group: n.cfg.Group}, ErrNotLeading
	}
	return h.leader, nil
}

// Leaders implements tenure.Elector.
func (n *Node) Leaders(ctx context.Context) iter.Seq2[tenure.Leader, error] {
	return func(yield func(tenure.Leader, error) bool) {
		if ctx == nil {
			yield(tenure.Leader{Group: n.cfg.Group}, errNoContext)
			return
		}
		var state tenure.State
		var token fence.Token
		told := false // the caller has got the error
		for ctx.Err() == nil {
			req := request{Op: opLeader}
			if state != tenure.Unknown && !told {
				req.State, req.Token, req.Wait = state, token, n.cfg.Heartbeat
			}
			a, err := n.ask(ctx, req)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, ErrClosed):
				_ = yield(tenure.Leader{Group: n.cfg.Group}, err)
				return
			case err != nil:
				if !told && !yield(tenure.Leader{Group: n.cfg.Group}, err) {
					return
				}
				told = true
				continue
			}
			now := a.Record.leader(n.cfg.Group, a.Led)
			changes := []tenure.Leader{now}
			if state != tenure.Unknown && now.Token >= token {
				changes = a.Record.since(n.cfg.Group, a.Led, token, state)
				if told && len(changes) == 0 {
					changes = []tenure.Leader{now}
				}
			}
			state, token, told = now.State, now.Token, false
			for _, l := range changes {
				if !yield(l, nil) {
					return
				}
			}
		}
	}
}

// Deployment is the name that the stamps of this group carry; empty until this node knows
// of a first term.
func (n *Node) Deployment() string {
	r, _, _, _ := n.current()
	return r.Deployment
}

// current returns what an observer gets, if this node is the Raft leader.
func (n *Node) current() (r record, led bool, changed, applied <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, applied = n.fsm.state()
	t := r.newest()
	// Between the commit of a term and its beginning the group counts as led.
	led = n.held != nil && n.held.token == r.Token || n.beginning != 0 && t.Life == n.fsm.life && t.Nth == n.beginning && t.End == 0
	return r, led, n.changed, applied
}

// view answers opLeader on the Raft leader, errMoved elsewhere.
func (n *Node) view(ctx context.Context, req request) (record, bool, error) {
	if req.Wait > 0 {
		n.await(ctx, req)
	}
	since := n.cfg.Clock.Now()
	now := n.leads()
	if !now.leading {
		return record{}, false, errMoved
	}
	n.mu.Lock()
	ready := n.ready == now.term
	n.mu.Unlock()
	if !ready {
		// A new Raft leader knows what is committed only after it committed an entry.
		if _, err := n.propose(ctx, now.term, entry{Kind: beat}); err != nil {
			return record{}, false, err
		}
	}
	if err := n.confirm(ctx, now.term, since); err != nil {
		return record{}, false, err
	}
	r, led, _, _ := n.current()
	if n.leads() != now {
		return record{}, false, errMoved
	}
	return r, led, nil
}

// await returns when the group differs from what the observer saw, or after the wait that
// the request asks for.
func (n *Node) await(ctx context.Context, req request) {
	wait := time.NewTimer(min(req.Wait, callMost))
	defer wait.Stop()
	for {
		r, led, changed, applied := n.current()
		if led != (req.State == tenure.Led) || r.Token != req.Token || !n.leads().leading {
			return
		}
		select {
		case <-changed:
		case <-applied:
		case <-wait.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// confirm waits until a quorum has accepted messages that were sent after the instant.
// Raft's own VerifyLeader accepts answers to older messages; it is called only because it
// sends the next heartbeat at once.
func (n *Node) confirm(ctx context.Context, term uint64, since clock.Instant) error {
	n.mu.Lock()
	if !n.pokes && n.ctx.Err() == nil {
		n.pokes = true
		n.running.Go(func() {
			n.raft.VerifyLeader()
			n.mu.Lock()
			n.pokes = false
			n.mu.Unlock()
		})
	}
	n.mu.Unlock()
	for {
		ok, answered := n.pact.Confirmed(term, since)
		if ok {
			return nil
		}
		changed := n.nextChange()
		if n.leads() != (leadership{term, true}) {
			return errMoved
		}
		select {
		case <-answered:
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("no quorum confirmed that %s leads the Raft cluster: %w", n.cfg.Candidate.ID, context.Cause(ctx))
		}
	}
}

// askBound is the timeout of ask, long enough for an ordinary election.
func (t Timing) askBound() time.Duration { return t.Heartbeat + t.Election + t.Call }

// ask sends the request to the Raft leader and retries until the timeout.
func (n *Node) ask(ctx context.Context, req request) (answer, error) {
	bound := n.cfg.askBound() + req.Wait
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	start := time.Now()
	last := errors.New("no leader is known")
	for turn := 0; ; turn++ {
		id, address := n.whom(turn)
		var a answer
		var err error
		if id == n.cfg.Candidate.ID {
			if a = n.answer(ctx, req); a.Error != "" {
				err = callError(a.Error)
			}
		} else {
			a, err = n.attempt(ctx, id, address, req)
		}
		var said callError
		switch {
		case n.ctx.Err() != nil:
			return answer{}, ErrClosed
		case err == nil && !a.Moved:
			return a, nil
		case err == nil && a.ID != "" && a.ID != id && a.ID != n.cfg.Candidate.ID:
			// A node that joins learns from others who leads.
			if a, err = n.attempt(ctx, a.ID, a.Address, req); err == nil && !a.Moved {
				return a, nil
			}
		}
		if errors.As(err, &said) && req.Op != opLeader {
			return answer{}, fmt.Errorf("raft: group %q: %w", n.cfg.Group, err)
		}
		if err != nil && (turn == 0 || !timedOut(err)) {
			last = err
		}
		select {
		case <-time.After(n.cfg.Commit):
		case <-ctx.Done():
			return answer{}, fmt.Errorf("raft: group %q: %w in %v: %w", n.cfg.Group, ErrUnavailable, time.Since(start).Round(time.Millisecond), last)
		}
	}
}

// attempt makes one call, with the timeout Call.
func (n *Node) attempt(ctx context.Context, id, address string, req request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Call+req.Wait)
	defer cancel()
	return n.call(ctx, id, address, req)
}

// timedOut reports whether err is a timeout.
func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// whom returns whom to ask: the Raft leader if it is known, or else the members in turn.
func (n *Node) whom(turn int) (id, address string) {
	if address, id := n.raft.LeaderWithID(); id != "" {
		return string(id), string(address)
	}
	members := n.Members()
	if len(members) == 0 {
		members = n.cfg.Peers
	}
	ids := Config{Peers: members}.peerIDs()
	id = ids[turn%len(ids)]
	return id, members[id]
}
