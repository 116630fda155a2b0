package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure/clock"
)

// place is a candidate's place in the line, as the Raft leader knows it.
type place struct {
	priority int
	since    clock.Instant
	seen     clock.Instant
}

// standing is what this node has told the Raft leader about its own campaign.
type standing struct {
	to      hraft.ServerID     // the leader that it told last
	told    bool               // it told that leader that it campaigns
	at      clock.Instant      // when the last call began
	telling bool               // a call is under way
	asked   hraft.ServerID     // to this leader
	hangUp  context.CancelFunc // cancels the call
}

// tellEvery is how often a candidate tells the Raft leader that it still campaigns. One that
// is silent for three times as long is removed from the line.
func (t Timing) tellEvery() time.Duration { return max(t.Heartbeat/2, 50*time.Millisecond) }

// stood records that a candidate campaigns, or no longer does.
func (n *Node) stood(req request) error {
	if !n.leads().leading {
		return errMoved
	}
	if n.addressOf(req.ID) == "" {
		return fmt.Errorf("%q is no voter of group %q", req.ID, n.cfg.Group)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !req.Campaigning {
		delete(n.line, req.ID)
		return nil
	}
	now := n.cfg.Clock.Now()
	p, ok := n.line[req.ID]
	if !ok {
		p.since = now
	}
	p.seen, p.priority = now, req.Priority
	n.line[req.ID] = p
	n.poke()
	return nil
}

// first returns who is first in line, or "".
func (n *Node) first() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.inLine()
}

// inLine is first for a caller that holds mu.
func (n *Node) inLine() string {
	now := n.cfg.Clock.Now()
	var ids []string
	for id, p := range n.line {
		if now.Sub(p.seen) > 3*n.cfg.tellEvery() {
			delete(n.line, id)
			continue
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return ""
	}
	return slices.MinFunc(ids, func(a, b string) int {
		p, q := n.line[a], n.line[b]
		return cmp.Or(cmp.Compare(q.priority, p.priority), cmp.Compare(p.since, q.since), cmp.Compare(a, b))
	})
}

// tell tells the Raft leader whether this node campaigns, after a change and every tellEvery.
// The caller holds mu.
func (n *Node) tell() {
	s := &n.standing
	campaigns := n.waiter != nil
	address, id := n.raft.LeaderWithID()
	now := n.cfg.Clock.Now()
	news := campaigns != (s.told && s.to == id)
	due := campaigns && now.Sub(s.at) >= n.cfg.tellEvery()
	if s.telling && id != "" && id != s.asked {
		s.hangUp() // the old leader may not answer; tell the new one
	}
	if s.telling || id == "" || string(id) == n.cfg.Candidate.ID || !(news || due) {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Call)
	s.telling, s.at, s.asked, s.hangUp = true, now, id, cancel
	n.running.Go(func() {
		_, err := n.call(ctx, string(id), string(address), request{
			Op: opStand, ID: n.cfg.Candidate.ID, Campaigning: campaigns, Priority: n.cfg.Candidate.Priority,
		})
		again := errors.Is(ctx.Err(), context.Canceled)
		cancel()
		n.mu.Lock()
		s.telling, s.to, s.told = false, id, campaigns && err == nil
		again = again || err == nil && campaigns != (n.waiter != nil)
		n.mu.Unlock()
		if again {
			n.poke()
		}
	})
}
