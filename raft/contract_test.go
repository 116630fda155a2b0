//go:build linux

package raft

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/electortest"
)

// Three nodes, each a process of its own, keep the contract of electors. Where a
// case ends two of them, two more vote, so that a quorum is left; with TENURE_LONG
// there are five in every case.
func TestContract(t *testing.T) {
	var mu sync.Mutex
	fleets := map[string]*children{}
	timing := Timing{Heartbeat: 500 * time.Millisecond, LeaderLease: 400 * time.Millisecond, Commit: 20 * time.Millisecond}
	electortest.Run(t, electortest.Engine{
		Start: func(t *testing.T, group, id string) electortest.Process {
			ids := []string{"a", "b", "c"}
			if strings.HasPrefix(group, "closed-") || os.Getenv("TENURE_LONG") != "" {
				ids = append(ids, "v", "w")
			}
			mu.Lock()
			f := fleets[group]
			if f == nil {
				f = newChildren(t, group, timing, ids...)
				fleets[group] = f
				f.startAll()
			}
			mu.Unlock()
			f.mu.Lock()
			c := f.running[id]
			f.mu.Unlock()
			select {
			case <-c.done:
				return f.start(id)
			default:
				return c
			}
		},
		Lease:    timing.Heartbeat,
		Failover: 6 * timing.Heartbeat,
		Transfer: true,
		Parallel: true,
	})
}
