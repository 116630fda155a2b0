package chaos_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
)

// Every process of a fleet can be killed, stopped and cut off by its name, several at once. Each
// fault shows its effect, and none is in effect afterwards.
func TestNamed(t *testing.T) {
	t.Parallel()
	f := startWith(t, lab.Config{Engines: 3})
	now := clock.System().Now
	leads := func() inspect.Target {
		t.Helper()
		l, err := f.Leader(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	follower := func() string {
		if leads().ID == "node-1" {
			return "node-2"
		}
		return "node-1"
	}
	const short = 500 * time.Millisecond
	for _, c := range []struct {
		name, evidence string
		set            func(context.Context) (chaos.Fault, error)
	}{
		{"kill", "back", func(ctx context.Context) (chaos.Fault, error) {
			return f.Inject(ctx, chaos.Spec{Kind: chaos.Kill, Targets: []string{"engine-2"}})
		}},
		{"kill", "back", func(ctx context.Context) (chaos.Fault, error) {
			return f.Inject(ctx, chaos.Spec{Kind: chaos.Kill, Targets: []string{"ledger"}})
		}},
		{"kill", "back", func(ctx context.Context) (chaos.Fault, error) {
			return f.Inject(ctx, chaos.Spec{Kind: chaos.Kill, Targets: []string{follower()}})
		}},
		{"pause", "state T", func(ctx context.Context) (chaos.Fault, error) {
			return f.Inject(ctx, chaos.Spec{Kind: chaos.Pause, Targets: []string{"engine-1", "engine-3"}, For: short})
		}},
		{"pause", "state T", func(ctx context.Context) (chaos.Fault, error) {
			return f.Inject(ctx, chaos.Spec{Kind: chaos.Pause, Targets: []string{"ledger"}, For: short})
		}},
		{"partition", "nothing comes through node-1-engine-1", func(ctx context.Context) (chaos.Fault, error) {
			return f.Inject(ctx, chaos.Spec{Kind: chaos.Partition, Targets: []string{"engine-1"}, For: ttl})
		}},
		{"partition", "nothing comes through node-1-ledger", func(ctx context.Context) (chaos.Fault, error) {
			return f.Inject(ctx, chaos.Spec{Kind: chaos.Partition, Targets: []string{"ledger"}, For: ttl})
		}},
		{"partition", "keep-alives failed", func(ctx context.Context) (chaos.Fault, error) {
			return f.Inject(ctx, chaos.Spec{Kind: chaos.Partition, Targets: []string{follower()}, For: ttl})
		}},
		{"stop-leader", "is gone", func(ctx context.Context) (chaos.Fault, error) {
			return f.Inject(ctx, chaos.Spec{Kind: chaos.StopLeader})
		}},
	} {
		leads()
		began := now()
		fault, err := c.set(t.Context())
		hadEffect(t, c.name, began, fault, err, c.evidence)
		if c.name == "stop-leader" {
			after(t, f, fault.Token)
			continue // the fleet restarts it later
		}
		noFaults(t, f)
	}

	// Only the ledger's disk fails, if strace is there.
	began := now()
	fault, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.DiskSync, For: ttl})
	if _, missing := exec.LookPath("strace"); missing != nil {
		if !errors.Is(err, inspect.ErrCannot) || !strings.Contains(err.Error(), "strace") {
			t.Errorf("without strace: %v", err)
		}
	} else {
		hadEffect(t, "disk-sync", began, fault, err, "syncs that failed (EIO)")
	}
	leads()

	// A wrong target is an error, and nothing is set.
	for want, what := range map[string][]string{
		"no target":           nil,
		`no "engine-9"`:       {"engine-9"},
		"has several members": {"engine"},
		"named twice":         {"ledger", "ledger"},
	} {
		if _, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.Kill, Targets: what}); !errors.Is(err, inspect.ErrCannot) || !strings.Contains(err.Error(), want) {
			t.Errorf("kill %v: %v, want %q", what, err, want)
		}
	}

	// A kill that is cancelled is reported, and healed when it is said to be.
	ctx, stop := context.WithCancel(t.Context())
	say := f.Event
	f.Event = func(at clock.Instant, what string) {
		if say(at, what); strings.Contains(what, "killed") {
			stop()
		}
	}
	fault, err = f.Inject(ctx, chaos.Spec{Kind: chaos.Kill, Targets: []string{"ledger"}})
	f.Event = say
	if !errors.Is(err, context.Canceled) || errors.Is(err, chaos.ErrNotHealed) || !strings.Contains(fault.Evidence, "gone") || !strings.Contains(fault.Evidence, "back") {
		t.Errorf("a kill that is stopped: %v, %+v", err, fault)
	}
	leads()

	// A pause that is cancelled is healed.
	ctx, stop = context.WithCancel(t.Context())
	_, err = f.Inject(ctx, chaos.Spec{Kind: chaos.Pause, Targets: []string{"engine-1"}, For: time.Minute, Until: func(context.Context, inspect.Target) error { stop(); return nil }})
	if !errors.Is(err, context.Canceled) || errors.Is(err, chaos.ErrNotHealed) {
		t.Errorf("stopped: %v", err)
	}
	leads()
	await := time.Now().Add(90 * time.Second) // the machine may be busy
	for s, err := f.Survey(t.Context()); ; s, err = f.Survey(t.Context()) {
		if err != nil || time.Now().After(await) {
			t.Fatalf("not whole: %+v, %v", s, err)
		}
		standing := 0
		for _, n := range append(s.Nodes, s.Others...) {
			standing += len(n.Standing)
		}
		if standing == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
}
