package check

import (
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// Result of a check.
type Result string

// The results. Only Pass is good.
const (
	Pass    Result = "pass"
	Fail    Result = "fail"
	Unknown Result = "unknown"
)

// Verdict is what one check says.
type Verdict struct {
	// Guarantee is G1 to G8, or once, evidence, history.
	Guarantee string `json:"guarantee"`
	// Check is the name of the check: a guarantee can have several.
	Check  string `json:"check"`
	Result Result `json:"result"`
	// Looked is what was looked at, and how much of it.
	Looked []Count `json:"looked"`
	// Note says in words what the result rests on.
	Note string `json:"note,omitempty"`
	// Violations counts what was broken, Doubts what could not be told. The first few
	// of them are in Findings.
	Violations int       `json:"violations"`
	Doubts     int       `json:"doubts"`
	Findings   []Finding `json:"findings,omitempty"`
}

// Count is how many of something there were.
type Count struct {
	What string `json:"what"`
	N    int64  `json:"n"`
}

// Finding is a violation or a doubt, and the events that show it. The first is where
// it came to light.
type Finding struct {
	Doubt bool    `json:"doubt,omitempty"`
	What  string  `json:"what"`
	At    []Place `json:"at"`
}

func (f Finding) String() string {
	if len(f.At) == 0 {
		return f.What
	}
	at := make([]string, len(f.At))
	for i, p := range f.At {
		at[i] = p.String()
	}
	return f.What + " (" + strings.Join(at, ", ") + ")"
}

// Count returns how many of something were looked at.
func (v Verdict) Count(what string) int64 {
	for _, c := range v.Looked {
		if c.What == what {
			return c.N
		}
	}
	return 0
}

// String is for people: one line.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s %-14s %s:", v.Guarantee, v.Check, v.Result)
	for i, c := range v.Looked {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %d %s", c.N, c.What)
	}
	if v.Note != "" {
		b.WriteString("; " + v.Note)
	}
	for _, f := range v.Findings[:min(1, len(v.Findings))] {
		b.WriteString("; " + f.String())
	}
	return b.String()
}

// Report is what a history shows.
type Report struct {
	Run      Run       `json:"run"`
	Verdicts []Verdict `json:"verdicts"`
	// Manifest is the SHA-256 of the history's manifest; empty: it has none, because it was
	// recorded before the stricter checks.
	Manifest string `json:"manifest,omitempty"`
	// Terms are what the numbers and pictures of a run are made of, in the order of
	// their tokens.
	Terms []Term `json:"terms"`
	// Faults are those of the history, in order of their beginning.
	Faults []Fault `json:"faults,omitempty"`
	// Callers is what those who asked for numbers saw.
	Callers Callers `json:"callers"`
}

// Callers is what those who asked for numbers saw: how many calls were answered, with
// how many numbers between First and Last under how many tokens, and the longest time
// in which none was answered.
type Callers struct {
	Calls     int64   `json:"calls"`
	Numbers   uint64  `json:"numbers"`
	First     uint64  `json:"first"`
	Last      uint64  `json:"last"`
	Tokens    int     `json:"tokens"`
	SilenceMS float64 `json:"longest_silence_ms"`
}

// Passed reports whether there is a verdict and every one is Pass.
func (r Report) Passed() bool {
	for _, v := range r.Verdicts {
		if v.Result != Pass {
			return false
		}
	}
	return len(r.Verdicts) > 0
}

// Verdict returns that of a check.
func (r Report) Verdict(check string) (Verdict, bool) {
	for _, v := range r.Verdicts {
		if v.Check == check {
			return v, true
		}
	}
	return Verdict{}, false
}

// Term is what is known of one token. An instant of 0 is not known.
type Term struct {
	Token fence.Token `json:"token"`
	Node  string      `json:"node,omitempty"`
	// Vacant is when an observer saw the vacancy that this term ended.
	Vacant clock.Instant `json:"vacant,omitempty"`
	Began  clock.Instant `json:"began,omitempty"`
	// Ended is when the node saw its end, or was killed; for the last it is the end of
	// the history.
	Ended clock.Instant `json:"ended,omitempty"`
	Cause string        `json:"cause,omitempty"`
	// The leader's attempts to write.
	FirstAttempt clock.Instant `json:"first_attempt,omitempty"`
	LastAttempt  clock.Instant `json:"last_attempt,omitempty"`
	Attempts     int64         `json:"attempts"`
	Refused      int64         `json:"refused"`
	// RefusedAt are instants of attempts that were refused, the first few.
	RefusedAt []clock.Instant `json:"refused_at,omitempty"`
	// When clients were first and last answered with this token.
	FirstAnswer clock.Instant `json:"first_answer,omitempty"`
	LastAnswer  clock.Instant `json:"last_answer,omitempty"`
	Answers     int64         `json:"answers"`
}

// maxFindings is how many findings a verdict tells; all are counted.
const maxFindings = 20

// tally becomes a verdict.
type tally struct {
	v      Verdict
	counts map[string]int64
	order  []string
	full   bool
}

func newTally(guarantee, check string, looked ...string) *tally {
	return &tally{v: Verdict{Guarantee: guarantee, Check: check}, counts: map[string]int64{}, order: looked}
}

func (t *tally) count(what string) { t.counts[what]++ }

// tooMany reports whether n things are more than are kept in memory, and tells that once:
// what is not kept is not compared.
func (t *tally) tooMany(n, most int, at ...Place) bool {
	if n >= most && !t.full {
		t.full = true
		t.doubt(at, "more than %d things to compare", most)
	}
	return n >= most
}

func (t *tally) violated(at []Place, format string, args ...any) {
	t.v.Violations++
	t.find(Finding{What: fmt.Sprintf(format, args...), At: at})
}

func (t *tally) doubt(at []Place, format string, args ...any) {
	t.v.Doubts++
	t.find(Finding{Doubt: true, What: fmt.Sprintf(format, args...), At: at})
}

// find keeps the first few; a violation takes the place of a doubt.
func (t *tally) find(f Finding) {
	if len(t.v.Findings) < maxFindings {
		t.v.Findings = append(t.v.Findings, f)
		return
	}
	if f.Doubt {
		return
	}
	for i := range t.v.Findings {
		if t.v.Findings[i].Doubt {
			t.v.Findings[i] = f
			return
		}
	}
}

// verdict: what was named first in looked must have been seen, or nothing was.
func (t *tally) verdict() Verdict {
	for _, what := range t.order {
		t.v.Looked = append(t.v.Looked, Count{what, t.counts[what]})
	}
	switch {
	case t.v.Violations > 0:
		t.v.Result = Fail
		first := t.v.Findings[:0:0]
		for _, doubt := range []bool{false, true} {
			for _, f := range t.v.Findings {
				if f.Doubt == doubt {
					first = append(first, f)
				}
			}
		}
		t.v.Findings = first
	case t.v.Doubts > 0:
		t.v.Result = Unknown
	case t.counts[t.order[0]] == 0:
		t.v.Result = Unknown
		t.v.Findings = append(t.v.Findings, Finding{Doubt: true, What: "there was nothing to look at: no " + t.order[0]})
		t.v.Doubts++
	default:
		t.v.Result = Pass
	}
	return t.v
}
