package experiment

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
)

// The key of a result depends on lab itself and on the fleet's programs, and on those with
// planted bugs if a trial has one. The result names the revision of its checkout.
func TestKey(t *testing.T) {
	t.Parallel()
	bin, planted := t.TempDir(), t.TempDir()
	program := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"engine", "labfleet"} {
		program(bin, name, name)
		program(planted, name, name)
	}
	cfg := Config{Bin: bin, Planted: func(context.Context) (string, error) { return planted, nil }}
	key := func(plant ...string) string {
		e := tiny()
		trials := e.Trials(Quick)
		trials[0].Plant = plant
		k, err := cfg.key(t.Context(), e, trials)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	plain, bugs := key(), key("herd")
	program(planted, "labfleet", "another")
	if key() != plain || key("herd") == bugs {
		t.Error("another planted node changes a trial without bugs, or does not change one with a bug")
	}
	bugs = key("herd")
	program(bin, "labfleet", "another")
	if key() == plain || key("herd") == bugs {
		t.Error("another program keeps the key")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if paths, err := cfg.programs(t.Context(), nil); err != nil || !slices.Contains(paths, self) {
		t.Errorf("%v, %v; want lab itself among them", paths, err)
	}
	if r := revision(t.Context(), bin); r != "" {
		t.Errorf("a folder of no checkout has the revision %q", r)
	}
	head, err := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return // not from git
	}
	if r := strings.TrimSuffix(revision(t.Context(), "."), " (modified)"); r == "" || !strings.HasPrefix(string(head), r) {
		t.Errorf("revision %q of %s", r, head)
	}
}

// A run that was stopped continues with the trial that was under way. Trials that were finished
// are kept and count in the result. With another seed nothing is kept.
func TestResume(t *testing.T) {
	t.Parallel()
	cfg := config(t, t.TempDir())
	played := map[string]int{}
	stopped := errors.New("stopped")
	e := tiny()
	one := e.Trials
	e.Judge, e.Compare = nil, func(j measure.Judge, all []trial.Outcome) { j.Count("trials", len(all), 2) }
	broken := true
	e.Trials = func(size Size) []trial.Trial {
		var all []trial.Trial
		for _, name := range []string{"first", "second"} {
			tr := one(size)[0]
			// No faults, and no checks that a busy machine could fail.
			tr.Name, tr.Rounds, tr.TTL, tr.Pass = name, 1, 20*time.Second, []string{"sequence", "history"}
			tr.Play = func(_ context.Context, s *trial.Run) error {
				played[name]++
				if name == "second" && broken {
					return stopped
				}
				s.Rounds = append(s.Rounds, trial.Round{Kind: name})
				return nil
			}
			all = append(all, tr)
		}
		return all
	}
	if _, err := Run(t.Context(), cfg, e); !errors.Is(err, stopped) {
		t.Fatal(err)
	}
	broken = false
	r, err := Run(t.Context(), cfg, e)
	if err != nil || len(r.Outcomes) != 2 || r.Seconds < r.Outcomes[0].Seconds+r.Outcomes[1].Seconds {
		t.Fatalf("%v, %d trials", err, len(r.Outcomes))
	}
	if !r.Passed() || r.Kept || played["first"] != 1 || played["second"] != 2 {
		t.Errorf("passed: %v, kept: %v, %v", r.Passed(), r.Kept, played)
	}
	if rounds := r.Outcomes[0].Rounds; len(rounds) != 1 || rounds[0].Kind != "first" || len(r.Outcomes[0].Report.Terms) == 0 {
		t.Errorf("what was kept has lost something: %+v", rounds)
	}
	if !Finished(t.Context(), cfg, e) || Estimate(cfg, e) != time.Duration(r.Seconds*float64(time.Second)) {
		t.Error("the result is not known to be there, or how long it took")
	}
	release, err := lockFolder(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Again = true
	if _, err := Run(t.Context(), cfg, e); err == nil || !strings.Contains(err.Error(), "another lab runs this experiment") {
		t.Errorf("while another runs it: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.Dir, resultFile)); err != nil {
		t.Errorf("what another has was removed: %v", err)
	}
	release()
	e.Seed++
	key, err := cfg.key(t.Context(), e, e.Trials(cfg.Size))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(r.Dir, resultFile)); err != nil {
		t.Fatal(err)
	}
	if kept, err := keptTrials(r.Dir, key, e.Trials(cfg.Size), false); err != nil || len(kept) != 0 {
		t.Errorf("another seed keeps %v, %v", kept, err)
	}
}
