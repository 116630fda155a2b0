package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// A history in which everything holds passes every check, and each check has compared
// something.
func TestGood(t *testing.T) {
	for seed := range uint64(10) {
		r := good(seed).check(t)
		for _, v := range r.Verdicts {
			if v.Result != verdict.Pass {
				t.Errorf("seed %d: %v", seed, v)
			}
		}
		if !r.Passed() || len(r.Verdicts) != len(Names())-1 {
			t.Fatalf("seed %d: %d verdicts, passed: %v", seed, len(r.Verdicts), r.Passed())
		}
	}
}

// Faults that missed or are part of another fault are not counted and need no evidence. They
// still excuse what their class excuses.
func TestFaultsThatDoNotCount(t *testing.T) {
	h := good(1)
	v, _ := h.check(t).Verdict("evidence")
	all := find(h, "faults", func(f history.Fault) bool { return f.Healed != 0 })
	own := find(h, "faults", func(f history.Fault) bool { return f.Healed != 0 && f.Counts() })
	if v.Count("faults") != int64(len(own)) || v.Count("missed") != 1 || len(all) != len(own)+2 {
		t.Errorf("%v; want %d of %d lines", v, len(own), len(all))
	}
	i := find(h, "faults", fault(history.ClassPause))[0]
	for _, j := range []int{i - 1, i} {
		edit(h, "faults", j, func(f *history.Fault) { f.Missed = "the leader changed" })
	}
	r := h.check(t)
	if v, _ := r.Verdict("evidence"); v.Count("faults") != int64(len(own)-1) || v.Result != verdict.Pass {
		t.Errorf("%v", v)
	}
	if v, _ := r.Verdict("one-believer"); v.Result != verdict.Pass || v.Count("excepted") == 0 {
		t.Errorf("%v", v)
	}
}

// The bound of G7 includes time for a watch that failed unnoticed only if a fault can have
// caused that. The note has the bound and the longest time that was seen.
func TestSilentWatch(t *testing.T) {
	for _, tt := range []struct {
		class string
		want  verdict.Result
	}{{"", verdict.Fail}, {history.ClassSilent, verdict.Pass}} {
		h := good(1)
		end := silence(h)
		h["calls"] = append(h["calls"], history.Call{Start: end, End: end.Add(10 * time.Second), First: 1 << 40, Last: 1 << 40, Token: 1 << 20})
		i := find(h, "faults", func(f history.Fault) bool { return f.Name == "partition-leader" })[0]
		edit(h, "faults", i, func(f *history.Fault) { f.Class = tt.class })
		v, _ := h.check(t).Verdict("recovery")
		if v.Result != tt.want || !strings.Contains(v.Note, ", longest 10s") {
			t.Errorf("%q: %v, want %s", tt.class, v, tt.want)
		}
	}
}

// Instants that nobody ticked are counted.
func TestInstantsNotTicked(t *testing.T) {
	h := good(1)
	for _, i := range find(h, "ledger", func(e history.Effect) bool { return e.What == history.EffectTick && e.N > 3 }) {
		edit(h, "ledger", i, func(e *history.Effect) { e.InstantMS += 3000 })
	}
	if v, _ := h.check(t).Verdict("once"); v.Result != verdict.Pass || v.Count("instants not ticked") != 3 {
		t.Errorf("%v", v)
	}
}

// A check that finds nothing to compare has not passed.
func TestNothingSeen(t *testing.T) {
	run := good(1)["run"][0].(history.Run)
	run.Checks, run.Jobs = nil, nil
	r := files{"run": {run}}.check(t)
	if len(r.Verdicts) != len(Names()) {
		t.Fatalf("%d verdicts, want one of each check", len(r.Verdicts))
	}
	for _, v := range r.Verdicts {
		if v.Check != "history" && v.Result != verdict.Unknown {
			t.Errorf("%v; want unknown", v)
		}
	}
	if r.Passed() {
		t.Error("passed")
	}
}

// An unknown check is an error.
func TestUnknownCheck(t *testing.T) {
	_, err := Dir(t.Context(), good(1).save(t), Options{Checks: []string{"fense"}})
	if err == nil || !strings.Contains(err.Error(), `"fense"`) {
		t.Fatalf("got %v", err)
	}
}

// The terms of a report say which node believed, wrote and answered, and when.
func TestTerms(t *testing.T) {
	h := good(7)
	r := h.check(t)
	began := find(h, "nodes", func(b history.Belief) bool { return b.State == history.Began })
	if len(r.Terms) != len(began) {
		t.Fatalf("%d terms, want %d", len(r.Terms), len(began))
	}
	refused := int64(0)
	for i, x := range r.Terms {
		b := h["nodes"][began[i]].(history.Belief)
		if x.Token != b.Token || x.Node != b.Node || x.Began != b.At || x.Answers == 0 || x.Attempts == 0 ||
			x.FirstAttempt < x.Began || x.Ended < x.Began || x.LastAnswer < x.FirstAnswer {
			t.Errorf("term %+v of %+v", x, b)
		}
		if i > 0 && x.Vacant == 0 && r.Terms[i-1].Cause != "transferred" {
			t.Errorf("the vacancy before token %d was seen and is not told", x.Token)
		}
		if x.Vacant > x.Began {
			t.Errorf("token %d: vacant %v after its term began", x.Token, x.Vacant.Sub(x.Began))
		}
		refused += x.Refused
	}
	if refused != 1 {
		t.Errorf("%d refused, want 1", refused)
	}
}

// If a history has more than fits into memory, no check passes.
func TestFull(t *testing.T) {
	f := facts.New()
	if f.Room(facts.Max+1, facts.Max) || !f.Full {
		t.Fatal("there is room for more than the limit")
	}
	for _, v := range newScan(f, table(t.Context(), ""), Names()).verdicts() {
		if v.Result != verdict.Unknown || !strings.Contains(fmt.Sprint(v.Findings), "limit") {
			t.Errorf("%v; want unknown", v)
		}
	}
}

// The finding of a number that was handed out twice names both calls.
func TestReusedNamesBoth(t *testing.T) {
	h := files{"a": {history.Call{Start: 1, End: 2, First: 7, Last: 9, Token: 1}}, "b": {
		history.Call{Start: 3, End: 4, First: 12, Last: 12, Token: 1},
		history.Call{Start: 5, End: 6, First: 8, Last: 8, Token: 1},
	}}
	v, _ := h.check(t).Verdict("sequence")
	want := []history.Place{{File: "b.ndjson", Line: 2}, {File: "a.ndjson", Line: 1}}
	if !slices.ContainsFunc(v.Findings, func(f verdict.Finding) bool { return slices.Equal(f.At, want) }) {
		t.Errorf("%v; want a finding at %v", v.Findings, want)
	}
}

// A finding names its places as they are.
func TestFindingString(t *testing.T) {
	f := verdict.Finding{What: "x", At: []history.Place{{File: "ledger.db tick", Line: 1}, {File: "calls.ndjson", Line: 2}}}
	if got := f.String(); got != "x (ledger.db tick:1, calls.ndjson:2)" {
		t.Error(got)
	}
}
