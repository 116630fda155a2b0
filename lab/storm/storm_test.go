package storm

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/reference/api"
)

func config(t *testing.T) experiment.Config {
	t.Helper()
	bin, err := lab.FindPrograms(t.Context(), "", func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	return experiment.Config{Bin: bin, Out: t.TempDir(), Size: experiment.Quick, Say: func(done float64, what string) { t.Logf("%3.0f %% %s", 100*done, what) }}
}

// planOf returns a plan.
func planOf(engine string, seed uint64, steps int) []step {
	t := newTrial(context.Background(), engine, FullLength)
	return newPlanner(t, rand.New(rand.NewPCG(seed, 1))).plan(steps)
}

// The same seed gives the same plan, another seed another plan, and a longer plan begins with
// the shorter one.
func TestStormSeed(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{trial.Etcd, trial.Raft} {
		a, b, other := planOf(engine, 7, 300), planOf(engine, 7, 400), planOf(engine, 8, 300)
		if !reflect.DeepEqual(a, b[:len(a)]) {
			t.Errorf("%s: the same seed gives another plan", engine)
		}
		if reflect.DeepEqual(a, other) {
			t.Errorf("%s: another seed gives the same plan", engine)
		}
		shown, err := Storm{Engine: engine, For: 10 * time.Minute, Seed: 7}.Plan()
		if err != nil || len(shown) < 50 || !strings.Contains(shown[0], "pause-between") {
			t.Errorf("%s: the plan that is shown: %v, %q", engine, err, shown)
		}
	}
	e, err := Storm{Engine: trial.Etcd, For: time.Minute, Seed: 7}.Experiment()
	if takes := experiment.Estimate(experiment.Config{Out: t.TempDir(), Size: experiment.Full}, e); err != nil || takes != 2*time.Minute {
		t.Errorf("a storm of a minute takes %v, %v", takes, err)
	}
	for _, s := range []Storm{{Engine: "mysql", For: time.Minute}, {Engine: trial.Etcd, For: time.Second}, {Engine: trial.Raft, For: 1000 * time.Hour}} {
		if _, err := s.Experiment(); err == nil {
			t.Errorf("%+v is taken for a storm", s)
		}
	}
}

// Of ten faults about six are aimed at the leader, two anywhere, two at a change. Every
// kind occurs within half an hour. Two faults that stop nodes are never injected at once: they
// could stop the same node, and the end of one would end the other.
func TestStormPlan(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{trial.Etcd, trial.Raft} {
		tr := newTrial(context.Background(), engine, FullLength)
		cards := map[string]kind{}
		for _, deck := range newPlanner(tr, rand.New(rand.NewPCG(1, 1))).decks {
			for _, c := range deck {
				cards[c.name] = c
			}
		}
		for seed := range uint64(20) {
			aims, kinds := map[string]int{}, map[string]int{}
			blows, together, after := 0, 0, 0
			for i, st := range planOf(engine, seed, tr.Rounds) {
				for _, b := range st.Faults {
					blows++
					aims[b.Aim]++
					kinds[b.Kind]++
					if cards[b.Kind].name == "" || b.Kind == "pause-member" && b.For > tr.TTL/2 || b.Kind == "quorum-lost" && b.For <= tr.TTL {
						t.Fatalf("%s, seed %d, step %d: %+v", engine, seed, i+1, b)
					}
				}
				if len(st.Faults) == 1 {
					continue
				}
				one, two := cards[st.Faults[0].Kind], cards[st.Faults[1].Kind]
				if one.alone || two.alone || !st.After && (one.pauses && two.pauses || one.name == two.name) {
					t.Errorf("%s, seed %d, step %d: %s", engine, seed, i+1, st)
				}
				if st.After {
					after++
				} else {
					together++
				}
			}
			for aim, want := range map[string]float64{aimLeader: 0.6, aimAnywhere: 0.2, aimChange: 0.2} {
				if got := float64(aims[aim]) / float64(blows); got < want-0.05 || got > want+0.05 {
					t.Errorf("%s, seed %d: %.2f are aimed at %s", engine, seed, got, aim)
				}
			}
			if len(kinds) != len(cards) || together == 0 || after == 0 {
				t.Errorf("%s, seed %d: %d of %d kinds, %d pairs at once, %d one after the other", engine, seed, len(kinds), len(cards), together, after)
			}
			if (kinds["kill-member"] > 0) != (engine == trial.Etcd) || (kinds["cut-peers"] > 0) != (engine == trial.Raft) {
				t.Errorf("%s: kinds of the other engine: %v", engine, kinds)
			}
		}
	}
}

// A fault without an effect does not count, but it is in the history if it was set, because it
// can excuse something. A fault with several lines in the history counts once.
func TestStormHistory(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in     injectedFault
		class  string
		lines  int
		name   string
		healed bool
	}{
		{injectedFault{Kind: "pause-between", HadEffect: true, Fault: chaos.Fault{Target: "node-1", Begun: 10, Healed: 20, Evidence: "x"}}, history.ClassPause, 1, "pause-between", true},
		{injectedFault{Kind: "pause-leader-long", Problem: "changed", Fault: chaos.Fault{Target: "node-1", Begun: 10, Healed: 20}}, history.ClassPause, 1, "pause-leader-long", true},
		{injectedFault{Kind: "kill-granted", HadEffect: true, Fault: chaos.Fault{Target: "node-1", Begun: 10, Healed: 20, Evidence: "x"}}, history.ClassKill, 1, "kill-granted", false},
		{injectedFault{Kind: "kill-leader", Problem: "changed", Fault: chaos.Fault{Target: "node-1", Begun: 10, Healed: 20}}, "", 0, "", false},
		{injectedFault{Kind: "stop-leader", HadEffect: true, Fault: chaos.Fault{Target: "node-1", Begun: 10, Healed: 20, Evidence: "x"}}, "", 2, "stop-leader", true},
		{injectedFault{Kind: "kill-ledger", HadEffect: true, Fault: chaos.Fault{Target: "ledger", Begun: 10, Healed: 20, Evidence: "x"}}, "", 1, "kill-ledger", true},
		{injectedFault{Kind: "quorum-lost", HadEffect: true, Fault: chaos.Fault{Target: "engine-1,engine-2", Begun: 10, Healed: 20, Evidence: "x"}}, history.ClassQuorum, 3, "quorum-lost", true},
		{injectedFault{Kind: "quorum-lost", HadEffect: true, Fault: chaos.Fault{Name: chaos.Partition, Target: "engine", Begun: 10, Healed: 20, Evidence: "x"}}, history.ClassQuorum, 1, "quorum-lost", true},
		{injectedFault{Kind: "cut-engine", Problem: "nobody leads"}, "", 0, "", false},
	} {
		got := tt.in.inHistory()
		if len(got) != tt.lines {
			t.Fatalf("%+v: %+v", tt.in, got)
		}
		for i, f := range got {
			if (f.Evidence == "") == tt.in.HadEffect || (f.Missed == "") != tt.in.HadEffect || (f.PartOf == "") != (i == 0) || f.Counts() != (tt.in.HadEffect && i == 0) || f.Healed < f.Begun || i == 0 && (f.Class != tt.class || f.Name != tt.name || (f.Healed > f.Begun) != tt.healed) {
				t.Errorf("%+v: %+v", tt.in, f)
			}
		}
	}
}

// Too few faults with an effect, too few kinds, a fault that was not healed, and no refused
// stale write each miss a bar.
func TestStormJudged(t *testing.T) {
	t.Parallel()
	tr := newTrial(context.Background(), trial.Raft, FullLength)
	record := func(n int, change func(i int, s *injectedFault)) trial.Outcome {
		o := trial.Outcome{Trial: tr, Dir: t.TempDir(), Damage: trial.Damage{Refused: 1}}
		var b strings.Builder
		out := json.NewEncoder(&b)
		for i := range n {
			s := injectedFault{Step: i, Kind: fmt.Sprint("kind-", i%10), Aim: aimLeader, HadEffect: true, Fault: chaos.Fault{Begun: 1, Healed: 2, Evidence: "x"}}
			if change != nil {
				change(i, &s)
			}
			if err := out.Encode(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(o.Dir, injectedFile), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return o
	}
	failed := func(o trial.Outcome) string {
		var s measure.Summary
		judge(measure.Judge{Summary: &s, Trial: o.Name}, o)
		var all []string
		for _, b := range s.Thresholds {
			if !b.OK {
				all = append(all, b.Name)
			}
		}
		return strings.Join(all, "; ")
	}
	unrefused := record(200, nil)
	unrefused.Damage = trial.Damage{}
	for _, tt := range []struct {
		o    trial.Outcome
		want string
	}{
		{record(200, nil), ""},
		{record(199, nil), "faults that bit"},
		{record(300, func(i int, s *injectedFault) { s.HadEffect = i%2 == 0 }), "faults that bit; raft-1s: kinds of them"},
		{record(200, func(_ int, s *injectedFault) { s.Kind = "kill-leader" }), "kinds of them"},
		{record(201, func(i int, s *injectedFault) { s.Unhealed = i == 200 }), "not healed"},
		{unrefused, "stale writes refused"},
		{trial.Outcome{Trial: tr, Dir: t.TempDir()}, "faults"},
	} {
		if got := failed(tt.o); (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("not met: %q, want %q", got, tt.want)
		}
	}
}

// A leader that is stopped after it resigned and before it released the group is replaced, and
// its last write is refused. A node that is killed after the grant and before its seal is
// replaced. Nothing is left armed or stopped.
func TestStormMoments(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	e := Experiment()
	e.Name = "moments"
	var seen []injectedFault
	e.Trials = func(experiment.Size) []trial.Trial {
		tr := newTrial(context.Background(), trial.Raft, time.Minute)
		tr.Rounds, tr.Rate, tr.Pass = 2, 200, trial.Safe("evidence", "baton")
		tr.Play = func(ctx context.Context, s *trial.Run) error {
			w, done, err := newRun(s, nil)
			if err != nil {
				return err
			}
			w.step(ctx, 1, step{Faults: []plannedFault{{Kind: "pause-" + api.MomentResigning, Aim: aimChange, Sealed: true, Spec: chaos.Spec{Kind: chaos.PauseAtMoment, At: api.MomentResigning, For: time.Second}}}})
			w.step(ctx, 2, step{Faults: []plannedFault{{Kind: "kill-" + api.MomentGranted, Aim: aimChange, Spec: chaos.Spec{Kind: chaos.KillAtMoment, At: api.MomentGranted}}}})
			if err := done(); err != nil {
				return err
			}
			seen, err = readInjected(filepath.Dir(s.File.Dir))
			return err
		}
		return []trial.Trial{tr}
	}
	e.Judge = func(j measure.Judge, o trial.Outcome) { j.Some("stale writes refused", o.Damage.Refused) }
	r, err := experiment.Run(t.Context(), cfg, e)
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	if err := r.Print(&shown); err != nil {
		t.Fatal(err)
	}
	if !r.Passed() {
		t.Errorf("%s", &shown)
	}
	for _, s := range seen {
		if !s.HadEffect || s.Unhealed {
			t.Errorf("%+v", s)
		}
	}
	if len(seen) != 2 {
		t.Errorf("%d faults, want 2", len(seen))
	}
	// A node that is killed at a moment was stopped before, which excuses it until then.
	if !slices.ContainsFunc(r.Outcomes[0].Report.Faults, func(f history.Fault) bool {
		return f.PartOf == "kill-"+api.MomentGranted && f.Class == history.ClassPause && f.Begun < f.Healed
	}) {
		t.Errorf("that it stood still is not in the history: %+v", r.Outcomes[0].Report.Faults)
	}
}

// A storm on each engine, for the duration in TENURE_STORM.
func TestStorm(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv("TENURE_STORM"))
	if err != nil {
		t.Skip("TENURE_STORM is no duration: no storm")
	}
	for _, engine := range []string{trial.Etcd, trial.Raft} {
		e, err := Storm{Engine: engine, For: lasts, Seed: 14}.Experiment()
		if err != nil {
			t.Fatal(err)
		}
		r, err := experiment.Run(t.Context(), config(t), e)
		if err != nil {
			t.Fatal(err)
		}
		var shown strings.Builder
		if err := r.Print(&shown); err != nil || !r.Passed() {
			t.Errorf("%v\n%s", err, &shown)
		}
		t.Log(shown.String())
	}
}

// Faults that do not count are grouped by cause, whatever else their errors say.
func TestAimTable(t *testing.T) {
	t.Parallel()
	var s measure.Summary
	aimTable(measure.Judge{Summary: &s}, []injectedFault{
		{Aim: aimLeader, HadEffect: true},
		{Problem: inspect.ErrChanged.Error() + ": node-1 no longer leads"},
		{Problem: inspect.ErrChanged.Error() + ": node-2 no longer leads"},
		{Problem: chaos.ErrNoEffect.Error() + ": it left no trace"},
		{Problem: "Get http://127.0.0.1:1/metrics: EOF"},
	})
	want := [][]string{
		{"bit, aimed: " + aimLeader, "1"},
		{"does not count: a program did not answer while it was being set", "1"},
		{"does not count: the fault had no effect", "1"},
		{"does not count: the leader changed while the fault was being set", "2"},
	}
	if !slices.EqualFunc(s.Tables[0].Rows, want, slices.Equal[[]string]) {
		t.Errorf("%q, want %q", s.Tables[0].Rows, want)
	}
}
