package experiment

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/chaos"
)

// Storm is a storm of one's own: another engine, length or seed than experiment 14's.
type Storm struct {
	Engine string
	For    time.Duration
	Seed   uint64
	// Stop, when it ends, ends the storm early: what there is by then is healed and
	// checked.
	Stop context.Context
}

// The lengths of a storm.
const (
	shortestStorm = 30 * time.Second
	longestStorm  = 12 * time.Hour
	fullStorm     = 30 * time.Minute
	quickStorm    = 75 * time.Second
)

// storm is experiment 14.
func storm() Experiment {
	return Experiment{
		Name: "14", Title: "storm: everything at random", Seed: 14,
		Question:    "Does any guarantee break when faults of all kinds come at random, in pairs, and at the moment of a change?",
		Expectation: "None. Zombies try to write and are refused. When the storm is over the fleet recovers within the bound.",
		Trials: func(size Size) []Trial {
			lasts := pick(size, quickStorm, fullStorm)
			return []Trial{stormTrial(context.Background(), etcdEngine, lasts), stormTrial(context.Background(), raftEngine, lasts)}
		},
		Takes: func(size Size) time.Duration { return 2 * (pick(size, quickStorm, fullStorm) + time.Minute) },
		Judge: judgeStorm,
	}
}

// Experiment is the storm as an experiment. Its result is kept apart from that of 14.
func (s Storm) Experiment() (Experiment, error) {
	switch {
	case s.Engine != etcdEngine && s.Engine != raftEngine:
		return Experiment{}, fmt.Errorf("engine: %q: etcd or raft", s.Engine)
	case s.For < shortestStorm || s.For > longestStorm:
		return Experiment{}, fmt.Errorf("for: %v: from %v to %v", s.For, shortestStorm, longestStorm)
	}
	e := storm()
	e.Name, e.Seed = "storm-"+s.Engine, s.Seed
	e.repeat = fmt.Sprintf("lab storm --for %v --engine %s --seed %d", s.For, s.Engine, s.Seed)
	e.Takes = func(Size) time.Duration { return s.For + time.Minute }
	stop := s.Stop
	if stop == nil {
		stop = context.Background()
	}
	e.Trials = func(Size) []Trial { return []Trial{stormTrial(stop, s.Engine, s.For)} }
	return e, nil
}

// Plan is what the storm will do, a line a step: the same for the same engine and seed,
// however long it lasts.
func (s Storm) Plan() ([]string, error) {
	if _, err := s.Experiment(); err != nil {
		return nil, err
	}
	t := stormTrial(context.Background(), s.Engine, s.For)
	var lines []string
	for i, st := range newPlanner(t, rand.New(rand.NewPCG(s.Seed, hashOf(t.Name)))).plan(t.Rounds) {
		lines = append(lines, fmt.Sprintf("%3d %-9s %s", i+1, st.Faults[0].Aim, st))
	}
	return lines, nil
}

// stormStep is about how long a step takes.
func stormStep(t Trial) time.Duration { return t.TTL*5/4 + time.Second }

func stormTrial(stop context.Context, engine string, lasts time.Duration) Trial {
	t := Trial{
		Engine: engine, TTL: 3 * time.Second, Nodes: 3, Engines: 3, Rate: 500, Patience: 2 * time.Second,
		Pass: safe("baton", "refusal", "evidence"),
	}
	if engine == raftEngine {
		t.TTL, t.Engines = time.Second, 0
	}
	t.Name = fmt.Sprintf("%s-%v", engine, t.TTL)
	t.Rounds = int(lasts / stormStep(t))
	t.play = func(ctx context.Context, s *trialRun) error {
		const spare = 4 // a quiet machine is quicker
		plan := newPlanner(t, s.rng).plan(spare * t.Rounds)
		return s.storm(ctx, stop, plan, lasts)
	}
	return t
}

func readInjected(dir string) (all []injectedFault, err error) {
	err = eachLine(filepath.Join(dir, injectedFile), "", func(f injectedFault) error {
		all = append(all, f)
		return nil
	})
	return all, err
}

func judgeStorm(all []Outcome) ([]Threshold, []Table) {
	var bars []Threshold
	var tables []Table
	for _, o := range all {
		faults, err := readInjected(o.Dir)
		if err != nil {
			bars = append(bars, Threshold{Name: o.Name + ": faults", Value: err.Error(), Bar: "a record", OK: false})
			continue
		}
		bit, unhealed := 0, int64(0)
		kinds := map[string]bool{}
		for _, f := range faults {
			if f.Bit {
				bit++
				kinds[f.Kind] = true
			}
			if f.Unhealed {
				unhealed++
			}
		}
		lasts := time.Duration(o.Trial.Rounds+1) * stormStep(o.Trial)
		want, variety := int(200*lasts/fullStorm), 10
		if lasts < 5*time.Minute {
			variety = 4
		}
		bars = append(bars,
			atLeast(o.Name+": faults that bit", bit, min(200, want)),
			atLeast(o.Name+": kinds of them", len(kinds), variety),
			above(o.Name+": stale writes refused", o.Damage.Refused),
			none(o.Name+": stale writes accepted", o.Damage.Applied),
			none(o.Name+": numbers reused", o.Damage.Reused),
			none(o.Name+": faults that were not healed", unhealed),
			none(o.Name+": programs that panicked", panics(filepath.Join(o.Dir, "fleet"))))
		tables = append(tables, kindTable(o, faults), aimTable(o, faults))
	}
	return bars, append(tables, staleTable(all))
}

// panics counts the logs of programs that ended by a fault of their own, or would have.
func panics(dir string) (n int64) {
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log")) // the pattern is right
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil || slices.ContainsFunc([]string{"\npanic: ", "\nfatal error: ", "panic serving"}, func(word string) bool { return bytes.Contains(data, []byte(word)) }) {
			n++
		}
	}
	return n
}

func atLeast(name string, got, want int) Threshold {
	return Threshold{Name: name, Value: fmt.Sprint(got), Bar: fmt.Sprintf(">= %d", want), OK: got >= want}
}

// kindTable counts by kind. A refused write and a change of leader are put down to the
// fault that began last before it.
func kindTable(o Outcome, faults []injectedFault) Table {
	type row struct{ set, bit, refused, failovers int }
	rows := map[string]*row{}
	var bit []injectedFault
	for _, f := range faults {
		if rows[f.Kind] == nil {
			rows[f.Kind] = &row{}
		}
		rows[f.Kind].set++
		if f.Bit {
			rows[f.Kind].bit++
			bit = append(bit, f)
		}
	}
	slices.SortStableFunc(bit, func(a, b injectedFault) int { return cmp.Compare(a.Begun, b.Begun) })
	by := func(at clock.Instant) *row {
		i, _ := slices.BinarySearchFunc(bit, at, func(f injectedFault, at clock.Instant) int { return cmp.Compare(f.Begun, at) })
		if i == 0 {
			return &row{} // before the first fault
		}
		return rows[bit[i-1].Kind]
	}
	for _, t := range o.Report.Terms {
		if t.Began > 0 {
			by(t.Began).failovers++
		}
		for _, at := range t.RefusedAt {
			by(at).refused++
		}
	}
	table := Table{Title: o.Name + ": faults by kind", Head: []string{"kind", "set", "bit", "writes refused", "changes of leader"}}
	var sum row
	for _, kind := range slices.Sorted(maps.Keys(rows)) {
		r := rows[kind]
		table.Rows = append(table.Rows, []string{kind, fmt.Sprint(r.set), fmt.Sprint(r.bit), fmt.Sprint(r.refused), fmt.Sprint(r.failovers)})
		sum = row{sum.set + r.set, sum.bit + r.bit, sum.refused + r.refused, sum.failovers + r.failovers}
	}
	table.Rows = append(table.Rows, []string{fmt.Sprintf("all %d kinds", len(rows)), fmt.Sprint(sum.set), fmt.Sprint(sum.bit), fmt.Sprint(sum.refused), fmt.Sprint(sum.failovers)})
	return table
}

// aimTable counts by aim, and says why some did not count.
func aimTable(o Outcome, faults []injectedFault) Table {
	bit, apart := map[string]int{}, map[string]int{}
	for _, f := range faults {
		if f.Bit {
			bit[f.Aim]++
			continue
		}
		// The whole of it is in struck.jsonl.
		why := "a program did not answer while it was being set"
		for _, known := range []error{chaos.ErrChanged, chaos.ErrNoEffect, chaos.ErrNoLeader} {
			if strings.HasPrefix(f.Problem, known.Error()) {
				why = strings.TrimPrefix(known.Error(), "chaos: ")
			}
		}
		apart[why]++
	}
	table := Table{Title: o.Name + ": where they were aimed, and those that do not count", Head: []string{"what", "faults"}}
	for _, aim := range slices.Sorted(maps.Keys(bit)) {
		table.Rows = append(table.Rows, []string{"bit, aimed: " + aim, fmt.Sprint(bit[aim])})
	}
	for _, why := range slices.Sorted(maps.Keys(apart)) {
		table.Rows = append(table.Rows, []string{"does not count: " + why, fmt.Sprint(apart[why])})
	}
	return table
}
