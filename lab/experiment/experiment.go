// Package experiment runs experiments and keeps their results.
//
// An experiment is a declaration: the question, the expectation (written before the run),
// the seed, the trials and the bars. Package catalogue declares them.
//
// Results are kept trial by trial: a run that was stopped continues with the next trial. A
// result belongs to the programs and the configuration that made it; after a change of
// either the experiment runs again.
package experiment

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/plot"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// Size is how much of an experiment is run.
type Size string

// The sizes. Quick has short TTLs and few rounds, for every day. Full makes the published
// numbers.
const (
	Quick Size = "quick"
	Full  Size = "full"
)

// Pick returns quick or full.
func Pick[T any](size Size, quick, full T) T {
	if size == Quick {
		return quick
	}
	return full
}

// Experiment is a question to a fleet.
type Experiment struct {
	// Name is short, such as 3b.
	Name  string `json:"name"`
	Title string `json:"title"`
	// Question and Expectation were written before the run.
	Question    string `json:"question"`
	Expectation string `json:"expectation"`
	// Seed decides the delays and choices of the lab, not which node leads.
	Seed uint64 `json:"seed"`

	// Trials returns the fleets to run.
	Trials func(Size) []trial.Trial `json:"-"`
	// Judge adds bars and rows for one trial, Compare those for all trials together.
	Judge   func(measure.Judge, trial.Outcome)   `json:"-"`
	Compare func(measure.Judge, []trial.Outcome) `json:"-"`
	// Takes is how long the experiment takes; nil: estimated from its trials.
	Takes func(Size) time.Duration `json:"-"`
	// Figures returns the experiment's own figures, besides the timelines.
	Figures func(outcomes []trial.Outcome, note string) []Figure `json:"-"`
	// Repeat is the command that repeats it, if that is not lab run.
	Repeat string `json:"-"`
}

// Figure is a figure and its file name.
type Figure struct {
	Name string
	plot.Drawing
}

// Command returns the command that repeats the experiment.
func (e Experiment) Command(size Size) string {
	if e.Repeat != "" {
		return e.Repeat
	}
	c := "lab run " + e.Name
	if size == Quick {
		c += " --quick"
	}
	return fmt.Sprintf("%s --seed %d", c, e.Seed)
}

// Describe returns a trial of the experiment as its history describes it.
func (e Experiment) Describe(t trial.Trial, size Size) history.Run {
	r := t.Describe()
	r.Experiment, r.Seed, r.Command = e.Name+" "+t.Name, e.Seed, e.Command(size)
	// On a machine that is starved on purpose, or by tests that run beside the quick form, every
	// process is paused from time to time.
	if size == Quick || t.Disturbed != "" {
		r.LateMS = trial.WakeMS
	}
	return r
}

// Random returns the random numbers of a trial. Trials whose names differ only behind a
// slash, in what is compared, get the same.
func (e Experiment) Random(t trial.Trial) *rand.Rand {
	name, _, _ := strings.Cut(t.Name, "/")
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // it cannot fail
	return rand.New(rand.NewPCG(e.Seed, h.Sum64()))
}

// CrashBound returns the promised bound of a failover after a crash, without round trips.
func CrashBound(engine string, ttl time.Duration) time.Duration {
	return trial.Trial{Engine: engine, TTL: ttl}.Describe().CrashBound(0)
}

// ChecksTitle is the title of the table with the verdicts of all checks.
const ChecksTitle = "checks"

// Summarize judges the outcomes of all trials, and the checks of each.
func (e Experiment) Summarize(all []trial.Outcome) (s measure.Summary) {
	for _, o := range all {
		if e.Judge != nil {
			e.Judge(measure.Judge{Summary: &s, Trial: o.Name}, o)
		}
	}
	if e.Compare != nil {
		e.Compare(measure.Judge{Summary: &s}, all)
	}
	s.Table(ChecksTitle, "trial", "guarantee", "check", "result", "looked at", "first finding")
	for _, o := range all {
		judgeChecks(measure.Judge{Summary: &s, Trial: o.Name}, o)
	}
	return s
}

// judgeChecks requires that every check passed or failed as the trial declares.
func judgeChecks(j measure.Judge, o trial.Outcome) {
	want := map[string]verdict.Result{}
	for _, name := range o.Pass {
		want[name] = verdict.Pass
	}
	for _, name := range o.Broken {
		want[name] = verdict.Fail
	}
	var missed []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if v, _ := o.Report.Verdict(name); v.Result != want[name] {
			missed = append(missed, name+" is "+cmp.Or(string(v.Result), "missing"))
		}
	}
	bar := fmt.Sprintf("%d pass", len(o.Pass))
	if len(o.Broken) > 0 {
		bar += ", " + strings.Join(o.Broken, " and ") + " must fail"
	}
	value := fmt.Sprintf("%d of %d", len(want)-len(missed), len(want))
	if len(missed) > 0 {
		value += " (" + strings.Join(missed, ", ") + ")"
	}
	j.Bar("checks as expected", value, bar, len(missed) == 0 && len(want) > 0)
	for _, v := range o.Report.Verdicts {
		result, looked, finding := string(v.Result), "", ""
		switch want[v.Check] {
		case v.Result:
			if v.Result == verdict.Fail {
				result += " (as expected)"
			}
		case "":
			result += " (told only)"
		default:
			result += " (must " + string(want[v.Check]) + ")"
		}
		if len(v.Looked) > 0 {
			looked = fmt.Sprintf("%d %s", v.Looked[0].N, v.Looked[0].What)
		}
		if v.Note != "" {
			looked += "; " + v.Note
		}
		if len(v.Findings) > 0 {
			finding = v.Findings[0].String()
			if v.Violations > 1 {
				finding = fmt.Sprintf("%d, first: %s", v.Violations, finding)
			}
		}
		j.Row(ChecksTitle, nil, v.Guarantee, v.Check, result, looked, finding)
	}
}
