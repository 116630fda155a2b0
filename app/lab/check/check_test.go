package check

import (
	"strings"
	"testing"
)

// A history in which everything holds passes every check, and each has looked at
// something.
func TestGood(t *testing.T) {
	for seed := range uint64(10) {
		r := good(seed).check(t)
		for _, v := range r.Verdicts {
			if v.Result != Pass {
				t.Errorf("seed %d: %v", seed, v)
			}
		}
		if !r.Passed() || len(r.Verdicts) != len(Names())-1 {
			t.Fatalf("seed %d: %d verdicts, passed: %v", seed, len(r.Verdicts), r.Passed())
		}
	}
}

// A check that finds nothing to look at has not passed.
func TestNothingSeen(t *testing.T) {
	run := good(1)["run"][0].(Run)
	run.Checks, run.Jobs = nil, nil
	r := history{"run": {run}}.check(t)
	if len(r.Verdicts) != len(Names()) {
		t.Fatalf("%d verdicts, want one of each check", len(r.Verdicts))
	}
	for _, v := range r.Verdicts {
		if v.Check != "history" && v.Result != Unknown {
			t.Errorf("%v; want unknown", v)
		}
	}
	if r.Passed() {
		t.Error("passed")
	}
}

// A check that does not exist is said to be so.
func TestUnknownCheck(t *testing.T) {
	_, err := Dir(t.Context(), good(1).save(t), Options{Checks: []string{"fense"}})
	if err == nil || !strings.Contains(err.Error(), `"fense"`) {
		t.Fatalf("got %v", err)
	}
}

// The terms of a report say when who believed, wrote and answered.
func TestTerms(t *testing.T) {
	h := good(7)
	r := h.check(t)
	began := find(h, "nodes", func(b Belief) bool { return b.State == Began })
	if len(r.Terms) != len(began) {
		t.Fatalf("%d terms, want %d", len(r.Terms), len(began))
	}
	refused := int64(0)
	for i, x := range r.Terms {
		b := h["nodes"][began[i]].(Belief)
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
