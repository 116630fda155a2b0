package experiment

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
)

const sec = time.Second

// The knee is the smallest TTL from which on nothing was false: one that was lucky below
// a longer one that was not is none.
func TestKnee(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		counts map[time.Duration]int
		want   time.Duration
	}{
		{map[time.Duration]int{2 * sec: 9, 3 * sec: 1, 10 * sec: 0, 30 * sec: 0}, 10 * sec},
		{map[time.Duration]int{2 * sec: 0, 3 * sec: 1, 10 * sec: 0}, 10 * sec},
		{map[time.Duration]int{2 * sec: 0, 3 * sec: 0}, 2 * sec},
		{map[time.Duration]int{2 * sec: 0, 3 * sec: 1}, 0},
		{nil, 0},
	} {
		if got, found := kneeOf(tt.counts); got != tt.want || found != (tt.want > 0) {
			t.Errorf("%v: %v, %v; want %v", tt.counts, got, found, tt.want)
		}
	}
}

// 99.995 % of thirty days are 129.6 s without a leader, 32.4 s for each of four crashes;
// twice the knee is recommended where its failovers fit, else the knee, else nothing.
func TestObjective(t *testing.T) {
	t.Parallel()
	month, crash := ours().budget()
	if month != 129600*time.Millisecond || crash != 32400*time.Millisecond {
		t.Errorf("a month may cost %v, a crash %v", month, crash)
	}
	a, enough := ours().serves(8600 * time.Millisecond)
	if want := 1 - 34.4/2592000; a < want-1e-12 || a > want+1e-12 || !enough {
		t.Errorf("four failovers of 8.6 s: %v, %v", a, enough)
	}
	if _, enough := ours().serves(crash + 1); enough {
		t.Error("more than a crash may cost serves")
	}
	ttls := []time.Duration{30 * sec, 2 * sec, 3 * sec, 8 * sec, 10 * sec}
	c := cost{times: 1, more: 700 * time.Millisecond}
	for knee, want := range map[time.Duration]time.Duration{2 * sec: 8 * sec, 3 * sec: 8 * sec, 8 * sec: 30 * sec, 10 * sec: 30 * sec, 30 * sec: 30 * sec} {
		if got, ok := recommend(ours(), ttls, knee, c.failover); got != want || !ok {
			t.Errorf("knee %v: %v, %v; want %v", knee, got, ok, want)
		}
	}
	c.more = 3 * sec // 30 s do not serve any more, and twice the knee of 10 s is more than there is
	if got, ok := recommend(ours(), ttls, 10*sec, c.failover); got != 10*sec || !ok {
		t.Errorf("the knee has to do: %v, %v", got, ok)
	}
	if got, ok := recommend(ours(), ttls, 30*sec, c.failover); ok {
		t.Errorf("nothing serves, and %v was recommended", got)
	}
}

// busied is a trial that was disturbed from 10 s to 20 s.
func busied(ttl time.Duration, began ...time.Duration) Outcome {
	o := Outcome{Trial: Trial{Name: "CPU", Engine: etcdEngine, TTL: ttl, Disturbed: busyCPU, For: 10 * time.Minute}}
	o.Report.Faults = []check.Fault{{Name: "busy-" + busyCPU, Begun: at(10 * sec), Healed: at(20 * sec), Evidence: "x"}}
	for i, b := range began {
		o.Report.Terms = append(o.Report.Terms, check.Term{Token: token(i + 1), Began: at(b), Ended: at(30 * sec), Cause: "expired"})
		if i > 0 {
			o.Report.Terms[i-1].Ended = at(b)
		}
	}
	return o
}

// A failover is false from when the disturbance began until it can no longer show; the
// first term is none.
func TestFalseFailovers(t *testing.T) {
	t.Parallel()
	n, causes := falseFailovers(busied(2*sec, sec, 11*sec, 15*sec, 22*sec, 24*sec))
	if n != 3 || causes["expired"] != 3 {
		t.Errorf("%d false failovers, %v; want 3 that had expired", n, causes)
	}
	if n, _ := falseFailovers(busied(2*sec, sec)); n != 0 {
		t.Errorf("%d false failovers of a leader that stayed", n)
	}
	// A leader that is lost is one, though nobody follows it, or so late that nothing shows.
	for name, o := range map[string]Outcome{"nobody": busied(2*sec, sec), "late": busied(2*sec, sec, 25*sec), "undisturbed": busied(2*sec, sec)} {
		o.Report.Terms[0].Ended = at(15 * sec)
		if name == "undisturbed" {
			o.Report.Terms[0].Ended, o.Report.Faults = at(30*sec), nil
		}
		if n, causes := falseFailovers(o); n != 1 || len(causes) != 1 {
			t.Errorf("%s: %d false failovers, %v; want 1", name, n, causes)
		}
	}
}

// The sweep is judged as it was measured: the knee and the recommendation follow the
// false failovers, and without a TTL that keeps its leader both fall short.
func TestJudgeSweep(t *testing.T) {
	t.Parallel()
	killedAt := func(ttl, took time.Duration) Outcome {
		o := Outcome{Trial: Trial{Name: "kill", Engine: etcdEngine, TTL: ttl, Rounds: 1}, Rounds: []Round{{Token: 1}}}
		// The successor's first attempt fails, which ends nothing.
		o.Report.Terms = []check.Term{{Token: 1, Attempts: 1, LastAttempt: at(sec)}, {Token: 2, Attempts: 2, FirstAttempt: at(sec + took/2)}}
		o.Effects = []effect{{Token: 3, First: at(20 * sec)}, {Token: 2, First: at(sec + took), Last: at(9 * sec)}, {Token: 1, Last: at(sec)}}
		return o
	}
	value := func(name string, all ...Outcome) (string, bool) {
		bars, _ := judgeSweep(all)
		for _, b := range bars {
			if strings.Contains(b.Name, name) {
				return b.Value, b.OK
			}
		}
		return "", false
	}
	all := []Outcome{killedAt(2*sec, 2500*time.Millisecond), busied(2*sec, sec, 12*sec), busied(3*sec, sec), busied(8*sec, sec)}
	if v, ok := value("etcd: the knee", all...); v != "3s" || !ok {
		t.Errorf("the knee: %s, %v", v, ok)
	}
	if v, ok := value("that serves", all...); !strings.HasPrefix(v, "8s: 99.9987 %") || !ok {
		t.Errorf("recommended: %s, %v", v, ok)
	}
	all[3] = busied(8*sec, sec, 13*sec)
	if v, ok := value("etcd: the knee", all...); v != "none" || ok {
		t.Errorf("no TTL kept its leader, and the knee is %s, %v", v, ok)
	}
	if v, ok := value("write to write", killedAt(2*sec, 5*sec)); ok {
		t.Errorf("a failover of 5 s at 2 s passes: %s", v)
	}
	silent := killedAt(2*sec, sec)
	if silent.Effects = silent.Effects[2:]; len(silent.Effects) != 1 {
		t.Fatal("who else wrote?")
	}
	if v, ok := value("write to write", silent); ok {
		t.Errorf("nobody wrote after the kill, and it passes: %s", v)
	}
}

// Every timing of the sweep is one that nodes accept, so that an hour's run does not end
// at its last trial.
func TestSweepTimings(t *testing.T) {
	t.Parallel()
	for _, size := range []Size{Quick, Full} {
		for _, trial := range sweepTrials(size) {
			err := lease.Timing{TTL: trial.TTL, Beat: trial.Beat, Misses: trial.Misses}.Resolve().Validate()
			if trial.Engine == raftEngine {
				err = raft.Timing{Heartbeat: trial.TTL, LeaderLease: 3 * trial.TTL / 4}.Resolve().Validate()
			}
			if err != nil {
				t.Errorf("%s: %v", trial.Name, err)
			}
			if trial.Disturbed != "" && (trial.with == nil || trial.with.disturbance == nil || trial.with.disturbance.kind != trial.Disturbed) {
				t.Errorf("%s: is disturbed by nothing", trial.Name)
			}
		}
	}
	args := Trial{Engine: etcdEngine, TTL: 30 * sec, Beat: 5 * sec, Misses: 5}.args()
	if want := []string{"--renew-interval", "5s", "--misses", "5", "--rto", "1m41s"}; !slices.Equal(args, want) {
		t.Errorf("%v, want %v", args, want)
	}
}

// Trials that are together run at the same time, meet, and the last to come acts once
// for all; when one fails the others end, and its error is the one that is told.
func TestTogether(t *testing.T) {
	t.Parallel()
	trials := append([]Trial{{Name: "alone"}}, share(nil, Trial{Name: "a"}, Trial{Name: "b"}, Trial{Name: "c"})...)
	trials = append(trials, share(nil, Trial{Name: "d"})...)
	var sizes []int
	for _, b := range batches(trials) {
		sizes = append(sizes, len(b))
	}
	if !slices.Equal(sizes, []int{1, 3, 1}) {
		t.Fatalf("batches of %v", sizes)
	}
	var acted atomic.Int32
	batch := batches(trials)[1]
	outcomes, err := runBatch(t.Context(), batch, func(ctx context.Context, trial Trial) (Outcome, error) {
		return Outcome{Trial: trial, Seconds: 3}, trial.with.begin.wait(ctx, trial.with.all, func() error { acted.Add(1); return nil })
	})
	if err != nil || acted.Load() != 1 || outcomes[2].Name != "c" || outcomes[2].Seconds != 1 {
		t.Errorf("%v, acted %d times, %+v", err, acted.Load(), outcomes)
	}
	broken := errors.New("broken")
	_, err = runBatch(t.Context(), share(nil, Trial{Name: "a"}, Trial{Name: "b"}), func(ctx context.Context, trial Trial) (Outcome, error) {
		if trial.Name == "b" {
			return Outcome{}, broken
		}
		return Outcome{}, trial.with.begin.wait(ctx, 2, func() error { return nil })
	})
	if !errors.Is(err, broken) {
		t.Errorf("%v, want that of the one that failed", err)
	}
	kept := map[string]Outcome{"a": {}, "b": {}}
	if _, ok := keptBatch(kept, batch); ok {
		t.Error("a batch of which one is missing was kept")
	}
	kept["c"] = Outcome{}
	if all, ok := keptBatch(maps.Clone(kept), batch); !ok || len(all) != 3 {
		t.Error("a batch that was run was not kept")
	}
}

// Neighbours take CPU and sync the disk until they are stopped, say how much, and leave
// nothing behind; so they do when nobody asks them to stop but their time is over.
func TestDisturbance(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := &disturbance{kind: busyDisk}
	if err := d.start(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := await(t.Context(), "a synced write", func(context.Context) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.syncs > 0
	}); err != nil {
		t.Fatal(err)
	}
	d.stop()
	d.stop()
	if !strings.Contains(d.evidence, "s of CPU") || !strings.Contains(d.evidence, "synced writes") || d.wrong != nil {
		t.Errorf("it says %q, %v", d.evidence, d.wrong)
	}
	for _, p := range d.burning {
		select {
		case <-p.Exited:
		default:
			t.Errorf("pid %d runs on", p.Cmd.Process.Pid)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// Neighbours that took nothing have disturbed nobody.
	idle, err := child.Start(exec.CommandContext(t.Context(), "true"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, none := range []*disturbance{{kind: busyCPU, burning: []*child.Process{idle}}, {kind: busyDisk}} {
		none.begun, none.cancel = now().Add(-time.Minute), func() {}
		if none.stop(); !errors.Is(none.wrong, ErrNotSeen) {
			t.Errorf("%s by nobody: %v, said %q", none.kind, none.wrong, none.evidence)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	other := &disturbance{kind: busyCPU}
	if err := other.start(ctx, dir); err != nil {
		t.Fatal(err)
	}
	cancel()
	for _, p := range other.burning {
		<-p.Exited
	}
	other.stop()
}
