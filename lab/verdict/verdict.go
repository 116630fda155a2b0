// Package verdict holds the results of checks: a [Report] has one [Verdict] for each.
package verdict

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
)

// Result of a check.
type Result string

// The results. Only Pass is good.
const (
	Pass    Result = "pass"
	Fail    Result = "fail"
	Unknown Result = "unknown"
)

// Verdict is the result of one check.
type Verdict struct {
	// Guarantee is G1 to G8, or once, evidence, history.
	Guarantee string `json:"guarantee"`
	// Check is the name of the check. A guarantee can have several.
	Check  string `json:"check"`
	Result Result `json:"result"`
	// Looked is what was compared, and how much of it.
	Looked []Count `json:"looked"`
	// Note gives figures behind the result.
	Note string `json:"note,omitempty"`
	// Violations counts what is broken, Doubts what cannot be decided. Findings has the
	// first few of both.
	Violations int       `json:"violations"`
	Doubts     int       `json:"doubts"`
	Findings   []Finding `json:"findings,omitempty"`
}

// New returns the verdict of a check that has counted nothing yet of what it looks at.
func New(guarantee, check string, looked ...string) *Verdict {
	v := &Verdict{Guarantee: guarantee, Check: check}
	for _, what := range looked {
		v.Looked = append(v.Looked, Count{What: what})
	}
	return v
}

// Count is how many of something there were.
type Count struct {
	What string `json:"what"`
	N    int64  `json:"n"`
}

// Finding is a violation or a doubt, and the events that show it. The first event is the
// one at which it was found.
type Finding struct {
	Doubt bool            `json:"doubt,omitempty"`
	What  string          `json:"what"`
	At    []history.Place `json:"at"`
}

func (f Finding) String() string {
	if len(f.At) == 0 {
		return f.What
	}
	var at []string
	for _, p := range f.At {
		at = append(at, p.String())
	}
	return f.What + " (" + strings.Join(at, ", ") + ")"
}

// Count returns how many of something were compared.
func (v Verdict) Count(what string) int64 { return *v.Counter(what) }

// Counter returns the count of something.
func (v *Verdict) Counter(what string) *int64 {
	for i := range v.Looked {
		if v.Looked[i].What == what {
			return &v.Looked[i].N
		}
	}
	return new(int64)
}

// Add counts one more.
func (v *Verdict) Add(what string) { *v.Counter(what)++ }

// String returns the verdict as one line for people.
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
	if len(v.Findings) > 0 {
		b.WriteString("; " + v.Findings[0].String())
	}
	return b.String()
}

// MaxFindings is how many findings a verdict has; all are counted.
const MaxFindings = 20

// At are the places of a finding.
type At []history.Place

// Violated adds a violation.
func (v *Verdict) Violated(at At, format string, args ...any) {
	v.Violations++
	v.Find(Finding{What: fmt.Sprintf(format, args...), At: at})
}

// Doubt adds what cannot be decided.
func (v *Verdict) Doubt(at At, format string, args ...any) {
	v.Doubts++
	v.Find(Finding{Doubt: true, What: fmt.Sprintf(format, args...), At: at})
}

// Find keeps the first findings. A violation replaces a doubt.
func (v *Verdict) Find(f Finding) {
	if len(v.Findings) < MaxFindings {
		v.Findings = append(v.Findings, f)
	} else if i := slices.IndexFunc(v.Findings, func(f Finding) bool { return f.Doubt }); i >= 0 && !f.Doubt {
		v.Findings[i] = f
	}
}

// Decide sets the result. If nothing of the first kind in Looked was compared, the result
// is unknown. Violations come first in Findings.
func (v *Verdict) Decide() Verdict {
	if v.Violations+v.Doubts == 0 && v.Looked[0].N == 0 {
		v.Doubt(nil, "nothing to compare: no %s", v.Looked[0].What)
	}
	switch {
	case v.Violations > 0:
		v.Result = Fail
	case v.Doubts > 0:
		v.Result = Unknown
	default:
		v.Result = Pass
	}
	rank := func(f Finding) int { return map[bool]int{true: 1}[f.Doubt] }
	slices.SortStableFunc(v.Findings, func(a, b Finding) int { return rank(a) - rank(b) })
	return *v
}

// Report is what a history shows.
type Report struct {
	Run      history.Run `json:"run"`
	Verdicts []Verdict   `json:"verdicts"`
	// Manifest is the SHA-256 of the history's manifest. It is empty for histories recorded
	// before the stricter checks, which have none.
	Manifest string `json:"manifest,omitempty"`
	// Terms are in the order of their tokens. Figures and pictures are made from them.
	Terms []Term `json:"terms"`
	// Faults are in the order of their beginning.
	Faults []history.Fault `json:"faults,omitempty"`
	// Callers is what the clients saw.
	Callers Callers `json:"callers"`
}

// Callers is what the clients saw: how many calls were answered, with how many numbers
// between First and Last under how many tokens, and the longest time without an answer.
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
	return len(r.Verdicts) > 0 && !slices.ContainsFunc(r.Verdicts, func(v Verdict) bool { return v.Result != Pass })
}

// Verdict returns the verdict of a check.
func (r Report) Verdict(check string) (Verdict, bool) {
	i := slices.IndexFunc(r.Verdicts, func(v Verdict) bool { return v.Check == check })
	if i < 0 {
		return Verdict{}, false
	}
	return r.Verdicts[i], true
}

// Term is what is known of one token. An instant of 0 is not known.
type Term struct {
	Token fence.Token `json:"token"`
	Node  string      `json:"node,omitempty"`
	// Vacant is when an observer saw the vacancy that this term ended.
	Vacant clock.Instant `json:"vacant,omitempty"`
	Began  clock.Instant `json:"began,omitempty"`
	// Ended is when the node noticed the end, or was killed; for the last term it is the end
	// of the history.
	Ended clock.Instant `json:"ended,omitempty"`
	Cause string        `json:"cause,omitempty"`
	// The leader's attempts to write.
	FirstAttempt clock.Instant `json:"first_attempt,omitempty"`
	LastAttempt  clock.Instant `json:"last_attempt,omitempty"`
	Attempts     int64         `json:"attempts"`
	Refused      int64         `json:"refused"`
	// RefusedAt are the instants of the first attempts that were refused.
	RefusedAt []clock.Instant `json:"refused_at,omitempty"`
	// When clients were first and last answered with this token.
	FirstAnswer clock.Instant `json:"first_answer,omitempty"`
	LastAnswer  clock.Instant `json:"last_answer,omitempty"`
	Answers     int64         `json:"answers"`
}
