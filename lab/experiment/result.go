package experiment

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tenurehq/tenure/lab/check"
)

// Threshold is one thing that must hold.
type Threshold struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Bar   string `json:"bar"`
	OK    bool   `json:"ok"`
}

// Table is numbers for people.
type Table struct {
	Title string     `json:"title"`
	Head  []string   `json:"head"`
	Rows  [][]string `json:"rows"`
}

// add adds a row; durations are written in milliseconds.
func (t *Table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		if d, ok := c.(time.Duration); ok {
			c = ms(d)
		}
		row[i] = fmt.Sprint(c)
	}
	t.Rows = append(t.Rows, row)
}

// Result is what an experiment has shown.
type Result struct {
	// Digest is that of the file in which the result is kept.
	Digest string `json:"digest"`
	Experiment
	Size    Size   `json:"size"`
	Command string `json:"command"`
	// Key is what the result belongs to: configuration, seed and programs.
	Key string `json:"key"`
	// Revision is that of the checkout it was run in, and says if that was modified.
	Revision string `json:"revision,omitempty"`
	// Machine is what it ran on.
	Machine    string      `json:"machine"`
	Dir        string      `json:"dir"`
	BeganAt    time.Time   `json:"began_at"`
	Seconds    float64     `json:"seconds"`
	Thresholds []Threshold `json:"thresholds"`
	Tables     []Table     `json:"tables"`
	Outcomes   []Outcome   `json:"trials"`

	// Kept: it is of an earlier run.
	Kept bool `json:"-"`
}

// Passed reports whether there are thresholds and every one was met.
func (r Result) Passed() bool {
	for _, t := range r.Thresholds {
		if !t.OK {
			return false
		}
	}
	return len(r.Thresholds) > 0
}

// ChecksTitle is the title of the table that says what every check of every trial said.
const ChecksTitle = "checks"

// CrashBound is what a configuration promises after a crash and nothing else, next to
// the engine.
func CrashBound(engine string, ttl time.Duration) time.Duration {
	return Trial{Engine: engine, TTL: ttl}.describe(Experiment{}, Full).CrashBound(0)
}

// judge asks the experiment, and the checks of each trial.
func (r *Result) judge() {
	r.Machine = fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	r.Seconds = 0
	for _, o := range r.Outcomes {
		r.Seconds += o.Seconds
	}
	r.Thresholds, r.Tables = r.Judge(r.Outcomes)
	checks := Table{Title: ChecksTitle, Head: []string{"trial", "guarantee", "check", "result", "looked at", "first finding"}}
	for _, o := range r.Outcomes {
		want := map[string]check.Result{}
		for _, name := range o.Pass {
			want[name] = check.Pass
		}
		for _, name := range o.Broken {
			want[name] = check.Fail
		}
		met := 0
		var missed []string
		for _, name := range append(append([]string{}, o.Pass...), o.Broken...) {
			v, ok := o.Report.Verdict(name)
			if ok && v.Result == want[name] {
				met++
				continue
			}
			missed = append(missed, name+" is "+orNone(string(v.Result)))
		}
		bar := fmt.Sprintf("%d pass", len(o.Pass))
		if len(o.Broken) > 0 {
			bar += ", " + strings.Join(o.Broken, " and ") + " must fail"
		}
		value := fmt.Sprintf("%d of %d", met, len(want))
		if len(missed) > 0 {
			value += " (" + strings.Join(missed, ", ") + ")"
		}
		r.Thresholds = append(r.Thresholds, Threshold{Name: o.Name + ": checks as expected", Value: value, Bar: bar, OK: len(missed) == 0 && met > 0})
		for _, v := range o.Report.Verdicts {
			checks.Rows = append(checks.Rows, checkRow(o.Name, v, want[v.Check]))
		}
	}
	r.Tables = append(r.Tables, checks)
}

func checkRow(trial string, v check.Verdict, want check.Result) []string {
	result := string(v.Result)
	switch want {
	case v.Result:
		if want == check.Fail {
			result += " (as expected)"
		}
	case "":
		result += " (told only)"
	default:
		result += " (must " + string(want) + ")"
	}
	looked, finding := "", ""
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
	return []string{trial, v.Guarantee, v.Check, result, looked, finding}
}

func orNone(s string) string {
	if s == "" {
		return "missing"
	}
	return s
}

// Print writes the result for people: thresholds first.
func (r Result) Print(w io.Writer) error {
	var b strings.Builder
	kept := ""
	if r.Kept {
		kept = "; kept from " + r.BeganAt.Format(time.RFC3339)
	}
	fmt.Fprintf(&b, "experiment %s: %s (%s, seed %d, %.0f s%s)\n", r.Name, r.Title, r.Size, r.Seed, r.Seconds, kept)
	fmt.Fprintf(&b, "  question:    %s\n  expectation: %s\n", r.Question, r.Expectation)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, t := range r.Thresholds {
		word := "ok"
		if !t.OK {
			word = "short"
		}
		_, _ = fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", word, t.Name, t.Value, t.Bar) // into memory
	}
	_ = table.Flush() // into memory
	for _, t := range r.Tables {
		if len(t.Rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n  %s\n", t.Title)
		table = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, row := range append([][]string{t.Head}, t.Rows...) {
			_, _ = fmt.Fprintf(table, "    %s\n", strings.Join(row, "\t")) // into memory
		}
		_ = table.Flush() // into memory
	}
	fmt.Fprintf(&b, "\n  again: %s; histories: %s\n\n", r.Command, r.Dir)
	_, err := io.WriteString(w, b.String())
	return err
}

// Save keeps the result in its folder.
func (r Result) Save() error {
	r.Digest = ""
	return writeJSON(filepath.Join(r.Dir, resultFile), &r, &r.Digest)
}

// BeforeStricterChecks says of a result or a record that its histories have no manifest.
const BeforeStricterChecks = "recorded before the stricter checks"

// ReadResult reads a result that was kept. One that was changed afterwards, or is older
// than digests are, has not passed: it gets a threshold that is not met.
func ReadResult(path string) (Result, error) {
	var r Result
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s is no result: %w", path, err)
	}
	if value := "changed after the run"; !intact(data, r.Digest) {
		if r.Digest == "" {
			value = BeforeStricterChecks
		}
		r.Thresholds = append(r.Thresholds, Threshold{Name: resultFile, Value: value, Bar: "as it was written by the run"})
	}
	return r, nil
}

// Results are those below a folder, in the order of the experiments, quick ones first.
func Results(out string) ([]Result, error) {
	var all []Result
	for _, size := range []Size{Quick, Full} {
		for _, e := range All() {
			r, err := ReadResult(filepath.Join(out, string(size), e.Name, resultFile))
			switch {
			case os.IsNotExist(err):
				continue
			case err != nil:
				return nil, err
			}
			all = append(all, r)
		}
	}
	return all, nil
}
