package catalogue

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/inventory.txt instead of comparing with it")

// inventory lists every experiment with its trials, checks, planted bugs and bars, and every
// check.
func inventory(t *testing.T) (lines []string) {
	t.Helper()
	add := func(format string, args ...any) {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
	for _, e := range All() {
		add("experiment %s: %s, seed %d; %s; %s", e.Name, e.Title, e.Seed, e.Question, e.Expectation)
		for _, size := range []experiment.Size{experiment.Quick, experiment.Full} {
			var outcomes []trial.Outcome
			add("experiment %s %s: takes %v, %s", e.Name, size, experiment.Estimate(experiment.Config{Out: t.TempDir(), Size: size}, e), e.Command(size))
			for _, tr := range e.Trials(size) {
				add("experiment %s %s trial %s: %s", e.Name, size, tr.Name, jsonOf(t, tr))
				o := trial.Outcome{Trial: tr, Dir: t.TempDir(), Report: verdict.Report{Run: e.Describe(tr, size)}}
				o.Rounds = []trial.Round{{Begun: 1, Healed: 1 + at(time.Minute)}} // long enough for every bar
				if err := os.WriteFile(filepath.Join(o.Dir, "struck.jsonl"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				outcomes = append(outcomes, o)
			}
			r := e.Summarize(outcomes)
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
	return lines
}

// Everything that testdata/inventory.txt lists is still there.
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
