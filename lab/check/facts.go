package check

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
)

// maxFacts is how many events, tokens or jobs are kept in memory.
const maxFacts = 1 << 20

// facts is what is kept of a history: all events but calls, attempts and effects, of which
// there are millions. Of those it has the first and the last of each token.
type facts struct {
	run  history.Run
	runs int
	// terms in the order in which they began.
	terms  []*term
	byName map[termName]*term
	// grants and faults in the order of time.
	grants []history.Grant
	faults []history.Fault
	seals  []history.Seal
	// processes of each node, in the order of their starts.
	processes map[string][]history.Process
	// records are further events that nodes wrote. They show that the node ran.
	records []nodeRecord
	// reopened are second beginnings of a term; strays are ends without a beginning.
	reopened, strays []history.Belief

	// accepted are the numbers that took effect, if the history is complete.
	accepted allocations
	attempts map[fence.Token]*attemptSpan
	answers  map[fence.Token]*answerSpan
	callers  Callers
	answered clock.Instant // when a client was last answered
	// reused are calls whose numbers were handed out before, to the calls at firstUse.
	reused   []history.Call
	firstUse []history.Place

	damage []history.Damage
	// old: recorded before the stricter checks, without some events that they compare.
	old bool
	// full: there was more than fits into memory, so no verdict is certain.
	full bool
}

// nodeRecord is an event of a node. Trouble means that it shows the effect of a fault.
type nodeRecord struct {
	node    string
	when    clock.Instant
	at      history.Place
	trouble bool
}

type termName struct {
	node  string
	token fence.Token
}

// term is a term as its node recorded it.
type term struct {
	termName
	began, ended     clock.Instant // ended is Never while the node believes
	cause            string
	beganAt, endedAt history.Place
}

func newFacts() *facts {
	return &facts{
		byName: map[termName]*term{}, processes: map[string][]history.Process{},
		attempts: map[fence.Token]*attemptSpan{}, answers: map[fence.Token]*answerSpan{},
	}
}

// gather reads the events that are kept.
func (f *facts) gather(ctx context.Context, dir *history.Dir) error {
	f.old = !dir.HasManifest()
	byID := map[string]int{}
	kept := 0
	see := func(e history.Event) {
		if kept++; !f.room(kept, maxFacts) {
			return
		}
		switch e := e.(type) {
		case history.Run:
			f.run = e
			f.runs++
		case history.Process:
			f.processes[e.Node] = append(f.processes[e.Node], e)
		case history.Belief:
			f.belief(e)
			f.records = append(f.records, nodeRecord{e.Node, e.At, e.Line, e.State == history.Missed || e.State == history.Ended && !orderly(e.Cause)})
		case history.Grant:
			f.grants = append(f.grants, e)
			node, _, _ := strings.Cut(e.Observer, "/")
			f.records = append(f.records, nodeRecord{node, e.At, e.Line, e.State == history.Blind})
		case history.Seal:
			f.seals = append(f.seals, e)
			f.records = append(f.records, nodeRecord{e.Node, e.At, e.Line, false})
		case history.Fault:
			i, again := byID[e.ID]
			if e.ID == "" || !again {
				byID[e.ID] = len(f.faults)
				f.faults = append(f.faults, e)
				break
			}
			old := &f.faults[i]
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
	for i := range f.faults {
		if f.faults[i].Healed == 0 {
			f.faults[i].Healed = clock.Never
		}
	}
	for _, all := range f.processes {
		slices.SortStableFunc(all, func(a, b history.Process) int { return cmp.Compare(a.At, b.At) })
	}
	slices.SortStableFunc(f.faults, func(a, b history.Fault) int { return cmp.Compare(a.Begun, b.Begun) })
	slices.SortStableFunc(f.grants, func(a, b history.Grant) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(f.terms, func(a, b *term) int { return cmp.Compare(a.began, b.began) })
	// A process that was killed could not record the end of its term.
	for _, k := range f.faults {
		for _, t := range f.terms {
			if k.Class == history.ClassKill && t.node == k.Target && t.began < k.Begun && t.ended > k.Begun {
				t.ended, t.endedAt, t.cause = k.Begun, k.Line, killed
			}
		}
	}
	return nil
}

// belief adds what a node recorded of a term. The first end counts.
func (f *facts) belief(b history.Belief) {
	name := termName{b.Node, b.Token}
	t := f.byName[name]
	switch {
	case b.State == history.Began && t != nil:
		f.reopened = append(f.reopened, b)
	case b.State == history.Began:
		t = &term{termName: name, began: b.At, ended: clock.Never, beganAt: b.Line}
		f.byName[name] = t
		f.terms = append(f.terms, t)
	case t == nil && b.State == history.Ended:
		f.strays = append(f.strays, b)
	case t == nil || b.State == history.Missed: // it belongs to no term
	case b.At < t.ended:
		t.ended, t.endedAt, t.cause = b.At, b.Line, cmp.Or(b.Cause, t.cause)
	case b.State == history.Ended && t.cause == "":
		t.cause = b.Cause
	}
}

// killed is the cause of an end that the process could not record.
const killed = "killed"

// orderly reports whether the leader ended the term itself.
func orderly(cause string) bool {
	return cause == "resigned" || cause == "transferred" || cause == "unhealthy"
}

// whole reports whether the history has everything that the processes of a fleet recorded.
func (f *facts) whole() bool { return f.run.Nodes > 0 && !f.old }

// room reports whether n things fit into memory.
func (f *facts) room(n, most int) bool {
	f.full = f.full || n > most
	return n <= most
}

// damaged notes that a file is not complete, once for each place.
func (f *facts) damaged(d history.Damage) {
	if !slices.ContainsFunc(f.damage, func(o history.Damage) bool { return o.At == d.At }) {
		f.damage = append(f.damage, d)
	}
}

// expect replaces what the history says of its run by what the experiment requires.
func (f *facts) expect(require func(history.Run) (history.Run, error)) {
	want, err := require(f.run)
	if err != nil {
		f.damaged(history.Damage{At: f.run.Line, What: err.Error()})
		f.run.Checks = nil // all of them
		return
	}
	got := f.run
	if !slices.EqualFunc(got.Jobs, want.Jobs, func(got, want history.Job) bool {
		return got.EveryMS == want.EveryMS && got.FirstMS > 0 && (got.EveryMS == 0 || got.LastMS >= got.FirstMS)
	}) {
		f.damaged(history.Damage{At: f.run.Line, What: "Jobs: not those of the experiment"})
	}
	want.Line, want.At, want.Jobs = got.Line, got.At, got.Jobs
	for _, difference := range differences(got, want) {
		f.damaged(history.Damage{At: f.run.Line, What: difference})
	}
	f.run = want
}

// span is a part of time. Its end is not included.
type span struct{ from, to clock.Instant }

func (s span) has(at clock.Instant) bool { return s.from <= at && at < s.to }

// certain is when a fault was certainly in effect.
func certain(f history.Fault) span { return span{cmp.Or(f.Set, f.Begun), cmp.Or(f.Held, f.Healed)} }

// excused is when a node's belief does not count for G3.
func (f *facts) excused(node string) (all []span) {
	for _, x := range f.faults {
		if x.Target != node {
			continue
		}
		switch x.Class {
		case history.ClassPause:
			all = append(all, span{x.Begun, later(x.Healed, f.run.Wake())})
		case history.ClassClock:
			all = append(all, span{x.Begun, later(x.Healed, f.run.TTL())})
		case history.ClassForce:
			all = append(all, span{x.Begun, later(x.Begun, f.run.TTL())})
		}
	}
	return all
}

// paused reports whether a node was stopped at an instant, or had just been resumed.
func (f *facts) paused(node string, at clock.Instant) bool {
	return slices.ContainsFunc(f.faults, func(x history.Fault) bool {
		return x.Class == history.ClassPause && x.Target == node && x.Begun <= at && at <= later(x.Healed, f.run.Wake())
	})
}

func later(at clock.Instant, d time.Duration) clock.Instant {
	if at > clock.Never-clock.Instant(d) {
		return clock.Never
	}
	return at.Add(d)
}

// without returns the part of a span that no other covers.
func (s span) without(others []span) []span {
	left := []span{s}
	for _, o := range others {
		var next []span
		for _, p := range left {
			for _, rest := range []span{{p.from, min(p.to, o.from)}, {max(p.from, o.to), p.to}} {
				if rest.from < rest.to {
					next = append(next, rest)
				}
			}
		}
		left = next
	}
	return left
}

func tidy(d time.Duration) string {
	if d.Abs() >= time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}
