package chaos_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
)

// A Raft leader that is cut off its peers, in either direction, is replaced by one of them. The
// cut is healed.
func TestPeers(t *testing.T) {
	t.Parallel()
	bin, err := lab.FindPrograms(t.Context(), "", func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "fleet.json")
	fleet, err := lab.Start(t.Context(), lab.Config{Bin: bin, File: path, Backend: "raft", Workers: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := fleet.Stop(); err != nil {
			t.Error(err)
		}
	}()
	f, err := chaos.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Event = func(_ clock.Instant, what string) { t.Log(what) }
	for _, way := range []chaos.Way{chaos.Both, chaos.Up, chaos.Down} {
		began := clock.System().Now()
		fault, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.PartitionLeader, From: chaos.Peers, Way: way, For: time.Second, Until: func(ctx context.Context, l inspect.Target) error {
			_, err := f.Leader(ctx, l.Token)
			return err
		}})
		hadEffect(t, "partition-leader", began, fault, err, "terms ended")
		noFaults(t, f)
	}

	// Cut two of three off the leader: it has no quorum.
	l, err := f.Leader(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for _, id := range []string{"node-1", "node-2", "node-3"} {
		if id != l.ID {
			others = append(others, id)
		}
	}
	began := clock.System().Now()
	fault, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.Partition, Targets: others, For: time.Second, Until: func(ctx context.Context, _ inspect.Target) error {
		_, err := f.Leader(ctx, l.Token) // one of the two leads
		return err
	}})
	hadEffect(t, "partition", began, fault, err, "nothing comes through")
	noFaults(t, f)
}
