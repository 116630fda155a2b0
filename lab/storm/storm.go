// Package storm is the experiment that injects faults of all kinds at random, in pairs, and
// at the moment of a change of leader. A seed decides the plan: kinds, roles and durations.
package storm

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
)

// Storm is a storm with another engine, length or seed than experiment 14.
type Storm struct {
	Engine string
	For    time.Duration
	Seed   uint64
	// Unfenced turns the ledger's fence off: then stale writes must be accepted.
	Unfenced bool
	// Pulse gives the nodes keepers.
	Pulse bool
	// Stop, if set, ends the storm early: then everything is healed and checked.
	Stop context.Context
}

// The suffixes of the names of a storm without the fence, and of one with keepers, in this order.
const (
	Unfenced = "-unfenced"
	Pulse    = "-pulse"
)

// The lengths of a storm. FullLength is that of experiment 14.
const (
	shortest   = 30 * time.Second
	longest    = 12 * time.Hour
	FullLength = 30 * time.Minute
	quick      = 75 * time.Second
)

// Experiment returns experiment 14.
func Experiment() experiment.Experiment {
	lasts := func(size experiment.Size) time.Duration {
		if size == experiment.Quick {
			return quick
		}
		return FullLength
	}
	return experiment.Experiment{
		Name: "14", Title: "storm: everything at random", Seed: 14,
		Question:    "Does any guarantee break when faults of all kinds come at random, in pairs, and at the moment of a change?",
		Expectation: "None. Zombies try to write and are refused. When the storm is over the fleet recovers within the bound.",
		Trials: func(size experiment.Size) []trial.Trial {
			return []trial.Trial{newTrial(context.Background(), trial.Etcd, lasts(size)), newTrial(context.Background(), trial.Raft, lasts(size))}
		},
		Takes: func(size experiment.Size) time.Duration { return 2 * (lasts(size) + time.Minute) },
		Judge: judge,
	}
}

// Experiment returns the storm as an experiment. Its result is kept apart from that of 14.
func (s Storm) Experiment() (experiment.Experiment, error) {
	switch {
	case !slices.Contains(lab.Backends(), s.Engine):
		return experiment.Experiment{}, fmt.Errorf("engine %q: use one of %s", s.Engine, strings.Join(lab.Backends(), ", "))
	case s.For < shortest || s.For > longest:
		return experiment.Experiment{}, fmt.Errorf("length %v: use %v to %v", s.For, shortest, longest)
	}
	if s.Stop == nil {
		s.Stop = context.Background()
	}
	e := Experiment()
	e.Name, e.Seed = "storm-"+s.Engine, s.Seed
	e.Repeat = fmt.Sprintf("lab storm --for %v --engine %s --seed %d", s.For, s.Engine, s.Seed)
	e.Takes = func(experiment.Size) time.Duration { return s.For + time.Minute }
	if s.Unfenced {
		e.Name, e.Repeat = e.Name+Unfenced, e.Repeat+" -"+Unfenced
	}
	if s.Pulse {
		e.Name, e.Repeat = e.Name+Pulse, e.Repeat+" -"+Pulse
	}
	e.Trials = func(experiment.Size) []trial.Trial {
		t := newTrial(s.Stop, s.Engine, s.For)
		t.Pulse = s.Pulse
		if s.Unfenced {
			t.Unfenced, t.Pass, t.Broken, t.Told = true, []string{"token-order", "evidence", "history"}, []string{"fence"}, []string{"sequence", "ledger"}
		}
		return []trial.Trial{t}
	}
	return e, nil
}

// Plan returns the steps of the storm, one per line. A longer storm begins as a shorter one
// does.
func (s Storm) Plan() (lines []string, err error) {
	e, err := s.Experiment()
	if err != nil {
		return nil, err
	}
	t := e.Trials(experiment.Full)[0]
	for i, st := range newPlanner(t, e.Random(t)).plan(t.Rounds) {
		lines = append(lines, fmt.Sprintf("%3d %-9s %s", i+1, st.Faults[0].Aim, st))
	}
	return lines, nil
}

// stepTime is about how long a step takes.
func stepTime(t trial.Trial) time.Duration { return t.TTL*5/4 + time.Second }

func newTrial(stop context.Context, engine string, lasts time.Duration) trial.Trial {
	t := trial.New(engine, time.Second, 500, 0, trial.Loop{})
	t.Patience, t.Pass = 2*time.Second, trial.Safe("baton", "refusal", "evidence")
	if engine != trial.Raft {
		t.Name, t.TTL = engine+"-3s", 3*time.Second
	}
	if engine == trial.Etcd {
		t.Engines = 3
	}
	t.Rounds = int(lasts / stepTime(t))
	t.Play = func(ctx context.Context, s *trial.Run) error {
		const spare = 4 // a quiet machine is faster
		return play(ctx, stop, s, newPlanner(t, s.Rand).plan(spare*t.Rounds), lasts)
	}
	return t
}

func readInjected(dir string) (all []injectedFault, err error) {
	err = trial.EachLine(filepath.Join(dir, injectedFile), "", func(f injectedFault) error {
		all = append(all, f)
		return nil
	})
	return all, err
}

func judge(j measure.Judge, o trial.Outcome) {
	faults, err := readInjected(o.Dir)
	if err != nil {
		j.Bar("faults", err.Error(), "a record", false)
		return
	}
	withEffect, unhealed, names := 0, int64(0), map[string]bool{}
	for _, f := range faults {
		if f.HadEffect {
			withEffect++
			names[f.Kind] = true
		}
		if f.Unhealed {
			unhealed++
		}
	}
	lasts := time.Duration(o.Trial.Rounds+1) * stepTime(o.Trial)
	variety := 10
	if lasts < 5*time.Minute {
		variety = 4
	}
	j.AtLeast("faults that bit", withEffect, min(200, int(200*lasts/FullLength)))
	j.AtLeast("kinds of them", len(names), variety)
	if o.Unfenced {
		j.Some("stale writes accepted", o.Damage.Applied)
	} else {
		j.Some("stale writes refused", o.Damage.Refused)
		j.None("stale writes accepted", o.Damage.Applied)
		j.None("numbers reused", o.Damage.Reused)
	}
	j.None("faults that were not healed", unhealed)
	j.None("programs that panicked", panics(filepath.Join(o.Dir, "fleet")))
	kindTable(j, o, faults)
	aimTable(j, faults)
	o.StaleWrites(j)
}

// panics counts the logs of programs that panicked.
func panics(dir string) (n int64) {
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log")) // the pattern is valid
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil || slices.ContainsFunc([]string{"\npanic: ", "\nfatal error: ", "panic serving"}, func(word string) bool { return bytes.Contains(data, []byte(word)) }) {
			n++
		}
	}
	return n
}

// kindTable counts by kind. A refused write and a change of leader are attributed to the
// fault that began last before it.
func kindTable(j measure.Judge, o trial.Outcome, faults []injectedFault) {
	type row [4]int // faults injected, faults with an effect, writes refused, changes of leader
	rows := map[string]*row{}
	var withEffect []injectedFault
	for _, f := range faults {
		if rows[f.Kind] == nil {
			rows[f.Kind] = &row{}
		}
		rows[f.Kind][0]++
		if f.HadEffect {
			rows[f.Kind][1]++
			withEffect = append(withEffect, f)
		}
	}
	slices.SortStableFunc(withEffect, func(a, b injectedFault) int { return cmp.Compare(a.Begun, b.Begun) })
	by := func(at clock.Instant) *row {
		i, _ := slices.BinarySearchFunc(withEffect, at, func(f injectedFault, at clock.Instant) int { return cmp.Compare(f.Begun, at) })
		if i == 0 {
			return &row{} // before the first fault
		}
		return rows[withEffect[i-1].Kind]
	}
	for _, t := range o.Report.Terms {
		if t.Began > 0 {
			by(t.Began)[3]++
		}
		for _, at := range t.RefusedAt {
			by(at)[2]++
		}
	}
	t := j.Table(o.Name+": faults by kind", "kind", "set", "bit", "writes refused", "changes of leader")
	var sum row
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		r := rows[name]
		t.Add(name, r[0], r[1], r[2], r[3])
		for i := range r {
			sum[i] += r[i]
		}
	}
	t.Add(fmt.Sprintf("all %d kinds", len(rows)), sum[0], sum[1], sum[2], sum[3])
}

// aimTable counts by aim, and says why some faults do not count.
func aimTable(j measure.Judge, faults []injectedFault) {
	counts := map[string]int{}
	for _, f := range faults {
		if f.HadEffect {
			counts["bit, aimed: "+f.Aim]++
			continue
		}
		why := "a program did not answer while it was being set" // struck.jsonl has the whole error
		for _, known := range []error{inspect.ErrChanged, chaos.ErrNoEffect, inspect.ErrNoLeader} {
			if strings.HasPrefix(f.Problem, known.Error()) {
				why = strings.TrimPrefix(known.Error(), "chaos: ")
			}
		}
		counts["does not count: "+why]++
	}
	t := j.Table(j.Trial+": where they were aimed, and those that do not count", "what", "faults")
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		t.Add(what, counts[what])
	}
}
