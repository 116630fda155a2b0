// Package prevote counts what a Raft node that was cut off does to its fleet when it comes back,
// with and without pre-vote. It runs three nodes of hashicorp/raft over TCP, with a proxy for each
// direction between two of them.
//
// # Limitations
//
// The log is kept in memory and is empty but for what Raft itself writes. Tenure's Raft elector
// always uses pre-vote; it is not part of this measurement.
package prevote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
)

// Run is the configuration of a run.
type Run struct {
	PreVote bool
	Rounds  int
	// Heartbeat is the election timeout.
	Heartbeat time.Duration
	Seed      uint64
}

// Result is what a run showed.
type Result struct {
	PreVote bool
	Rounds  int
	// Raised are rounds in which the follower raised its term while it was cut off.
	Raised int
	// Disruptions are rounds in which a follower that came back made the leader lose its term.
	Disruptions int
	// Terms is by how much the Raft term grew.
	Terms uint64
}

const size = 3

// fleet is the nodes and the links between them.
type fleet struct {
	nodes []*raft.Raft
	links [size][size]*enginetest.Proxy // from, to
}

// stateless is a state machine without a state.
type stateless struct{}

func (stateless) Apply(*raft.Log) any                 { return nil }
func (stateless) Snapshot() (raft.FSMSnapshot, error) { return stateless{}, nil }
func (stateless) Restore(r io.ReadCloser) error       { return r.Close() }
func (stateless) Persist(sink raft.SnapshotSink) error {
	return sink.Close()
}
func (stateless) Release() {}

// through says where a node reaches the others: through its own proxies.
type through map[raft.ServerID]raft.ServerAddress

func (t through) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) { return t[id], nil }

func id(i int) raft.ServerID { return raft.ServerID(fmt.Sprintf("node-%d", i+1)) }

func (f *fleet) start(t testing.TB, r Run) {
	ports, err := child.FreePorts(size)
	if err != nil {
		t.Fatal(err)
	}
	var members raft.Configuration
	for i, addr := range ports {
		members.Servers = append(members.Servers, raft.Server{ID: id(i), Address: raft.ServerAddress(addr)})
	}
	for i, addr := range ports {
		reach := through{}
		for k := range ports {
			f.links[i][k] = enginetest.NewProxy(t, ports[k])
			reach[id(k)] = raft.ServerAddress(f.links[i][k].Addr())
		}
		const pool = 2
		transport, err := raft.NewTCPTransportWithConfig(addr, nil, &raft.NetworkTransportConfig{ServerAddressProvider: reach, MaxPool: pool, Timeout: r.Heartbeat, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatalf("listen: %v", err)
		}
		t.Cleanup(func() { _ = transport.Close() })
		c := raft.DefaultConfig()
		c.LocalID, c.LogOutput, c.PreVoteDisabled = id(i), io.Discard, !r.PreVote
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout = r.Heartbeat, r.Heartbeat, r.Heartbeat/2, r.Heartbeat/20
		log := raft.NewInmemStore()
		snapshots := raft.NewInmemSnapshotStore()
		if err := raft.BootstrapCluster(c, log, log, snapshots, transport, members); err != nil {
			t.Fatal(err)
		}
		node, err := raft.NewRaft(c, stateless{}, log, log, snapshots, transport)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Shutdown().Error() })
		f.nodes = append(f.nodes, node)
	}
}

// await waits until a condition holds.
func await(ctx context.Context, what string, holds func() bool) error {
	for !holds() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
	}
	return nil
}

// agreed waits until all nodes follow one leader in one term.
func (f *fleet) agreed(ctx context.Context) (leader int, term uint64, err error) {
	err = await(ctx, "all nodes follow one leader", func() bool {
		leader = -1
		_, first := f.nodes[0].LeaderWithID()
		term = f.nodes[0].CurrentTerm()
		for i, n := range f.nodes {
			if _, who := n.LeaderWithID(); who == "" || who != first || n.CurrentTerm() != term {
				return false
			}
			if id(i) == first && n.State() == raft.Leader {
				leader = i
			}
		}
		return leader >= 0
	})
	return leader, term, err
}

// cut cuts a node off from the others, or heals it.
func (f *fleet) cut(node int, off bool) {
	for i := range size {
		for _, l := range []*enginetest.Proxy{f.links[node][i], f.links[i][node]} {
			if off {
				l.Cut()
			} else {
				l.Heal()
			}
		}
	}
}

// Do runs the rounds: a follower is cut off until it has tried to be elected, and comes back.
func (r Run) Do(ctx context.Context) (result Result, err error) {
	const longest = 10 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, longest, errors.New("not within 10 minutes"))
	defer cancel()
	f := &fleet{}
	stop, err := servertest.Run(func(t testing.TB) { f.start(t, r) })
	if err != nil {
		return result, err
	}
	defer stop()
	rng := rand.New(rand.NewPCG(r.Seed, 0))
	result = Result{PreVote: r.PreVote, Rounds: r.Rounds}
	for range r.Rounds {
		leader, term, err := f.agreed(ctx)
		if err != nil {
			return result, err
		}
		follower := (leader + 1 + rng.IntN(size-1)) % size
		node := f.nodes[follower]
		f.cut(follower, true)
		// With pre-vote its term stays; without, it grows with every attempt.
		err = await(ctx, "the node that is cut off wants to be elected", func() bool {
			return node.State() == raft.Candidate && (r.PreVote || node.CurrentTerm() > term+1)
		})
		if err != nil {
			return result, err
		}
		if node.CurrentTerm() > term {
			result.Raised++
		}
		f.cut(follower, false)
		if err := await(ctx, "the node that was cut off follows a leader", func() bool {
			_, who := node.LeaderWithID()
			return who != "" && node.State() != raft.Candidate
		}); err != nil {
			return result, err
		}
		_, now, err := f.agreed(ctx)
		if err != nil {
			return result, err
		}
		if now != term {
			result.Disruptions++
			result.Terms += now - term
		}
	}
	return result, nil
}

// String says what happened.
func (r Result) String() string {
	how := "off"
	if r.PreVote {
		how = "on"
	}
	return fmt.Sprintf("pre-vote %s: %d of %d rejoining nodes had raised their term, %d disrupted the leader; the Raft term grew by %d\n", how, r.Raised, r.Rounds, r.Disruptions, r.Terms)
}
