package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/server/cli"
)

// Wrong usage is an error before anything is started.
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

// runOne runs a short form of experiment 7 against a real fleet.
func runOne(t *testing.T, change func(*trial.Trial)) (out, said string, err error) {
	t.Helper()
	found, err := catalogue.Find("7")
	if err != nil {
		t.Fatal(err)
	}
	e := found[0]
	e.Trials = func(size experiment.Size) []trial.Trial {
		tr := found[0].Trials(size)[0]
		tr.Rounds, tr.Rate = 1, 100
		change(&tr)
		return []trial.Trial{tr}
	}
	cmd := newRun()
	var all strings.Builder
	cmd.SetOut(&all)
	cmd.SetErr(&all)
	cmd.SetContext(t.Context())
	r := runFlags{out: t.TempDir()}
	err = r.perform(cmd, []experiment.Experiment{e}, experiment.Quick)
	return r.out, all.String(), err
}

// An experiment whose expectation is wrong, here that the sequence is broken, ends with the exit
// code for missed bars. lab check refuses its history, which names fewer checks than the
// experiment has.
func TestRunBrokenExpectation(t *testing.T) {
	out, said, err := runOne(t, func(t *trial.Trial) {
		t.Pass, t.Broken = []string{"history"}, []string{"sequence"}
	})
	var exit *cli.ExitError
	if !errors.As(err, &exit) || exit.Code != exitThreshold || !strings.Contains(err.Error(), "sequence is pass") {
		t.Errorf("%v\n%s", err, said)
	}
	if !strings.Contains(said, "round 1 of 1") || !strings.Contains(said, "  missed ") {
		t.Errorf("it does not say what happens, or what came out:\n%s", said)
	}
	if code, stdout, stderr := labRun(t, nil, "check", out); code != exitThreshold || !strings.Contains(stdout, "Checks: the run says [history sequence]") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
}

// The recording of a real fleet passes, and is refused after each change that a forger
// makes to its files.
func TestForgedRecording(t *testing.T) {
	good, said, err := runOne(t, func(t *trial.Trial) { t.Rounds = 2 })
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if code, stdout, stderr := labRun(t, nil, "check", good); code != exitOK {
		t.Fatalf("code %d\n%s%s", code, stdout, stderr)
	}
	// replace edits a file: it must have the text.
	replace := func(path, old, text string) error {
		data, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(data), old) {
			err = fmt.Errorf("%s has no %s", path, old)
		}
		return errors.Join(err, os.WriteFile(path, []byte(strings.Replace(string(data), old, text, 1)), 0o600))
	}
	for _, f := range []struct {
		name, want string
		forge      func(trial string) error
	}{
		{"a node's file removed", "node-2.ndjson", func(trial string) error { return os.Remove(filepath.Join(trial, "history", "node-2.ndjson")) }},
		{"a node's file removed, with a new manifest", "processes of 2", func(trial string) error {
			return errors.Join(os.Remove(filepath.Join(trial, "history", "node-2.ndjson")), history.WriteManifest(filepath.Join(trial, "history")))
		}},
		{"a byte changed", "the content was changed", func(trial string) error {
			return replace(filepath.Join(trial, "history", "calls.ndjson"), `"token":1,`, `"token":2,`)
		}},
		{"no manifest", "recorded before the stricter checks", func(trial string) error { return os.Remove(filepath.Join(trial, "history", "manifest.json")) }},
		{"no database", "cannot be read", func(trial string) error { return os.Remove(filepath.Join(trial, "ledger.db")) }},
		{"the kept result edited", "the result beside this history says that fence is fail", func(trial string) error {
			return replace(filepath.Join(trial, "outcome.json"), `"check": "fence",
          "result": "pass"`, `"check": "fence",
          "result": "fail"`)
		}},
	} {
		dir := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
			t.Fatal(err)
		}
		if err := f.forge(filepath.Join(dir, "quick", "7", "etcd-2s")); err != nil {
			t.Fatal(f.name, err)
		}
		if code, stdout, stderr := labRun(t, nil, "check", dir); code != exitThreshold || !strings.Contains(stdout, f.want) {
			t.Errorf("%s: code %d\n%s%s", f.name, code, stdout, stderr)
		}
	}
}

// lab report prints the results, and ends with the exit code for missed bars if one was missed
// or there is no result.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := labRun(t, nil, "report", "--results", dir); code != exitThreshold || !strings.Contains(stderr, "nothing to judge") {
		t.Errorf("nothing: code %d, %s", code, stderr)
	}
	keep := func(ok bool) {
		r := experiment.Result{Experiment: catalogue.All()[0], Size: experiment.Quick, Dir: filepath.Join(dir, "quick", "1"), Summary: measure.Summary{Thresholds: []measure.Threshold{{Name: "failover", Value: "7 s", Bar: "< 5 s", OK: ok}}}}
		if err := errors.Join(os.MkdirAll(r.Dir, 0o700), r.Save()); err != nil {
			t.Fatal(err)
		}
	}
	keep(false)
	if code, stdout, stderr := labRun(t, nil, "report", "--results", dir); code != exitThreshold || !strings.Contains(stdout, "missed") || !strings.Contains(stderr, "failover: 7 s") {
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

// lab check finds the histories below a folder, and names a number that was handed out twice,
// with its line and the guarantee.
func TestCheckDir(t *testing.T) {
	record := func(second uint64) string {
		dir := t.TempDir()
		w, err := history.Create(filepath.Join(dir, "trial", "history"), "all")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []history.Event{
			catalogue.LoadRun("billing"),
			history.Call{Start: 10, End: 20, Token: 1, First: 5, Last: 5},
			history.Call{Start: 30, End: 40, Token: 1, First: second, Last: second},
		} {
			if err := w.Write(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), history.WriteManifest(filepath.Join(dir, "trial", "history"))); err != nil {
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
