package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/check"
)

// tiny is one handover.
func tiny() Experiment {
	e := handover()
	e.Name = "tiny"
	full := e.Trials
	e.Trials = func(size Size) []Trial {
		t := full(size)[0]
		t.Rounds, t.Rate = 2, 200
		return []Trial{t}
	}
	return e
}

func config(t *testing.T, out string) Config {
	t.Helper()
	bin, err := lab.FindPrograms(t.Context(), "", func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	return Config{Bin: bin, Out: out, Size: Quick, Say: func(done float64, what string) { t.Logf("%3.0f %% %s", 100*done, what) }}
}

// An experiment runs a real fleet, its history holds what was expected, the result is
// kept, and it is run again only if something about it has changed. An expectation that
// the same history does not meet is a threshold that fails.
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
	if key, err := keyOf(t.Context(), cfg, other, other.Trials(Quick)); err != nil || key == r.Key {
		t.Errorf("another seed has the same result: %v", err)
	}

	wrong := r
	wrong.Outcomes = slices.Clone(r.Outcomes)
	wrong.Outcomes[0].Broken = []string{"fence"}
	if wrong.judge(); wrong.Passed() {
		t.Error("a fence that held was expected to fail, and that passed")
	}
	wrong.Outcomes[0].Broken = nil
	wrong.Outcomes[0].Pass = append(slices.Clone(o.Pass), "refusal")
	if wrong.judge(); wrong.Passed() {
		t.Error("a check that was not made passed")
	}
}

// A script that waits for something in vain ends with an error that says so, and the
// fleet is gone.
func TestNotSeen(t *testing.T) {
	t.Parallel()
	cfg := config(t, t.TempDir())
	e := tiny()
	few := e.Trials
	var pid int
	e.Trials = func(size Size) []Trial {
		trials := few(size)
		trials[0].play = func(ctx context.Context, s *trialRun) error {
			pid = s.file.Nodes[0].PID
			ctx, cancel := context.WithTimeoutCause(ctx, 200*time.Millisecond, ErrNotSeen)
			defer cancel()
			_, err := s.leader(ctx, 1<<40)
			return err
		}
		return trials
	}
	r, err := Run(t.Context(), cfg, e)
	if !errors.Is(err, ErrNotSeen) || r.Passed() {
		t.Errorf("%v, passed: %v", err, r.Passed())
	}
	if p, err := os.FindProcess(pid); err == nil && p.Signal(syscall.Signal(0)) == nil {
		t.Errorf("node-1 (pid %d) still runs", pid)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Every experiment says what it asks and expects, has trials of both sizes whose checks
// exist, and can be found by its name.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	for _, e := range All() {
		if e.Question == "" || e.Expectation == "" || e.Seed == 0 {
			t.Errorf("experiment %s says too little", e.Name)
		}
		for _, size := range []Size{Quick, Full} {
			seen := map[string]bool{}
			for _, trial := range e.Trials(size) {
				if seen[trial.Name] || trial.Rounds == 0 || trial.Rate == 0 || trial.play == nil || len(trial.Pass) == 0 {
					t.Errorf("experiment %s, %s: trial %+v", e.Name, size, trial)
				}
				seen[trial.Name] = true
				for _, name := range append(append(slices.Clone(trial.Pass), trial.Broken...), trial.Told...) {
					if !slices.Contains(check.Names(), name) {
						t.Errorf("experiment %s: there is no check %q", e.Name, name)
					}
				}
			}
		}
		if found, err := Find(strings.ToUpper(e.Name)); err != nil || len(found) != 1 {
			t.Errorf("experiment %s: %v", e.Name, err)
		}
	}
	if _, err := Find("1", "none"); err == nil || !strings.Contains(err.Error(), "3b") {
		t.Errorf("an unknown name: %v", err)
	}
}
