package catalogue

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
)

const sec = time.Second

func at(d time.Duration) clock.Instant { return clock.Instant(d) }

func token(n int) fence.Token { return fence.Token(n) }

// barsOf returns the bars of an experiment, without those of the checks.
func barsOf(e experiment.Experiment, all ...trial.Outcome) []measure.Threshold {
	return slices.DeleteFunc(e.Summarize(all).Thresholds, func(t measure.Threshold) bool { return strings.HasSuffix(t.Name, ": checks as expected") })
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Every experiment has a question and an expectation, has trials of both sizes whose checks
// exist, and can be found by its name.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	for _, e := range All() {
		if e.Question == "" || e.Expectation == "" || e.Seed == 0 {
			t.Errorf("experiment %s says too little", e.Name)
		}
		for _, size := range []experiment.Size{experiment.Quick, experiment.Full} {
			seen := map[string]bool{}
			for _, trial := range e.Trials(size) {
				if seen[trial.Name] || trial.Rounds == 0 || trial.Rate == 0 || trial.Play == nil || len(trial.Pass) == 0 {
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

// Labs with different folders use different mount points: one would unmount the other's.
func TestDiskOfItsOwn(t *testing.T) {
	t.Parallel()
	if a, b := mountPoint("/a/full/12/etcd-full-disk"), mountPoint("/b/full/12/etcd-full-disk"); a == b {
		t.Errorf("both have %s", a)
	}
}
