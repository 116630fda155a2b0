package experiment

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/plot"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// The files of an experiment and of a trial.
const (
	resultFile  = "result.json"
	outcomeFile = "outcome.json"
)

// Result is the result of an experiment.
type Result struct {
	// Digest of the file in which the result is kept.
	Digest string `json:"digest"`
	Experiment
	Size    Size   `json:"size"`
	Command string `json:"command"`
	// Key identifies configuration, seed and programs.
	Key string `json:"key"`
	// Revision of the checkout, and whether it was modified.
	Revision string    `json:"revision,omitempty"`
	Machine  string    `json:"machine"`
	Dir      string    `json:"dir"`
	BeganAt  time.Time `json:"began_at"`
	Seconds  float64   `json:"seconds"`
	measure.Summary
	Outcomes []trial.Outcome `json:"trials"`

	// Kept: it is of an earlier run.
	Kept bool `json:"-"`
}

// keptOutcome is what outcomeFile holds, so that a run that was stopped can continue.
type keptOutcome struct {
	Digest  string        `json:"digest"`
	Key     string        `json:"key"`
	Outcome trial.Outcome `json:"outcome"`
}

// Recorded returns the report that was made when the history in a folder was recorded;
// false: none is kept beside it.
func Recorded(history string) (verdict.Report, bool) {
	var o keptOutcome
	data, err := os.ReadFile(filepath.Join(filepath.Dir(history), outcomeFile))
	if err != nil || json.Unmarshal(data, &o) != nil {
		return verdict.Report{}, false
	}
	return o.Outcome.Report, true
}

// Print writes the result for people, thresholds first.
func (r Result) Print(w io.Writer) error {
	kept := ""
	if r.Kept {
		kept = "; kept from " + r.BeganAt.Format(time.RFC3339)
	}
	_, err := fmt.Fprintf(w, "experiment %s: %s (%s, seed %d, %.0f s%s)\n  question:    %s\n  expectation: %s\n", r.Name, r.Title, r.Size, r.Seed, r.Seconds, kept, r.Question, r.Expectation)
	if err == nil {
		err = r.Summary.Print(w)
	}
	if err == nil {
		_, err = fmt.Fprintf(w, "\n  again: %s; histories: %s\n\n", r.Command, r.Dir)
	}
	return err
}

// Save writes the result to its folder.
func (r Result) Save() error {
	r.Digest = ""
	return writeJSON(filepath.Join(r.Dir, resultFile), &r, &r.Digest)
}

// writeJSON writes a file in one step, so that a half written one is not taken for a
// result. digest is an empty field of v; it becomes the digest of the text without it.
func writeJSON(path string, v any, digest *string) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		*digest = sumOf(data)
		data, err = json.MarshalIndent(v, "", "  ")
	}
	if err == nil {
		err = os.WriteFile(path+".new", append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return os.Rename(path+".new", path)
}

// intact reports whether a text that writeJSON wrote is unchanged.
func intact(data []byte, digest string) bool {
	data = bytes.TrimSuffix(data, []byte("\n"))
	return digest != "" && digest == sumOf(bytes.Replace(data, []byte(digest), nil, 1))
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// BeforeStricterChecks marks a result or a record whose histories have no manifest.
const BeforeStricterChecks = "recorded before the stricter checks"

// readResult reads a result. One that was changed after the run, or has no digest, gets a
// threshold that is not met.
func readResult(path string) (Result, error) {
	var r Result
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read result %s: %w", path, err)
	}
	if value := "changed after the run"; !intact(data, r.Digest) {
		if r.Digest == "" {
			value = BeforeStricterChecks
		}
		r.Thresholds = append(r.Thresholds, measure.Threshold{Name: resultFile, Value: value, Bar: "as it was written by the run"})
	}
	return r, nil
}

// Results reads the results of experiments below a folder, quick ones first.
func Results(out string, of []Experiment) (all []Result, err error) {
	for _, size := range []Size{Quick, Full} {
		for _, e := range of {
			r, err := readResult(filepath.Join(Config{Out: out, Size: size}.dir(e), resultFile))
			switch {
			case os.IsNotExist(err):
				continue
			case err != nil:
				return nil, err
			}
			r.Figures = e.Figures
			all = append(all, r)
		}
	}
	return all, nil
}

// Picture is a drawn figure. Trial is empty for the experiment's own figures.
type Picture struct {
	Name, Trial string
	*plot.Figure
}

// Pictures draws the figures of a result: the experiment's own, and a timeline for each
// trial. A figure without data is left out. The error names those that could not be drawn;
// the others are returned.
func (r Result) Pictures() (all []Picture, failed error) {
	note := fmt.Sprintf("%s, %s, %s", r.Command, r.Machine, r.BeganAt.Format(time.DateOnly))
	add := func(name, trial string, of plot.Drawing) {
		switch fig, err := of.Figure(); {
		case err == nil:
			all = append(all, Picture{name, trial, fig})
		case !errors.Is(err, plot.ErrNothing):
			failed = errors.Join(failed, fmt.Errorf("draw %s: %w", name, err))
		}
	}
	if r.Figures != nil {
		for _, f := range r.Figures(r.Outcomes, note) {
			add(f.Name, "", f.Drawing)
		}
	}
	for _, o := range r.Outcomes {
		add("timeline-"+strings.ReplaceAll(o.Name, "/", "-"), o.Name, timeline(o, o.Name+"; "+note))
	}
	return all, failed
}

// draw saves the pictures beside the result. A failure is reported only.
func (r Result) draw(say func(string)) {
	all, err := r.Pictures()
	for _, p := range all {
		err = errors.Join(err, p.Save(r.Dir, p.Name))
	}
	if err != nil {
		say(err.Error())
	}
}

// timeline shows who believed that it leads and whose writes took effect.
func timeline(o trial.Outcome, note string) plot.Timeline {
	const mostTerms = 13 // of a trial that repeats itself
	since := func(i clock.Instant) time.Duration { return max(0, i.Sub(o.Report.Run.At)) }
	t := plot.Timeline{Note: note, Unfenced: o.Unfenced}
	if len(o.Plant) > 0 {
		t.Note += "; planted bug: " + strings.Join(o.Plant, ", ")
	}
	for _, x := range o.Report.Terms {
		if x.Began > 0 {
			t.Believed = append(t.Believed, plot.Stretch{Node: x.Node, Token: uint64(x.Token), From: since(x.Began), To: since(x.Ended)})
			t.Length = max(t.Length, since(x.Ended))
		}
		for _, at := range x.RefusedAt {
			t.Refused = append(t.Refused, plot.Mark{Node: x.Node, At: since(at)})
		}
	}
	for _, e := range o.Effects {
		t.Effect = append(t.Effect, plot.Stretch{Node: e.Node, Token: uint64(e.Token), From: since(e.First), To: since(e.Last)})
		t.Length = max(t.Length, since(e.Last))
	}
	if terms := o.Report.Terms; len(o.Rounds) >= mostTerms && len(terms) > mostTerms {
		t.Show = since(terms[mostTerms-1].Ended)
	}
	for _, f := range o.Report.Faults {
		t.Faults = append(t.Faults, plot.Shade{Name: f.Name, From: since(f.Begun), To: since(f.Healed)})
	}
	return t
}
