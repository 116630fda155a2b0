package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// result returns a result as a run could make it.
func result(size experiment.Size, value string) experiment.Result {
	e, err := catalogue.Find("4")
	if err != nil {
		panic(err)
	}
	s := func(n int) clock.Instant { return clock.Instant(time.Duration(n) * time.Second) }
	o := trial.Outcome{Trial: e[0].Trials(size)[0], Dir: "/somewhere/on/this/machine", Seconds: 12}
	o.Load.Calls = 1234567
	o.Damage.Refused = 2
	o.Report = verdict.Report{
		Run:   history.Run{At: s(1), TTLMS: 2000},
		Terms: []verdict.Term{{Token: 1, Node: "node-1", Began: s(2), Ended: s(9)}, {Token: 2, Node: "node-2", Began: s(6), Ended: s(12)}},
		Faults: []history.Fault{
			{Name: "pause", Begun: s(4), Healed: s(8), Evidence: "it stood"},
			{Name: "pause", Begun: s(3), Healed: s(3), Missed: "the leader changed"},
			{Name: "pause by", PartOf: "pause", Begun: s(4), Healed: s(8)},
		},
		Verdicts: []verdict.Verdict{
			{Guarantee: "G2", Check: "fence", Result: verdict.Pass, Looked: []verdict.Count{{What: "effects accepted", N: 77}}},
			{Guarantee: "G7", Check: "recovery", Result: verdict.Pass, Note: "bound 8.4s, longest 912ms"},
		},
	}
	rows := [][]string{}
	for range 60 {
		rows = append(rows, []string{"etcd-2s", "refused | so"})
	}
	return experiment.Result{
		Experiment: e[0], Size: size, Command: "lab run 4 --seed 4", Key: "key", Machine: "2 cores", Dir: o.Dir, BeganAt: time.Unix(1e9, 0), Seconds: 12,
		Summary: measure.Summary{
			Thresholds: []measure.Threshold{{Name: "etcd-2s: refused", Value: value, Bar: "2 of 2", OK: true}, {Name: "etcd-2s: late", Value: "7 s", Bar: "< 5 s"}},
			Tables:     []measure.Table{{Title: "rounds", Head: []string{"trial", "what"}, Rows: rows}, {Title: experiment.ChecksTitle, Head: []string{"x"}, Rows: rows}},
		},
		Outcomes: []trial.Outcome{o},
	}
}

const testComments = `{{define "about 4"}}Our word: {{value "4" "etcd-2s: refused"}}.{{end}}
{{.Experiments}} of {{len experiments}}. {{range experiments}}{{show .}}
{{about .}}{{details .}}{{end}}
{{.Faults}} faults of {{.Kinds}} kinds
each {{each "4" "refused"}}; cell {{cell "4" "rounds" "etcd-2s" "what"}}; none {{value "4" "no such"}}; never {{value "1" "x"}}; calls {{count .Calls}}; from {{source "4"}}
{{guarantees}} {{budget 99.995 4}} {{bound "etcd" "3s"}} {{measured "handover gap"}}
`

func docs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		filepath.Join(folder, comments): testComments,
		"fleet.md":                      "handover gap, p50    11.0 ms (p95 18.3 ms)    <= 20 ms    ok\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A result becomes a record without folders of this machine, with pictures. The text has the
// comments, the numbers that they name, and "not run" for missing ones. Made again it is the
// same.
func TestKeepAndFindings(t *testing.T) {
	dir := docs(t)
	kept, err := Keep(dir, []experiment.Result{result(experiment.Full, "2 of 2")})
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	record, err := os.ReadFile(filepath.Join(dir, folder, "4.json"))
	if err != nil || strings.Contains(string(record), "somewhere") || len(record) > 20<<10 {
		t.Errorf("%v, %d bytes:\n%s", err, len(record), record)
	}
	for _, name := range []string{"4-timeline-etcd-2s.svg", "4-timeline-etcd-2s.png"} {
		if _, err := os.Stat(filepath.Join(dir, folder, name)); err != nil {
			t.Error(err)
		}
	}
	text, missing, err := Findings(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"### Experiment 4: a pause", "`lab run 4 --seed 4`, full", "Our word: 2 of 2.", "each etcd-2s 2 of 2;", `cell refused | so;`, "none *not run*", "never *not run*",
		"calls 1,234,567", "| **missed** |", "1 of 2 bars were met. **Missed:** etcd-2s: late: 7 s, wanted < 5 s.", "lab/4-timeline-etcd-2s.svg", `refused \| so`, "and 27 more in the record", "### Experiment 1: clean kill under load\n\n*not run*",
		"1 faults of 1 kinds", "| 1 pause |", "| etcd-2s | G7 | `recovery` | 8.4s | 912ms |",
		"| G2 | `fence` | 1 of 1 | 77 effects accepted |", "32.4 s 4.1 s 11.0 ms (p95 18.3 ms)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if len(missing) != 1 || !strings.Contains(missing[0], "no such") {
		t.Errorf("missing: %q", missing)
	}
	if again, _, err := Findings(dir); err != nil || again != text {
		t.Errorf("made again it is another: %v", err)
	}
}

// A quick result is recorded if there is no other, and never replaces a full one.
func TestQuickIsNoReplacement(t *testing.T) {
	dir := docs(t)
	for _, tt := range []struct {
		size        experiment.Size
		value, want string
	}{
		{experiment.Quick, "first", "first"},
		{experiment.Quick, "second", "second"},
		{experiment.Full, "third", "third"},
		{experiment.Quick, "fourth", "third"},
	} {
		if _, err := Keep(dir, []experiment.Result{result(tt.size, tt.value)}); err != nil {
			t.Fatal(err)
		}
		text, _, err := Findings(dir)
		if err != nil || !strings.Contains(text, "Our word: "+tt.want+".") {
			t.Errorf("after %s: %v\n%s", tt.value, err, text)
		}
		if quick := strings.Contains(text, "the full one was not run"); quick != (tt.want != "third") {
			t.Errorf("after %s: said to be quick: %v", tt.value, quick)
		}
	}
}

// A broken template and a broken record are errors that name the file.
func TestBadDocs(t *testing.T) {
	dir := docs(t)
	if err := os.WriteFile(filepath.Join(dir, folder, "x.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Findings(dir); err == nil || !strings.Contains(err.Error(), "x.json") {
		t.Error(err)
	}
	dir = docs(t)
	if err := os.WriteFile(filepath.Join(dir, folder, comments), []byte("{{nothing}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Findings(dir); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Error(err)
	}
}
