package raft

import (
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure/clock"
)

// Followers whose clocks are fast within the bound lose their patience before
// Raft's own timeout is over. They still ask for votes little more than one
// Heartbeat after they last heard their leader, one after the other: with one look
// alone Raft would take another one to two Heartbeats, at random.
func TestPromptFastClocks(t *testing.T) {
	t.Parallel()
	// One and a half Heartbeats, for a busy machine; Raft alone takes 1.99 at least.
	const heartbeat, most, rounds = 2 * time.Second, 3 * time.Second, 2
	ids := []string{"a", "b", "c"}
	f := newFleet(t, func(c *Config) {
		c.Heartbeat, c.Election, c.LeaderLease = heartbeat, heartbeat, heartbeat
		c.Clock = &rated{clock.System(), 1.01, clock.System().Now()}
	}, ids...)
	f.start(ids...)
	for range rounds {
		leader := ""
		eventually(t, "all follow one", func() bool {
			leader = ""
			for _, id := range ids {
				_, of := f.nodes[id].raft.LeaderWithID()
				if of == "" || leader != "" && string(of) != leader {
					return false
				}
				leader = string(of)
			}
			return true
		})
		for _, id := range ids {
			f.net.isolate(id) // so that nobody is elected and the others' looks do not matter
		}
		took := map[string]time.Duration{}
		eventually(t, "both followers ask for votes", func() bool {
			for _, id := range ids {
				raft := f.nodes[id].raft
				if id != leader && took[id] == 0 && raft.State() == hraft.Candidate {
					took[id] = time.Since(raft.LastContact())
				}
			}
			return len(took) == len(ids)-1
		})
		t.Logf("after they last heard %s they ask for votes: %v", leader, took)
		for id, d := range took {
			if d > most {
				t.Errorf("%s takes %v, more than %v: it waited for Raft's own timeout", id, d, most)
			}
		}
		f.net.heal("")
	}
}
