package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/app/lab/experiment"
)

// What cannot be run is refused before anything is started.
func TestRunUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"run"}, "arg"},
		{[]string{"run", "99"}, "there is no experiment"},
		{[]string{"run", "quick", "3"}, "stand alone"},
		{[]string{"run", "3", "-o", "xml"}, "xml"},
	} {
		code, _, stderr := labRun(t, nil, tt.args...)
		if code != exitUsage || !strings.Contains(stderr, tt.want) {
			t.Errorf("lab %v: code %d, %q: want %d and %q", tt.args, code, stderr, exitUsage, tt.want)
		}
	}
}

// An experiment against a real fleet that expects what does not happen, here that the
// sequence is broken, ends with the code for thresholds.
func TestRunBrokenExpectation(t *testing.T) {
	found, err := experiment.Find("7")
	if err != nil {
		t.Fatal(err)
	}
	e := found[0]
	e.Trials = func(size experiment.Size) []experiment.Trial {
		trial := found[0].Trials(size)[0]
		trial.Rounds, trial.Rate = 1, 100
		trial.Pass, trial.Broken = []string{"history"}, []string{"sequence"}
		return []experiment.Trial{trial}
	}
	cmd := newRun()
	var out, errs strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetContext(t.Context())
	r := runFlags{out: t.TempDir()}
	err = r.perform(cmd, []experiment.Experiment{e}, experiment.Quick, false)
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != exitThreshold || !strings.Contains(err.Error(), "sequence is pass") {
		t.Errorf("%v\n%s%s", err, &errs, &out)
	}
	if !strings.Contains(errs.String(), "round 1 of 1") || !strings.Contains(out.String(), "  short ") {
		t.Errorf("it does not say what happens, or what came out:\n%s%s", &errs, &out)
	}
}

// A report says what was kept, and ends with the code for thresholds if one of them was
// not met, or if there is nothing.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := labRun(t, nil, "report", "--results", dir); code != exitThreshold || !strings.Contains(stderr, "nothing to judge") {
		t.Errorf("nothing: code %d, %s", code, stderr)
	}
	keep := func(ok bool) {
		r := experiment.Result{Experiment: experiment.All()[0], Size: experiment.Quick, Dir: filepath.Join(dir, "quick", "1"), Thresholds: []experiment.Threshold{{Name: "failover", Value: "7 s", Bar: "< 5 s", OK: ok}}}
		if err := errors.Join(os.MkdirAll(r.Dir, 0o700), r.Save()); err != nil {
			t.Fatal(err)
		}
	}
	keep(false)
	if code, stdout, stderr := labRun(t, nil, "report", "--results", dir); code != exitThreshold || !strings.Contains(stdout, "short") || !strings.Contains(stderr, "failover: 7 s") {
		t.Errorf("a threshold that was not met: code %d\n%s%s", code, stdout, stderr)
	}
	keep(true)
	if code, stdout, _ := labRun(t, nil, "report", "--results", dir, "-o", "json"); code != exitOK || !json.Valid([]byte(stdout)) {
		t.Errorf("code %d\n%s", code, stdout)
	}
	// A result that was edited, or that has no digest, has not passed.
	for want, change := range map[string][2]string{
		"changed after the run":               {`"value": "7 s"`, `"value": "3 s"`},
		"recorded before the stricter checks": {`"digest": "`, `"digested": "`},
	} {
		keep(true)
		path := filepath.Join(dir, "quick", "1", "result.json")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(data), change[0], change[1], 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, stdout, _ := labRun(t, nil, "report", "--results", dir); code != exitThreshold || !strings.Contains(stdout, want) {
			t.Errorf("%s: code %d\n%s", want, code, stdout)
		}
	}
}

// The histories below a folder are checked: a number that was handed out twice is
// named, with its line, and so is the guarantee.
func TestCheckDir(t *testing.T) {
	record := func(second uint64) string {
		dir := t.TempDir()
		w, err := check.Create(filepath.Join(dir, "trial", "history"), "all", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []check.Event{
			experiment.LoadRun("billing"),
			check.Call{Start: 10, End: 20, Token: 1, First: 5, Last: 5},
			check.Call{Start: 30, End: 40, Token: 1, First: second, Last: second},
		} {
			if err := w.Write(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), check.WriteManifest(filepath.Join(dir, "trial", "history"))); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	if code, stdout, stderr := labRun(t, nil, "check", record(6)); code != exitOK || !strings.Contains(stdout, "pass") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr := labRun(t, nil, "check", record(5))
	if code != exitThreshold || !strings.Contains(stdout, "G6") || !strings.Contains(stdout, "all.ndjson:3") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	if code, _, stderr := labRun(t, nil, "check", t.TempDir()); code != exitFailure || !strings.Contains(stderr, "no history") {
		t.Errorf("an empty folder: code %d, %s", code, stderr)
	}
}
