// Package facts keeps what the checks of a history need in memory: its terms, grants, faults
// and processes, and of the calls, attempts and effects, of which there are millions, the
// first and the last of each token.
package facts

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// Max is how many events, tokens or jobs are kept in memory.
const Max = 1 << 20

// Facts is what is kept of a history.
type Facts struct {
	Run  history.Run
	Runs int
	// Terms in the order in which they began.
	Terms  []*Term
	ByName map[TermName]*Term
	// Grants and Faults in the order of time.
	Grants []history.Grant
	Faults []history.Fault
	Seals  []history.Seal
	// Processes of each node, in the order of their starts.
	Processes map[string][]history.Process
	// Records are further events that nodes wrote. They show that the node ran.
	Records []Record
	// Reopened are second beginnings of a term; Strays are ends without a beginning.
	Reopened, Strays []history.Belief

	// Accepted are the numbers that took effect, if the history is complete.
	Accepted Allocations
	Attempts map[fence.Token]*Attempts
	Answers  map[fence.Token]*Answers
	Callers  verdict.Callers
	answered clock.Instant // when a client was last answered

	// Reused are calls whose numbers were handed out before.
	Reused []Reuse

	Damage []history.Damage
	// Old: recorded before the stricter checks, without some events that they compare.
	Old bool
	// Full: there was more than fits into memory, so no verdict is certain.
	Full bool
}

// Record is an event of a node. Trouble means that it shows the effect of a fault.
type Record struct {
	Node    string
	When    clock.Instant
	At      history.Place
	Trouble bool
}

// Reuse is a call whose numbers were handed out before, to the call at FirstUse.
type Reuse struct {
	history.Call
	FirstUse history.Place
}

// TermName is a node and the token of its term.
type TermName struct {
	Node  string
	Token fence.Token
}

// Term is a term as its node recorded it.
type Term struct {
	TermName
	Began, Ended     clock.Instant // Ended is Never while the node believes
	Cause            string
	BeganAt, EndedAt history.Place
}

// New returns facts without an event.
func New() *Facts {
	return &Facts{
		ByName: map[TermName]*Term{}, Processes: map[string][]history.Process{},
		Attempts: map[fence.Token]*Attempts{}, Answers: map[fence.Token]*Answers{},
	}
}

// Gather reads the events that are kept.
func (f *Facts) Gather(ctx context.Context, dir *history.Dir) error {
	f.Old = !dir.HasManifest()
	byID := map[string]int{}
	kept := 0
	see := func(e history.Event) {
		if kept++; !f.Room(kept, Max) {
			return
		}
		switch e := e.(type) {
		case history.Run:
			f.Run = e
			f.Runs++
		case history.Process:
			f.Processes[e.Node] = append(f.Processes[e.Node], e)
		case history.Belief:
			f.belief(e)
			f.Records = append(f.Records, Record{e.Node, e.At, e.Line, e.State == history.Missed || e.State == history.Ended && !Orderly(e.Cause)})
		case history.Grant:
			f.Grants = append(f.Grants, e)
			node, _, _ := strings.Cut(e.Observer, "/")
			f.Records = append(f.Records, Record{node, e.At, e.Line, e.State == history.Blind})
		case history.Seal:
			f.Seals = append(f.Seals, e)
			f.Records = append(f.Records, Record{e.Node, e.At, e.Line, false})
		case history.Fault:
			i, again := byID[e.ID]
			if e.ID == "" || !again {
				byID[e.ID] = len(f.Faults)
				f.Faults = append(f.Faults, e)
				break
			}
			old := &f.Faults[i]
			old.Begun, old.Healed = min(old.Begun, e.Begun), max(old.Healed, e.Healed)
			old.Set, old.Held = max(old.Set, e.Set), max(old.Held, e.Held)
			old.Missed, old.PartOf, old.Evidence = cmp.Or(old.Missed, e.Missed), cmp.Or(old.PartOf, e.PartOf), old.Evidence+e.Evidence
			if old.Proof.Kind == "" {
				old.Proof = e.Proof
			}
		}
	}
	if err := dir.Each(ctx, see, "run", "process", "belief", "grant", "seal", "fault"); err != nil {
		return err
	}
	for i := range f.Faults {
		if f.Faults[i].Healed == 0 {
			f.Faults[i].Healed = clock.Never
		}
	}
	for _, all := range f.Processes {
		slices.SortStableFunc(all, func(a, b history.Process) int { return cmp.Compare(a.At, b.At) })
	}
	slices.SortStableFunc(f.Faults, func(a, b history.Fault) int { return cmp.Compare(a.Begun, b.Begun) })
	slices.SortStableFunc(f.Grants, func(a, b history.Grant) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(f.Terms, func(a, b *Term) int { return cmp.Compare(a.Began, b.Began) })
	// A process that was killed could not record the end of its term.
	for _, k := range f.Faults {
		for _, t := range f.Terms {
			if k.Class == history.ClassKill && t.Node == k.Target && t.Began < k.Begun && t.Ended > k.Begun {
				t.Ended, t.EndedAt, t.Cause = k.Begun, k.Line, Killed
			}
		}
	}
	return nil
}

// belief adds what a node recorded of a term. The first end counts.
func (f *Facts) belief(b history.Belief) {
	name := TermName{b.Node, b.Token}
	t := f.ByName[name]
	switch {
	case b.State == history.Began && t != nil:
		f.Reopened = append(f.Reopened, b)
	case b.State == history.Began:
		t = &Term{TermName: name, Began: b.At, Ended: clock.Never, BeganAt: b.Line}
		f.ByName[name] = t
		f.Terms = append(f.Terms, t)
	case t == nil && b.State == history.Ended:
		f.Strays = append(f.Strays, b)
	case t == nil || b.State == history.Missed: // it belongs to no term
	case b.At < t.Ended:
		t.Ended, t.EndedAt, t.Cause = b.At, b.Line, cmp.Or(b.Cause, t.Cause)
	case b.State == history.Ended && t.Cause == "":
		t.Cause = b.Cause
	}
}

// Killed is the cause of an end that the process could not record.
const Killed = "killed"

// Orderly reports whether the leader ended the term itself.
func Orderly(cause string) bool {
	return cause == "resigned" || cause == "transferred" || cause == "unhealthy"
}

// Whole reports whether the history has everything that the processes of a fleet recorded.
func (f *Facts) Whole() bool { return f.Run.Nodes > 0 && !f.Old }

// Room reports whether n things fit into memory.
func (f *Facts) Room(n, most int) bool {
	f.Full = f.Full || n > most
	return n <= most
}

// Damaged records that a file is not complete, once for each place.
func (f *Facts) Damaged(d history.Damage) {
	if !slices.ContainsFunc(f.Damage, func(o history.Damage) bool { return o.At == d.At }) {
		f.Damage = append(f.Damage, d)
	}
}

// Expect replaces what the history says of its run by what the experiment requires.
func (f *Facts) Expect(require func(history.Run) (history.Run, error)) {
	want, err := require(f.Run)
	if err != nil {
		f.Damaged(history.Damage{At: f.Run.Line, What: err.Error()})
		f.Run.Checks = nil // all of them
		return
	}
	got := f.Run
	if !slices.EqualFunc(got.Jobs, want.Jobs, func(got, want history.Job) bool {
		return got.EveryMS == want.EveryMS && got.FirstMS > 0 && (got.EveryMS == 0 || got.LastMS >= got.FirstMS)
	}) {
		f.Damaged(history.Damage{At: f.Run.Line, What: "Jobs: not those of the experiment"})
	}
	want.Line, want.At, want.Jobs = got.Line, got.At, got.Jobs
	for _, difference := range differences(got, want) {
		f.Damaged(history.Damage{At: f.Run.Line, What: difference})
	}
	f.Run = want
}

// Span is a part of time. Its end is not included.
type Span struct{ From, To clock.Instant }

// Has reports whether an instant is in it.
func (s Span) Has(at clock.Instant) bool { return s.From <= at && at < s.To }

// Certain is when a fault was certainly in effect.
func Certain(f history.Fault) Span { return Span{cmp.Or(f.Set, f.Begun), cmp.Or(f.Held, f.Healed)} }

// Excused is when a node's belief does not count for G3.
func (f *Facts) Excused(node string) (all []Span) {
	for _, x := range f.Faults {
		if x.Target != node {
			continue
		}
		switch x.Class {
		case history.ClassPause:
			all = append(all, Span{x.Begun, Later(x.Healed, f.Run.Wake())})
		case history.ClassClock:
			all = append(all, Span{x.Begun, Later(x.Healed, f.Run.TTL())})
		case history.ClassForce:
			all = append(all, Span{x.Begun, Later(x.Begun, f.Run.TTL())})
		}
	}
	return all
}

// Paused reports whether a node was stopped at an instant, or had just been resumed.
func (f *Facts) Paused(node string, at clock.Instant) bool {
	return slices.ContainsFunc(f.Faults, func(x history.Fault) bool {
		return x.Class == history.ClassPause && x.Target == node && x.Begun <= at && at <= Later(x.Healed, f.Run.Wake())
	})
}

// Later adds a duration; nothing is later than Never.
func Later(at clock.Instant, d time.Duration) clock.Instant {
	if at > clock.Never-clock.Instant(d) {
		return clock.Never
	}
	return at.Add(d)
}

// Without returns the part of a Span that no other covers.
func (s Span) Without(others []Span) []Span {
	left := []Span{s}
	for _, o := range others {
		var next []Span
		for _, p := range left {
			for _, rest := range []Span{{p.From, min(p.To, o.From)}, {max(p.From, o.To), p.To}} {
				if rest.From < rest.To {
					next = append(next, rest)
				}
			}
		}
		left = next
	}
	return left
}

// differences returns the fields in which two runs differ.
func differences(got, want history.Run) (all []string) {
	a, b := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			all = append(all, fmt.Sprintf("%s: the run says %v, and the experiment requires %v", a.Type().Field(i).Name, x, y))
		}
	}
	return all
}

// Part is a part of a term.
type Part struct {
	Span
	*Term
}

// Overlaps returns pairs of different nodes that believe at the same time: for each part
// one that began before it and has not ended, if there is one.
func Overlaps(parts []Part) (pairs [][2]Part) {
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(a.From, b.From) })
	// The part that lasts longest so far, and the longest of all other nodes.
	longest, other := Part{Term: &Term{}}, Part{Term: &Term{}}
	for _, p := range parts {
		if p.From >= p.To {
			continue
		}
		beside := longest
		if longest.Node == p.Node {
			beside = other
		}
		if beside.To > p.From {
			pairs = append(pairs, [2]Part{beside, p})
		}
		switch {
		case p.To > longest.To:
			if longest.Node != p.Node {
				other = longest
			}
			longest = p
		case p.Node != longest.Node && p.To > other.To:
			other = p
		}
	}
	return pairs
}
