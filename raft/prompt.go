package raft

import (
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"
)

// hint is added to the timeouts that we configure Raft with, so that lookNow can shorten
// them for a moment.
const hint = time.Nanosecond

// prompt makes Raft check its heartbeat timeout when patience ends. Raft by itself checks it
// after one to two Heartbeats, at random, so that a crash would cost up to three. Here the
// followers check one after the other. A follower votes for nobody while it knows a leader,
// and a check that finds the timeout over forgets the leader: so the follower whose check
// completes a quorum of nodes without a leader is elected. A check before the timeout is over
// has no effect and delays Raft's next one, so prompt waits for it. It then repeats the check
// until this node is a candidate or has heard from a leader.
func (n *Node) prompt() {
	timer := n.cfg.Clock.NewTimer()
	defer timer.Stop()
	step := n.cfg.Heartbeat / 5 // an election takes less
	for {
		until, leader := n.pact.Patience()
		now := n.cfg.Clock.Now()
		due := until.Add(step * time.Duration(n.rank(leader)))
		if now >= due {
			due = now.Add(step)
			if n.raft.State() == hraft.Follower {
				if early := n.early(); early > 0 {
					due = now.Add(min(max(early, step/soonest), step))
				} else {
					n.lookNow()
				}
			}
		}
		timer.Set(due)
		select {
		case <-timer.C():
		case <-n.ctx.Done():
			return
		}
	}
}

// soonest: between two checks lies at least step/soonest, because the clocks that patience
// and Raft are measured on differ in rate.
const soonest = 50

// early returns how long Raft's timeout still lasts. Raft measures it on the process's clock,
// which may be slower than that of patience, and restarts it after votes, too.
func (n *Node) early() time.Duration {
	return n.raft.ReloadableConfig().HeartbeatTimeout - time.Since(n.raft.LastContact())
}

// rank returns the position of this node among the voters except the leader.
func (n *Node) rank(leader string) int {
	voters := slices.DeleteFunc(n.voters(), func(id string) bool { return id == leader })
	slices.Sort(voters)
	return max(0, slices.Index(voters, n.cfg.Candidate.ID))
}

// lookNow shortens Raft's timeout for a moment: Raft then checks it at once.
func (n *Node) lookNow() {
	usual := n.raft.ReloadableConfig()
	short := usual
	short.HeartbeatTimeout -= hint
	if err := n.raft.ReloadConfig(short); err != nil {
		n.cfg.Log.Warn("raft: the heartbeat timeout cannot be changed", "error", err)
		return
	}
	_ = n.raft.ReloadConfig(usual) // it was valid before
}
