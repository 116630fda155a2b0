package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
)

// Record is what is kept of a result.
type Record struct {
	Name        string          `json:"name"`
	Title       string          `json:"title"`
	Question    string          `json:"question"`
	Expectation string          `json:"expectation"`
	Seed        uint64          `json:"seed"`
	Size        experiment.Size `json:"size"`
	Command     string          `json:"command"`
	// Key stands for the programs and the configuration.
	Key        string              `json:"key"`
	Revision   string              `json:"revision,omitempty"`
	Machine    string              `json:"machine"`
	Date       string              `json:"date"`
	Seconds    float64             `json:"seconds"`
	Thresholds []measure.Threshold `json:"thresholds"`
	Tables     []measure.Table     `json:"tables"`
	Trials     []Trial             `json:"trials"`
	Pictures   []Picture           `json:"pictures"`
}

// Trial is what is kept of one fleet.
type Trial struct {
	trial.Trial
	Seconds float64 `json:"seconds"`
	// Answered calls, and those whose outcome is unknown.
	Answered int64   `json:"answered"`
	Unknown  int64   `json:"unknown"`
	P99MS    float64 `json:"p99_ms"`
	Terms    int     `json:"terms"`
	// Faults by name; neither what missed nor parts of others.
	Faults map[string]int `json:"faults,omitempty"`
	// Stale writes that the ledger refused and took, and numbers that it gave twice.
	Refused  int64   `json:"stale_writes_refused"`
	Accepted int64   `json:"stale_writes_accepted"`
	Reused   int64   `json:"numbers_reused"`
	Checks   []Check `json:"checks"`
	// Manifest is the digest of the history's manifest; empty: it was recorded before the
	// stricter checks.
	Manifest string `json:"manifest,omitempty"`
}

// Check is what a check of a trial said, and what it had to say; empty: it is told only.
type Check struct {
	Guarantee  string       `json:"guarantee"`
	Check      string       `json:"check"`
	Result     check.Result `json:"result"`
	Want       check.Result `json:"want,omitempty"`
	Violations int          `json:"violations,omitempty"`
	// Looked at N of What.
	N    int64  `json:"n"`
	What string `json:"what"`
	// Note is what the result rests on, such as the longest that was seen beside a bound.
	Note string `json:"note,omitempty"`
}

// Picture is a drawing beside the record. PNG: there is one of that form too.
type Picture struct {
	Name  string `json:"name"`
	Trial string `json:"trial,omitempty"`
	Title string `json:"title"`
	PNG   bool   `json:"png"`
}

// mostRows is how many rows of a table are kept.
const mostRows = 40

// strict reports whether every history has a manifest.
func (r Record) strict() bool {
	return !slices.ContainsFunc(r.Trials, func(t Trial) bool { return t.Manifest == "" })
}

// recordOf is what is kept of a result; its pictures are drawn into dir.
func recordOf(r experiment.Result, dir string) (Record, error) {
	out := Record{
		Name: r.Name, Title: r.Title, Question: r.Question, Expectation: r.Expectation, Seed: r.Seed, Size: r.Size, Command: r.Command,
		Key: r.Key, Revision: r.Revision, Machine: r.Machine, Date: r.BeganAt.UTC().Format(time.DateOnly), Seconds: r.Seconds, Thresholds: r.Thresholds,
	}
	for _, t := range r.Tables {
		if t.Title == experiment.ChecksTitle || len(t.Rows) == 0 {
			continue
		}
		if n := len(t.Rows); n > mostRows {
			t.Rows = append(slices.Clone(t.Rows[:mostRows-1]), []string{fmt.Sprintf("and %d more", n-mostRows+1)})
		}
		out.Tables = append(out.Tables, t)
	}
	for _, o := range r.Outcomes {
		out.Trials = append(out.Trials, trialOf(o))
	}
	pictures, err := r.Pictures()
	if err != nil {
		return out, err
	}
	timelines := 0
	for _, p := range pictures {
		if p.Trial != "" {
			timelines++
		}
		// The SVGs are small; of the timelines, which are alike, one is enough as PNG.
		kept := Picture{Name: r.Name + "-" + p.Name, Trial: p.Trial, Title: p.Title(), PNG: timelines <= 1}
		if err := save(p, filepath.Join(dir, kept.Name), kept.PNG); err != nil {
			return out, err
		}
		out.Pictures = append(out.Pictures, kept)
	}
	return out, nil
}

func trialOf(o trial.Outcome) Trial {
	t := Trial{
		Trial: o.Trial, Seconds: o.Seconds, Answered: o.Load.Calls, Unknown: o.Load.Unknown, P99MS: float64(o.Load.At(99)) / float64(time.Millisecond),
		Terms: len(o.Report.Terms), Refused: o.Damage.Refused, Accepted: o.Damage.Applied, Reused: o.Damage.Reused, Manifest: o.Report.Manifest,
	}
	for _, f := range o.Report.Faults {
		if !f.Counts() {
			continue
		}
		if t.Faults == nil {
			t.Faults = map[string]int{}
		}
		t.Faults[f.Name]++
	}
	for _, v := range o.Report.Verdicts {
		c := Check{Guarantee: v.Guarantee, Check: v.Check, Result: v.Result, Violations: v.Violations, Note: v.Note}
		if slices.Contains(o.Pass, v.Check) {
			c.Want = check.Pass
		}
		if slices.Contains(o.Broken, v.Check) {
			c.Want = check.Fail
		}
		if len(v.Looked) > 0 {
			c.N, c.What = v.Looked[0].N, v.Looked[0].What
		}
		t.Checks = append(t.Checks, c)
	}
	return t
}

func save(p experiment.Picture, path string, png bool) error {
	svg, err := p.SVG()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".svg", svg, 0o644); err != nil || !png {
		return err
	}
	data, err := p.PNG()
	if err != nil {
		return err
	}
	return os.WriteFile(path+".png", data, 0o644)
}

// Keep makes records of results in docs/lab, with their pictures, and says which. A
// quick result never takes the place of a full one.
func Keep(docs string, results []experiment.Result) (kept []string, err error) {
	dir := filepath.Join(docs, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, r := range results {
		path := filepath.Join(dir, r.Name+".json")
		old, err := readRecord(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return kept, err
		case old.Size == experiment.Full && r.Size != experiment.Full:
			continue
		}
		for _, p := range old.Pictures {
			for _, form := range []string{".svg", ".png"} {
				if err := os.Remove(filepath.Join(dir, p.Name+form)); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return kept, err
				}
			}
		}
		record, err := recordOf(r, dir)
		if err != nil {
			return kept, fmt.Errorf("experiment %s: %w", r.Name, err)
		}
		data, err := json.MarshalIndent(record, "", " ")
		if err != nil {
			return kept, err
		}
		if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
			return kept, err
		}
		kept = append(kept, fmt.Sprintf("experiment %s (%s)", r.Name, r.Size))
	}
	return kept, nil
}

// folder is where the records are, in docs.
const folder = "lab"

func readRecord(path string) (Record, error) {
	var r Record
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s is no record: %w", path, err)
	}
	return r, nil
}

// records are those in docs/lab, by name.
func records(docs string) (map[string]Record, error) {
	paths, err := filepath.Glob(filepath.Join(docs, folder, "*.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]Record{}
	for _, path := range paths {
		r, err := readRecord(path)
		if err != nil {
			return nil, err
		}
		all[r.Name] = r
	}
	return all, nil
}
