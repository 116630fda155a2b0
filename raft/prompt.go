package raft

import (
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure/clock"
)

// hint is by how much the timeouts that Raft is given are longer than ours, so
// that they can be shortened for a moment.
const hint = time.Nanosecond

// prompt makes Raft look at the clock when patience ends. By itself it looks
// after one to two Heartbeats, at random, so that a crash would cost up to three;
// here the followers look one after the other. Raft helps nobody while it knows a
// leader, and forgets it when it looks: so the one whose look makes a quorum of
// those without a leader is elected.
func (n *Node) prompt() {
	timer := n.cfg.Clock.NewTimer()
	defer timer.Stop()
	step := n.cfg.Heartbeat / 5 // an election takes less
	done := clock.Instant(0)
	for {
		until, leader := n.pact.Patience()
		now := n.cfg.Clock.Now()
		due := until.Add(step * time.Duration(n.rank(leader)))
		if now >= due {
			if until != done && n.raft.State() == hraft.Follower {
				n.lookNow()
			}
			done = until
			due = now.Add(step)
		}
		timer.Set(due)
		select {
		case <-timer.C():
		case <-n.ctx.Done():
			return
		}
	}
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
