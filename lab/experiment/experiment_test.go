package experiment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/plot"
	"github.com/tenurehq/tenure/lab/trial"
)

// tiny is two handovers on etcd.
func tiny() Experiment {
	return Experiment{
		Name: "tiny", Title: "handovers", Question: "?", Expectation: "!", Seed: 7,
		Trials: func(Size) []trial.Trial {
			t := trial.New(trial.Etcd, 2*time.Second, 200, 2, trial.Loop{What: "resigning", Busy: true, Round: func(ctx context.Context, s *trial.Run, _ int, r *trial.Round) error {
				r.Kind = "resign"
				if _, err := s.Nodes.Leader(ctx); err != nil {
					return err
				}
				if _, err := s.Nodes.Resign(ctx, r.Token); err != nil {
					return err
				}
				return s.Succeeded(ctx, r, r.Token)
			}})
			t.Pass = trial.Safe("baton")
			return []trial.Trial{t}
		},
		Judge: func(j measure.Judge, o trial.Outcome) { j.Count("rounds", len(o.Rounds), 2) },
		Figures: func([]trial.Outcome, string) []Figure {
			return []Figure{{"figure", plot.Gaps{Series: []plot.Series{{Name: "x", Samples: []time.Duration{1}}}}}}
		},
	}
}

func config(t *testing.T, out string) Config {
	t.Helper()
	bin, err := lab.FindPrograms(t.Context(), "", func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	return Config{Bin: bin, Out: out, Size: Quick, Say: func(done float64, what string) { t.Logf("%3.0f %% %s", 100*done, what) }}
}

// An experiment with a real fleet passes, its result is kept, and it runs again only after a
// change. An expectation that the history does not meet is a threshold that is missed.
func TestRun(t *testing.T) {
	t.Parallel()
	cfg := config(t, t.TempDir())
	r, err := Run(t.Context(), cfg, tiny())
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	if err := r.Print(&shown); err != nil {
		t.Fatal(err)
	}
	if !r.Passed() || r.Kept {
		t.Fatalf("passed: %v, kept: %v\n%s", r.Passed(), r.Kept, &shown)
	}
	if at := strings.Index(shown.String(), "  ok "); at < 0 || at > strings.Index(shown.String(), "checks\n") {
		t.Errorf("thresholds do not come before tables:\n%s", &shown)
	}
	o := r.Outcomes[0]
	if v, _ := o.Report.Verdict("baton"); v.Count("handovers") != 2 {
		t.Errorf("%d handovers in the history, 2 were made", v.Count("handovers"))
	}
	if v, _ := o.Report.Verdict("sequence"); v.Count("calls answered") < 100 {
		t.Errorf("%d answered calls in the history", v.Count("calls answered"))
	}
	for _, name := range []string{resultFile, "figure.svg", "timeline-etcd-2s.png"} {
		if _, err := os.Stat(filepath.Join(r.Dir, name)); err != nil {
			t.Error(err)
		}
	}

	again, err := Run(t.Context(), cfg, tiny())
	if err != nil || !again.Kept || len(again.Thresholds) != len(r.Thresholds) {
		t.Errorf("it was not kept: %v, %v", again.Kept, err)
	}
	other := tiny()
	other.Seed++
	if key, err := cfg.key(t.Context(), other, other.Trials(Quick)); err != nil || key == r.Key {
		t.Errorf("another seed has the same result: %v", err)
	}

	wrong := r
	wrong.Outcomes = slices.Clone(r.Outcomes)
	wrong.Outcomes[0].Broken = []string{"fence"}
	if wrong.Summarize(wrong.Outcomes).Passed() {
		t.Error("a fence that held was expected to fail, and that passed")
	}
	wrong.Outcomes[0].Broken = nil
	wrong.Outcomes[0].Pass = append(slices.Clone(o.Pass), "refusal")
	if wrong.Summarize(wrong.Outcomes).Passed() {
		t.Error("a check that was not made passed")
	}
}

// A script that waits in vain returns ErrNotSeen, and the fleet is stopped.
func TestNotSeen(t *testing.T) {
	t.Parallel()
	cfg := config(t, t.TempDir())
	e := tiny()
	few := e.Trials
	var pid int
	e.Trials = func(size Size) []trial.Trial {
		trials := few(size)
		trials[0].Play = func(ctx context.Context, s *trial.Run) error {
			pid = s.File.Nodes[0].PID
			ctx, cancel := context.WithTimeoutCause(ctx, 200*time.Millisecond, trial.ErrNotSeen)
			defer cancel()
			_, err := s.Leader(ctx, 1<<40)
			return err
		}
		return trials
	}
	r, err := Run(t.Context(), cfg, e)
	if !errors.Is(err, trial.ErrNotSeen) || r.Passed() {
		t.Errorf("%v, passed: %v", err, r.Passed())
	}
	if p, err := os.FindProcess(pid); err == nil && p.Signal(syscall.Signal(0)) == nil {
		t.Errorf("node-1 (pid %d) still runs", pid)
	}
}
