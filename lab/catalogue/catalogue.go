// Package catalogue lists the experiments and declares most of them: the question, the
// expectation, the trials and the bars of each. Experiments with much code of their own are
// declared in packages failover, churn and storm.
package catalogue

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab/churn"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/failover"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/storm"
	"github.com/tenurehq/tenure/lab/trial"
)

// All returns the experiments, in order.
func All() []experiment.Experiment {
	return []experiment.Experiment{failover.Kill(), failover.Sweep(), cut(), twoBelieve(), pauseBetween(), fencingOff(), churn.Experiment(), handover(), quorum(), member(), ledgerKilled(), clocks(), disk(), flap(), storm.Experiment()}
}

// Quickly returns the experiments of the quick set. The others take long, 3b is contained
// in 5, and a short 14 shows little.
func Quickly() []experiment.Experiment {
	return slices.DeleteFunc(All(), func(e experiment.Experiment) bool { return !slices.Contains([]string{"1", "3", "4", "5", "7"}, e.Name) })
}

// Find returns experiments by name.
func Find(names ...string) (found []experiment.Experiment, err error) {
	all := All()
	var known []string
	for _, e := range all {
		known = append(known, e.Name)
	}
	for _, name := range names {
		i := slices.Index(known, strings.ToLower(name))
		if i < 0 {
			return nil, fmt.Errorf("there is no experiment %q; there are %s, and quick and all", name, strings.Join(known, ", "))
		}
		found = append(found, all[i])
	}
	return found, nil
}

// LoadRun describes a history of lab load.
func LoadRun(group string) history.Run {
	return history.Run{Experiment: "load", Group: group, Checks: []string{"sequence", "linearizable"}}
}

// Expected returns what this program requires of the run of a history: its configuration and
// its checks. It fails if this program has no such run.
func Expected(run history.Run) (history.Run, error) {
	if run.Experiment == "load" {
		return LoadRun(run.Group), nil
	}
	name, trialName, _ := strings.Cut(run.Experiment, " ")
	var e experiment.Experiment
	var err error
	if engine, ok := strings.CutPrefix(name, "storm-"); ok {
		e, err = storm.Storm{Engine: engine, For: storm.FullLength, Seed: run.Seed}.Experiment()
	} else {
		var found []experiment.Experiment
		if found, err = Find(name); err == nil {
			e = found[0]
		}
	}
	if err != nil {
		return history.Run{}, err
	}
	size := experiment.Full
	if strings.Contains(run.Command, " --quick") {
		size = experiment.Quick
	}
	for _, t := range e.Trials(size) {
		if t.Name == trialName {
			want := e.Describe(t, size)
			want.Seed, want.Command, want.Jobs = run.Seed, run.Command, trial.Jobs()
			return want, nil
		}
	}
	return history.Run{}, fmt.Errorf("experiment %s has no trial %q in its %s form", name, trialName, size)
}

// both returns a trial on etcd, and one on Raft with an election timeout of 1 s.
func both(etcdTTL time.Duration, rate float64, rounds int, script trial.Loop) []trial.Trial {
	return []trial.Trial{trial.New(trial.Etcd, etcdTTL, rate, rounds, script), trial.New(trial.Raft, time.Second, rate, rounds, script)}
}
