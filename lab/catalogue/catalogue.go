// Package catalogue lists the experiments and declares most of them: the question, the
// expectation, the trials and the bars of each. Experiments with much code of their own are
// declared in packages failover, churn and storm.
package catalogue

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/churn"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/failover"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/storm"
	"github.com/tenurehq/tenure/lab/trial"
)

// All returns the experiments, in order.
func All() []experiment.Experiment {
	return []experiment.Experiment{failover.Kill(), failover.Sweep(), cut(), twoBelieve(), pauseBetween(), fencingOff(), churn.Experiment(), handover(), quorum(), member(), ledgerKilled(), clocks(), disk(), flap(), storm.Experiment(), budget(), frozenOrder()}
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
		base, engines, other := strings.Cut(strings.ToLower(name), on)
		i := slices.Index(known, base)
		if i < 0 {
			return nil, fmt.Errorf("there is no experiment %q; there are %s, and quick and all", name, strings.Join(known, ", "))
		}
		e := all[i]
		if other {
			if e, err = On(e, strings.Split(engines, "+")...); err != nil {
				return nil, err
			}
		}
		found = append(found, e)
	}
	return found, nil
}

// on is between the name of an experiment and the engines that it runs on instead of its own.
const on = "-on-"

// On returns an experiment on other engines than its own. Its result is kept apart.
func On(e experiment.Experiment, engines ...string) (experiment.Experiment, error) {
	if !slices.Contains([]string{"1", "2", "3", "3b", "4", "5", "7"}, e.Name) {
		return e, fmt.Errorf("experiment %s has faults or measurements of etcd or Raft alone; 1, 2, 3, 3b, 4, 5 and 7 run on every engine", e.Name)
	}
	for _, engine := range engines {
		if !slices.Contains(lab.Backends(), engine) {
			return e, fmt.Errorf("there is no engine %q; there are %s", engine, strings.Join(lab.Backends(), ", "))
		}
		if len(trial.On(engine, e.Trials(experiment.Full))) == 0 {
			return e, fmt.Errorf("experiment %s has no trial for %s", e.Name, engine)
		}
	}
	trials := e.Trials
	e.Trials = func(size experiment.Size) (all []trial.Trial) {
		for _, engine := range engines {
			all = append(all, trial.On(engine, trials(size))...)
		}
		return all
	}
	e.Name += on + strings.Join(engines, "+")
	return e, nil
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
		engine, pulse := strings.CutSuffix(engine, storm.Pulse)
		engine, unfenced := strings.CutSuffix(engine, storm.Unfenced)
		e, err = storm.Storm{Engine: engine, For: storm.FullLength, Seed: run.Seed, Unfenced: unfenced, Pulse: pulse}.Experiment()
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
