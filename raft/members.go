package raft

import (
	"context"
	"fmt"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure"
)

// Members returns the voters and their addresses, as of the newest configuration
// that this node knows.
func (n *Node) Members() map[string]string {
	members := map[string]string{}
	for _, s := range n.servers() {
		members[string(s.ID)] = string(s.Address)
	}
	return members
}

// join asks for admission until it is granted. A member with a new address does so, too.
func (n *Node) join() {
	wait := n.cfg.Heartbeat
	for {
		_, err := n.ask(n.ctx, request{Op: opJoin, ID: n.cfg.Candidate.ID, Address: n.cfg.Advertise})
		if err == nil || n.ctx.Err() != nil {
			return
		}
		n.cfg.Log.Warn("raft: not admitted yet", "error", err, "again_in", wait)
		n.pause(wait)
		wait = min(2*wait, 10*n.cfg.Heartbeat)
	}
}

// Leave removes this node from the cluster for good: its id must not be used again. It is
// refused while the node holds a term. The node runs until it is closed, without peers.
func (n *Node) Leave(ctx context.Context) error {
	n.mu.Lock()
	h := n.held
	n.mu.Unlock()
	if h != nil {
		return fmt.Errorf("raft: %q leads group %q (token %d): resign before leaving", n.cfg.Candidate.ID, n.cfg.Group, h.token)
	}
	return n.Remove(ctx, n.cfg.Candidate.ID)
}

// Remove removes a member from the cluster for good: its id must not be used again. If it
// leads, its term ends. If id is not a member, Remove returns nil.
func (n *Node) Remove(ctx context.Context, id string) error {
	_, err := n.ask(ctx, request{Op: opRemove, ID: id})
	return err
}

// RaiseEpoch raises the epoch of the group's tokens. It is for operators who have
// restored data directories from a backup: the tokens of later terms are above
// all that were granted before.
func (n *Node) RaiseEpoch(ctx context.Context, epoch uint64) error {
	_, err := n.ask(ctx, request{Op: opRaise, Epoch: epoch})
	return err
}

func (n *Node) raise(ctx context.Context, epoch uint64) error {
	now := n.leads()
	if !now.leading {
		return errMoved
	}
	_, err := n.propose(ctx, now.term, entry{Kind: raise, Epoch: epoch})
	return err
}

// changeMembers answers opJoin and opRemove on the Raft leader.
func (n *Node) changeMembers(ctx context.Context, req request) error {
	now := n.leads()
	if !now.leading {
		return errMoved
	}
	if !validName(req.ID) {
		return &ConfigError{Field: "member id", Value: req.ID, Rule: nameRule}
	}
	members := n.Members()
	address, member := members[req.ID]
	id := hraft.ServerID(req.ID)
	switch {
	case req.Op == opJoin:
		if !validAddress(req.Address) {
			return &ConfigError{Field: "address of " + req.ID, Value: req.Address, Rule: "must be host:port"}
		}
		if address == req.Address {
			return n.settled(ctx, now, req.ID, req.Address)
		}
		for other, at := range members {
			if at == req.Address && other != req.ID {
				return fmt.Errorf("%s is the address of %q", at, other)
			}
		}
		if !member && len(members) == maxPeers {
			return fmt.Errorf("the cluster has %d members already, which is the most", maxPeers)
		}
		// An unreachable voter would make the quorum larger without helping to reach it.
		if _, err := n.attempt(ctx, req.ID, req.Address, request{Op: opStanding}); err != nil {
			return fmt.Errorf("%q cannot be reached at %s, where it says that it is: %w", req.ID, req.Address, err)
		}
		n.cfg.Log.Info("raft: member joins", "id", req.ID, "address", req.Address)
		n.raft.AddVoter(id, hraft.ServerAddress(req.Address), 0, left(ctx))
		return n.settled(ctx, now, req.ID, req.Address)
	case !member:
		return n.settled(ctx, now, req.ID, "")
	case len(members) == 1:
		return fmt.Errorf("%q is the only member", req.ID)
	case req.ID == n.cfg.Candidate.ID:
		return n.stepAside(ctx, now.term)
	default:
		n.cfg.Log.Info("raft: member is removed", "id", req.ID)
		n.raft.RemoveServer(id, 0, left(ctx))
		return n.settled(ctx, now, req.ID, "")
	}
}

// settled waits until a committed configuration has the member at the address, or does not
// have it if address is "".
func (n *Node) settled(ctx context.Context, now leadership, id, address string) error {
	for n.Members()[id] != address {
		if n.leads() != now {
			return errMoved
		}
		select {
		case <-time.After(n.cfg.Commit):
		case <-ctx.Done():
			return fmt.Errorf("the change of member %q is not under way: %w", id, context.Cause(ctx))
		}
	}
	// This entry is committed after the configuration, which precedes it in the log.
	_, err := n.propose(ctx, now.term, entry{Kind: beat})
	return err
}

// stepAside makes another node the Raft leader, which can then remove this one.
func (n *Node) stepAside(ctx context.Context, term uint64) error {
	if !n.takeTask(ctx) {
		return fmt.Errorf("%s is busy: %w", n.cfg.Candidate.ID, context.Cause(ctx))
	}
	defer n.endTask()
	n.mu.Lock()
	if h := n.held; h != nil {
		n.dropTerm(h, tenure.ErrLost)
	}
	n.mu.Unlock()
	if err := n.handOver(ctx, term, n.anyOther()); err != nil && n.leads().leading {
		return err
	}
	return errMoved
}
