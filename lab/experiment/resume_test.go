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
)

// A result belongs to every program that it rests on: lab's own and the fleet's, and
// those with planted bugs where a trial has one. It names the revision of its checkout.
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
	key := func(name string) string {
		found, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		k, err := keyOf(t.Context(), cfg, found[0], found[0].Trials(Quick))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	plain, bugs := key("1"), key("3b")
	program(planted, "labfleet", "another")
	if key("1") != plain || key("3b") == bugs {
		t.Error("another planted node changes 1, or does not change 3b")
	}
	bugs = key("3b")
	program(bin, "labfleet", "another")
	if key("1") == plain || key("3b") == bugs {
		t.Error("another program keeps the key")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if paths, err := programs(t.Context(), cfg, nil); err != nil || !slices.Contains(paths, self) {
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

// A run that was stopped goes on with the trial at which it was: what was run before is
// kept, and counts in the result. Another seed keeps nothing.
func TestResume(t *testing.T) {
	t.Parallel()
	cfg := config(t, t.TempDir())
	played := map[string]int{}
	stopped := errors.New("stopped")
	e := tiny()
	one := e.Trials
	e.Judge = func(all []Outcome) ([]Threshold, []Table) { return []Threshold{count("trials", len(all), 2)}, nil }
	broken := true
	e.Trials = func(size Size) []Trial {
		var all []Trial
		for _, name := range []string{"first", "second"} {
			trial := one(size)[0]
			// Nothing is done to the fleet, and nothing is asked that a busy machine could spoil.
			trial.Name, trial.Rounds, trial.TTL, trial.Pass = name, 1, 20*time.Second, []string{"sequence", "history"}
			trial.play = func(_ context.Context, s *trialRun) error {
				played[name]++
				if name == "second" && broken {
					return stopped
				}
				s.rounds = append(s.rounds, Round{Kind: name})
				return nil
			}
			all = append(all, trial)
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
	if !Finished(t.Context(), cfg, e) || Estimate(cfg.Out, cfg.Size, e) != time.Duration(r.Seconds*float64(time.Second)) {
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
	key, err := keyOf(t.Context(), cfg, e, e.Trials(cfg.Size))
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

// Labs with folders of their own have disks of their own: one would unmount the other's.
func TestDiskOfItsOwn(t *testing.T) {
	t.Parallel()
	if a, b := diskAt("/a/full/12/etcd-full-disk"), diskAt("/b/full/12/etcd-full-disk"); a == b {
		t.Errorf("both have %s", a)
	}
}
