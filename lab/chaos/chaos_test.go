package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/chaos/process"
)

const ttl = 2 * time.Second

// start runs a fleet until the test ends.
func start(t *testing.T) *chaos.Fleet { return startWith(t, lab.Config{}) }

func startWith(t *testing.T, cfg lab.Config) *chaos.Fleet {
	t.Helper()
	f, fleet := launch(t, cfg)
	t.Cleanup(func() {
		if err := fleet.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// launch starts a fleet. The test must stop it.
func launch(t *testing.T, cfg lab.Config) (*chaos.Fleet, *lab.Fleet) {
	t.Helper()
	bin, err := lab.FindPrograms(t.Context(), "", func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "fleet.json")
	cfg.Bin, cfg.File, cfg.TTL, cfg.Workers, cfg.Restart, cfg.Event = bin, path, ttl, -1, true, func(s string) { t.Log("lab:", s) }
	fleet, err := lab.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	f, err := chaos.Open(path)
	if err == nil {
		f.Event = func(_ clock.Instant, what string) { t.Log(what) }
		_, err = f.Leader(t.Context(), 0)
	}
	if err != nil {
		t.Fatal(errors.Join(err, fleet.Stop()))
	}
	return f, fleet
}

// hadEffect requires that a fault had an effect and is healed.
func hadEffect(t *testing.T, name string, before clock.Instant, fault chaos.Fault, err error, evidence string) {
	t.Helper()
	switch {
	case err != nil:
		t.Fatalf("%s: %v (%+v)", name, err, fault)
	case fault.Name != name || fault.Target == "" || (fault.Token == 0) == strings.HasSuffix(name, "-leader"):
		t.Errorf("not whole: %+v", fault)
	case fault.Begun < before || fault.Healed < fault.Begun || fault.Healed > clock.System().Now():
		t.Errorf("begun %d and healed %d, asked for at %d", fault.Begun, fault.Healed, before)
	case !strings.Contains(fault.Evidence, evidence):
		t.Errorf("evidence %q lacks %q", fault.Evidence, evidence)
	}
}

// noFaults requires that no fault is in effect.
func noFaults(t *testing.T, f *chaos.Fleet) {
	t.Helper()
	s, err := f.Survey(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range append(s.Nodes, s.Others...) {
		if len(n.Standing) > 0 {
			t.Errorf("%s: %v", n.ID, n.Standing)
		}
	}
}

// after requires that another term follows.
func after(t *testing.T, f *chaos.Fleet, token fence.Token) {
	t.Helper()
	if _, err := f.Leader(t.Context(), token); err != nil {
		t.Fatal(err)
	}
}

// Each fault finds the leader, has an effect, says what shows it, and is healed. The fleet has a
// leader again afterwards.
func TestFaults(t *testing.T) {
	t.Parallel()
	f := start(t)
	now := clock.System().Now

	began := now()
	fault, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.ResignLeader})
	hadEffect(t, "resign-leader", began, fault, err, "is over")
	after(t, f, fault.Token)

	began = now()
	fault, err = f.Inject(t.Context(), chaos.Spec{Kind: chaos.PartitionLeader, For: ttl, Until: func(ctx context.Context, l inspect.Target) error {
		_, err := f.Leader(ctx, l.Token) // another leads while it is cut off
		return err
	}})
	hadEffect(t, "partition-leader", began, fault, err, "terms ended")
	if fault.Healed.Sub(fault.Begun) < ttl {
		t.Errorf("cut off for %v", fault.Healed.Sub(fault.Begun))
	}
	noFaults(t, f)

	began = now()
	fault, err = f.Inject(t.Context(), chaos.Spec{Kind: chaos.PauseLeader, For: 200 * time.Millisecond})
	hadEffect(t, "gc-pause-leader", began, fault, err, "state T")
	noFaults(t, f)

	began = now()
	fault, err = f.Inject(t.Context(), chaos.Spec{Kind: chaos.PauseLeader, For: ttl + ttl/4, Between: true, Until: func(ctx context.Context, l inspect.Target) error {
		_, err := f.Leader(ctx, l.Token)
		return err
	}})
	hadEffect(t, "gc-pause-leader", began, fault, err, "writes refused")
	if fault.Set < fault.Begun || fault.Held.Sub(fault.Set) < ttl || fault.Healed < fault.Held {
		t.Errorf("begun %d, set by %d, held until %d, healed %d", fault.Begun, fault.Set, fault.Held, fault.Healed)
	}
	noFaults(t, f)

	began = now()
	fault, err = f.Inject(t.Context(), chaos.Spec{Kind: chaos.SkewLeader, Offset: -700 * time.Millisecond, For: 300 * time.Millisecond, Until: func(ctx context.Context, l inspect.Target) error {
		if s, err := f.Survey(ctx); err != nil || !strings.Contains(fmt.Sprint(s.Nodes), "its clock is off by -") {
			t.Errorf("a wrong clock is not seen: %+v, %v", s.Nodes, err)
		}
		return nil
	}})
	hadEffect(t, "skew-leader", began, fault, err, "its clock is off by -")
	noFaults(t, f)

	began = now()
	fault, err = f.Inject(t.Context(), chaos.Spec{Kind: chaos.FlapLeader, From: chaos.Ledger, Way: chaos.Down, For: 3 * time.Second, Seed: 3})
	hadEffect(t, "flap-leader", began, fault, err, "writes failed")
	noFaults(t, f)

	// The first cut is longer than the TTL, so the second cut hits another leader.
	var cuts []chaos.Fault
	began = now()
	fault, err = f.Inject(t.Context(), chaos.Spec{Kind: chaos.FlapLeader, For: 9 * time.Second, Seed: 223, Follow: true, Each: func(c chaos.Fault, _ error) { cuts = append(cuts, c) }})
	hadEffect(t, "flap-leader", began, fault, err, fmt.Sprintf("cuts: %d; %s: ", len(cuts), fault.Target))
	if len(cuts) < 2 || cuts[1].Token <= cuts[0].Token || cuts[1].Target == cuts[0].Target {
		t.Errorf("cuts do not follow the leader: %+v", cuts)
	}
	for _, c := range cuts {
		hadEffect(t, "flap-leader", fault.Begun, c, nil, "")
	}
	noFaults(t, f)

	var each int
	faults, err := f.Churn(t.Context(), chaos.Spec{Every: 100 * time.Millisecond, For: 200 * time.Millisecond, Each: func(chaos.Fault, error) { each++ }})
	if err != nil || len(faults) == 0 || each != len(faults) {
		t.Fatalf("churn: %d faults, told of %d: %v", len(faults), each, err)
	}
	for _, fault := range faults {
		hadEffect(t, "kill-leader", 0, fault, nil, "is gone")
	}
	after(t, f, faults[len(faults)-1].Token)
}

// Inject distinguishes faults without an effect, with a leader that changed meanwhile, that are
// cancelled, and whose caller panics. All are healed.
func TestFaultsThatFail(t *testing.T) {
	t.Parallel()
	f := start(t)

	_, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.SkewLeader, Offset: time.Millisecond, For: time.Millisecond})
	if !errors.Is(err, chaos.ErrNoEffect) {
		t.Errorf("a clock that is off by less than can be told: %v, want %v", err, chaos.ErrNoEffect)
	}
	noFaults(t, f)

	if _, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.PartitionLeader, From: chaos.Peers}); !errors.Is(err, inspect.ErrCannot) {
		t.Errorf("cut off the peers of a fleet that has none: %v", err)
	}

	post := func(at string) {
		resp, err := (&http.Client{Timeout: 10 * time.Second}).Post(at, "", nil)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	for name, strike := range map[string]func() (chaos.Fault, error){
		"partition": func() (chaos.Fault, error) {
			return f.Inject(t.Context(), chaos.Spec{Kind: chaos.PartitionLeader, For: time.Minute})
		},
		"pause": func() (chaos.Fault, error) {
			return f.Inject(t.Context(), chaos.Spec{Kind: chaos.PauseLeader, For: time.Minute})
		},
		"resign": func() (chaos.Fault, error) { return f.Inject(t.Context(), chaos.Spec{Kind: chaos.ResignLeader}) },
		"kill":   func() (chaos.Fault, error) { return f.Inject(t.Context(), chaos.Spec{Kind: chaos.KillLeader}) },
	} {
		var meant inspect.Target
		f.OnFound(func(l inspect.Target) { meant = l; post(l.URL + "/resign") })
		fault, err := strike()
		f.OnFound(nil)
		if name != "partition" && fault.Begun != 0 {
			t.Errorf("%s: nothing was set, and Begun is set: %+v", name, fault)
		}
		if !errors.Is(err, inspect.ErrChanged) || !process.Alive(meant.PID) {
			t.Errorf("%s: %v, want %v and %s alive", name, err, inspect.ErrChanged, meant.ID)
		}
		noFaults(t, f)
	}

	// A stopped node does not hide that the leader has changed.
	l, err := f.Leader(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	beside := "node-1"
	if l.ID == beside {
		beside = "node-2"
	}
	if _, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.Pause, Targets: []string{beside}, For: time.Millisecond, Until: func(context.Context, inspect.Target) error {
		f.OnFound(func(l inspect.Target) { post(l.URL + "/resign") })
		defer f.OnFound(nil)
		if _, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.PartitionLeader, For: 2 * time.Second}); !errors.Is(err, inspect.ErrChanged) {
			t.Errorf("while %s is stopped: %v, want %v", beside, err, inspect.ErrChanged)
		}
		return nil
	}}); err != nil {
		t.Error(err)
	}
	noFaults(t, f)

	ctx, stop := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	_, err = f.Inject(ctx, chaos.Spec{Kind: chaos.PartitionLeader, For: time.Minute, Until: func(context.Context, inspect.Target) error { stop(enough); return nil }})
	if !errors.Is(err, enough) {
		t.Errorf("stopped: %v", err)
	}
	noFaults(t, f)

	// Cancelled before the node stops itself: it does not stop itself later.
	ctx, cancel := context.WithCancel(t.Context())
	f.OnFound(func(inspect.Target) { time.AfterFunc(20*time.Millisecond, cancel) })
	fault, err := f.Inject(ctx, chaos.Spec{Kind: chaos.PauseLeader, For: time.Minute, Between: true})
	f.OnFound(nil)
	if !errors.Is(err, context.Canceled) || errors.Is(err, chaos.ErrNotHealed) {
		t.Errorf("stopped while it waits for a write: %v", err)
	}
	l, err = f.Leader(t.Context(), 0)
	if err != nil || l.ID != fault.Target {
		t.Fatalf("%s leads, not %s: %v", l.ID, fault.Target, err)
	}
	post(l.URL + "/next")
	noFaults(t, f)

	var pid int
	func() {
		defer func() { _ = recover() }()
		_, _ = f.Inject(t.Context(), chaos.Spec{Kind: chaos.PauseLeader, For: time.Minute, Until: func(_ context.Context, l inspect.Target) error {
			if pid = l.PID; !process.IsStopped(pid) {
				t.Errorf("%d does not stand still", pid)
			}
			panic("the caller's own")
		}})
	}()
	if pid == 0 || process.IsStopped(pid) {
		t.Errorf("process %d is left standing", pid)
	}
	noFaults(t, f)
}

// Several faults may be in effect: each heals only what it has set.
func TestFaultsAtOnce(t *testing.T) {
	t.Parallel()
	f := start(t)
	var wait sync.WaitGroup
	for _, from := range []chaos.From{chaos.Engine, chaos.Ledger, chaos.Ledger} {
		wait.Go(func() {
			if _, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.PartitionLeader, From: from, For: ttl}); err != nil {
				t.Error(fmt.Errorf("%s: %w", from, err))
			}
		})
	}
	wait.Wait()
	noFaults(t, f)
}

// A fault ends with its fleet. The error says that the fleet ended, not that something must be
// healed.
func TestFleetEnds(t *testing.T) {
	t.Parallel()
	f, fleet := launch(t, lab.Config{})
	stopped := make(chan error, 1)
	f.Event = func(_ clock.Instant, what string) {
		t.Log(what)
		if strings.Contains(what, "comes and goes") {
			go func() { stopped <- fleet.Stop() }()
		}
	}
	began := time.Now()
	_, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.FlapLeader, For: 10 * time.Minute, Seed: 3})
	if !errors.Is(err, inspect.ErrFleet) || errors.Is(err, chaos.ErrNotHealed) {
		t.Errorf("%v, want %v", err, inspect.ErrFleet)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it ended after %v", took)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
