package raft

import (
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"
)

// hint is by how much the timeouts that Raft is given are longer than ours, so
// that they can be shortened for a moment.
const hint = time.Nanosecond

// prompt makes Raft look at the clock when patience ends. By itself it looks
// after one to two Heartbeats, at random, so that a crash would cost up to three;
// here the followers look one after the other. Raft helps nobody while it knows a
// leader, and forgets it when it looks: so the one whose look makes a quorum of
// those without a leader is elected. A look that comes before Raft's own timeout
// is over changes nothing and puts Raft's next one off: so there is none before,
// and this node goes on looking until it is a candidate or has heard a leader.
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

// soonest is the part of a step that lies between two looks at least: the clocks
// that patience and Raft are measured on differ in rate.
const soonest = 50

// early is for how long Raft would not find its timeout over. It is measured on the
// process's clock, which may be slower than the one of patience, and also from votes.
func (n *Node) early() time.Duration {
	return n.raft.ReloadableConfig().HeartbeatTimeout - time.Since(n.raft.LastContact())
}

// rank is the place of this node among the voters without their leader.
func (n *Node) rank(leader string) int {
	voters := slices.DeleteFunc(n.voters(), func(id string) bool { return id == leader })
	slices.Sort(voters)
	return max(0, slices.Index(voters, n.cfg.Candidate.ID))
}

// lookNow uses that Raft looks at the clock at once when its timeout is made
// shorter.
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
