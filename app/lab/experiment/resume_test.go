package experiment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

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
			trial.play = func(_ context.Context, s *stage) error {
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
	if !Finished(cfg, e) || Estimate(cfg.Out, cfg.Size, e) != time.Duration(r.Seconds*float64(time.Second)) {
		t.Error("the result is not known to be there, or how long it took")
	}
	e.Seed++
	key, err := keyOf(cfg, e, e.Trials(cfg.Size))
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
