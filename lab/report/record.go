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

	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// Record is what is kept of a result.
type Record struct {
	experiment.Experiment
	Size    experiment.Size `json:"size"`
	Command string          `json:"command"`
	// Key identifies the programs and the configuration.
	Key      string  `json:"key"`
	Revision string  `json:"revision,omitempty"`
	Machine  string  `json:"machine"`
	Date     string  `json:"date"`
	Seconds  float64 `json:"seconds"`
	measure.Summary
	Trials   []Trial   `json:"trials"`
	Pictures []Picture `json:"pictures"`
}

// Trial is what is kept of one trial.
type Trial struct {
	trial.Trial
	Seconds float64 `json:"seconds"`
	// Answered calls, and those whose outcome is unknown.
	Answered int64   `json:"answered"`
	Unknown  int64   `json:"unknown"`
	P99MS    float64 `json:"p99_ms"`
	Terms    int     `json:"terms"`
	// Faults by name, without those that missed and parts of others.
	Faults map[string]int `json:"faults,omitempty"`
	trial.Damage
	Checks []Check `json:"checks"`
	// Manifest is the digest of the history's manifest; empty: it was recorded before the
	// stricter checks.
	Manifest string `json:"manifest,omitempty"`
}

// Check is the verdict of a check of a trial, and the verdict that it must have; empty: it is
// reported only.
type Check struct {
	Guarantee  string         `json:"guarantee"`
	Check      string         `json:"check"`
	Result     verdict.Result `json:"result"`
	Want       verdict.Result `json:"want,omitempty"`
	Violations int            `json:"violations,omitempty"`
	// The check looked at N of What.
	N    int64  `json:"n"`
	What string `json:"what"`
	// Note is a detail of the verdict, such as the longest time seen beside a bound.
	Note string `json:"note,omitempty"`
}

// Picture is a figure beside the record. PNG: it is there as PNG too.
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

// recordOf returns what is kept of a result, and draws its pictures into dir.
func recordOf(r experiment.Result, dir string) (Record, error) {
	out := Record{
		Experiment: r.Experiment, Size: r.Size, Command: r.Command, Key: r.Key, Revision: r.Revision, Machine: r.Machine,
		Date: r.BeganAt.UTC().Format(time.DateOnly), Seconds: r.Seconds, Summary: measure.Summary{Thresholds: r.Thresholds},
	}
	for _, t := range r.Tables {
		if t.Title == experiment.ChecksTitle || len(t.Rows) == 0 {
			continue
		}
		t.Rows = shorten(t.Rows, mostRows, "and %d more")
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
		// SVGs are small; of the timelines, which are alike, only the first is kept as PNG.
		kept := Picture{Name: r.Name + "-" + p.Name, Trial: p.Trial, Title: p.Title(), PNG: timelines <= 1}
		err = errors.Join(err, write(filepath.Join(dir, kept.Name+".svg"), p.SVG))
		if kept.PNG {
			err = errors.Join(err, write(filepath.Join(dir, kept.Name+".png"), p.PNG))
		}
		out.Pictures = append(out.Pictures, kept)
	}
	return out, err
}

func write(path string, render func() ([]byte, error)) error {
	data, err := render()
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// shorten keeps most rows; the last one then says how many were left out.
func shorten(rows [][]string, most int, format string) [][]string {
	if n := len(rows); n > most {
		return append(slices.Clone(rows[:most-1]), []string{fmt.Sprintf(format, n-most+1)})
	}
	return rows
}

func trialOf(o trial.Outcome) Trial {
	t := Trial{
		Trial: o.Trial, Seconds: o.Seconds, Answered: o.Load.Calls, Unknown: o.Load.Unknown, P99MS: float64(o.Load.At(99)) / float64(time.Millisecond),
		Terms: len(o.Report.Terms), Damage: o.Damage, Manifest: o.Report.Manifest,
	}
	for _, f := range o.Report.Faults {
		if f.Counts() {
			if t.Faults == nil {
				t.Faults = map[string]int{}
			}
			t.Faults[f.Name]++
		}
	}
	for _, v := range o.Report.Verdicts {
		c := Check{Guarantee: v.Guarantee, Check: v.Check, Result: v.Result, Violations: v.Violations, Note: v.Note}
		switch {
		case slices.Contains(o.Broken, v.Check):
			c.Want = verdict.Fail
		case slices.Contains(o.Pass, v.Check):
			c.Want = verdict.Pass
		}
		if len(v.Looked) > 0 {
			c.N, c.What = v.Looked[0].N, v.Looked[0].What
		}
		t.Checks = append(t.Checks, c)
	}
	return t
}

// Keep records results in docs/lab, with their pictures, and returns which. A quick result
// never replaces a full one.
func Keep(docs string, results []experiment.Result) (kept []string, err error) {
	dir := filepath.Join(docs, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, r := range results {
		path := filepath.Join(dir, r.Name+".json")
		old, err := readRecord(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return kept, err
		}
		if old.Size == experiment.Full && r.Size != experiment.Full {
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
		if err == nil {
			err = write(path, func() ([]byte, error) {
				data, err := json.MarshalIndent(record, "", " ")
				return append(data, '\n'), err
			})
		}
		if err != nil {
			return kept, fmt.Errorf("record experiment %s: %w", r.Name, err)
		}
		kept = append(kept, fmt.Sprintf("experiment %s (%s)", r.Name, r.Size))
	}
	return kept, nil
}

// folder holds the records, in docs.
const folder = "lab"

func readRecord(path string) (r Record, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read record %s: %w", path, err)
	}
	return r, nil
}

// records reads the records in docs/lab, by name.
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
