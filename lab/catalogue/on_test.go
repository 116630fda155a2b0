package catalogue

import (
	"slices"
	"testing"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/trial"
)

// Experiments 1 to 5 run on every engine in quick form: at a TTL that the engine grants, and their
// histories are recognized. Raft lacks the trial of 3b. Experiments about members of etcd do not.
func TestOn(t *testing.T) {
	t.Parallel()
	for _, engine := range lab.Backends() {
		for _, name := range []string{"1", "2", "3", "3b", "4", "5"} {
			found, err := Find(name + on + engine)
			if engine == trial.Raft && name == "3b" {
				if err == nil {
					t.Error("3b runs on Raft")
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			trials := found[0].Trials(experiment.Quick)
			for _, tr := range trials {
				run := history.Run{Experiment: found[0].Name + " " + tr.Name, Command: found[0].Command(experiment.Quick)}
				if want, err := Expected(run); err != nil || want.Engine != engine || tr.Engine != engine {
					t.Errorf("%s: %+v, %v", run.Experiment, want, err)
				}
			}
			if len(trials) == 0 {
				t.Errorf("%s on %s has no trials", name, engine)
			}
		}
	}
	two, err := Find("1" + on + "redis+raft")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tr := range two[0].Trials(experiment.Quick) {
		names = append(names, tr.Name)
	}
	if !slices.Equal(names, []string{"redis-2s", "redis-10s-pulse", "raft-500ms"}) {
		t.Errorf("experiment 1 on two engines: %v", names)
	}
	for _, name := range []string{"9" + on + "redis", "1" + on + "mysql"} {
		if _, err := Find(name); err == nil {
			t.Errorf("%s is taken for an experiment", name)
		}
	}
	for _, name := range []string{"storm-redis redis-3s", "storm-redis-unfenced redis-3s", "storm-redis-pulse redis-3s", "storm-redis-unfenced-pulse redis-3s"} {
		if _, err := Expected(history.Run{Experiment: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
