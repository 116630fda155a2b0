package experiment

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/check"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/inventory.txt instead of comparing with it")

// inventory names every experiment with its trials, checks, planted bugs and bars, every
// check, and the storm's kinds of faults with the plan that a seed gives.
func inventory(t *testing.T) (lines []string) {
	t.Helper()
	add := func(format string, args ...any) {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
	for _, e := range All() {
		add("experiment %s: %s, seed %d; %s; %s", e.Name, e.Title, e.Seed, e.Question, e.Expectation)
		for _, size := range []Size{Quick, Full} {
			var outcomes []Outcome
			add("experiment %s %s: takes %v, %s", e.Name, size, Estimate(t.TempDir(), size, e), e.command(size))
			for _, trial := range e.Trials(size) {
				add("experiment %s %s trial %s: %s", e.Name, size, trial.Name, jsonOf(t, trial))
				o := Outcome{Trial: trial, Dir: t.TempDir(), Report: check.Report{Run: trial.describe(e, size)}}
				o.Rounds = []Round{{Begun: 1, Healed: 1 + at(time.Minute)}} // long enough for every bar
				if err := os.WriteFile(filepath.Join(o.Dir, "struck.jsonl"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				outcomes = append(outcomes, o)
			}
			r := Result{Experiment: e, Size: size, Outcomes: outcomes}
			r.judge()
			for _, b := range r.Thresholds {
				add("experiment %s %s bar %s: %s", e.Name, size, b.Name, b.Bar)
			}
			for _, table := range r.Tables {
				add("experiment %s %s table %s: %s", e.Name, size, table.Title, strings.Join(table.Head, ", "))
			}
		}
	}
	for _, e := range Quickly() {
		add("quick set: %s", e.Name)
	}
	for _, name := range check.Names() {
		add("check %s", name)
	}
	for _, engine := range []string{etcdEngine, raftEngine} {
		plan, err := Storm{Engine: engine, For: 10 * time.Minute, Seed: 14}.Plan()
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range plan {
			add("storm on %s, step %s", engine, step)
		}
		kinds := map[string]bool{}
		for _, st := range planOf(engine, 1, stormTrial(context.Background(), engine, fullStorm).Rounds) {
			for _, b := range st.Faults {
				kinds[b.Aim+": "+b.Kind] = true
			}
		}
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			add("storm on %s, fault at %s", engine, kind)
		}
	}
	return lines
}

// Nothing of the lab is lost by accident: what is listed in testdata/inventory.txt is
// still there.
func TestInventory(t *testing.T) {
	t.Parallel()
	const path = "testdata/inventory.txt"
	got := inventory(t)
	if *rewrite {
		if err := os.WriteFile(path, []byte(strings.Join(got, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, diskFull) && !canMount() {
			continue // this machine cannot run it
		}
		if !slices.Contains(got, line) {
			t.Errorf("lost: %s", line)
		}
	}
}
