package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// maxFacts is how many terms, grants, faults or jobs are kept in memory.
const maxFacts = 1 << 20

// facts is what is kept of a history: all but calls, attempts and effects, of which
// there are millions.
type facts struct {
	run   Run
	runAt Place
	// terms in the order in which they began.
	terms  []*term
	byName map[termName]*term
	grants []grantAt
	faults []faultAt
	seals  []sealAt
	// processes of each node, in the order of their starts.
	processes map[string][]Process
	// lives is what else nodes wrote down: it shows that they ran.
	lives []life
	// reopened are terms that began again; strays are ends without a beginning.
	reopened, strays []beliefAt

	runs   int
	broken []*historyError
	// old: there is no manifest. It was recorded before the stricter checks and does not
	// have all that they compare.
	old bool
}

// life is an event of a node. Trouble: it shows that a fault was felt.
type life struct {
	node    string
	when    clock.Instant
	at      Place
	trouble bool
}

type termName struct {
	node  string
	token fence.Token
}

// term is what a node believed.
type term struct {
	termName
	began, ended     clock.Instant // ended is Never while it believes
	cause            string
	beganAt, endedAt Place
}

type (
	beliefAt struct {
		Belief
		at, before Place
	}
	grantAt struct {
		Grant
		at Place
	}
	faultAt struct {
		Fault
		at Place
	}
	sealAt struct {
		Seal
		at Place
	}
)

func gather(ctx context.Context, dir string) (*facts, error) {
	f := &facts{byName: map[termName]*term{}, processes: map[string][]Process{}}
	_, err := os.Stat(filepath.Join(dir, manifestFile))
	f.old = errors.Is(err, fs.ErrNotExist)
	byID := map[string]int{}
	kept := 0
	want := func(kind string) bool { return kind != "call" && kind != "attempt" && kind != "effect" }
	see := func(e Event, at Place) error {
		if kept++; kept > maxFacts {
			return fmt.Errorf("check: more than %d terms, grants and faults: cut the run into shorter ones", maxFacts)
		}
		switch e := e.(type) {
		case Run:
			f.run, f.runAt = e, at
			f.runs++
		case Process:
			f.processes[e.Node] = append(f.processes[e.Node], e)
		case Belief:
			f.belief(e, at)
			f.lives = append(f.lives, life{e.Node, e.At, at, e.State == Missed || e.State == Ended && !orderly(e.Cause)})
		case Grant:
			f.grants = append(f.grants, grantAt{e, at})
			node, _, _ := strings.Cut(e.Observer, "/")
			f.lives = append(f.lives, life{node, e.At, at, e.State == Blind})
		case Seal:
			f.seals = append(f.seals, sealAt{e, at})
			f.lives = append(f.lives, life{e.Node, e.At, at, false})
		case Fault:
			i, again := byID[e.ID]
			if e.ID == "" || !again {
				byID[e.ID] = len(f.faults)
				f.faults = append(f.faults, faultAt{e, at})
				break
			}
			old := &f.faults[i]
			old.Healed, old.Evidence = max(old.Healed, e.Healed), old.Evidence+e.Evidence
			old.Begun = min(old.Begun, e.Begun)
			if old.Proof.Kind == "" {
				old.Proof = e.Proof
			}
			old.Set, old.Held = max(old.Set, e.Set), max(old.Held, e.Held)
			old.Missed, old.PartOf = cmp.Or(old.Missed, e.Missed), cmp.Or(old.PartOf, e.PartOf)
		}
		return nil
	}
	if err := each(ctx, dir, want, see, f.damaged); err != nil {
		return nil, err
	}
	for i := range f.faults {
		if f.faults[i].Healed == 0 {
			f.faults[i].Healed = clock.Never
		}
	}
	for _, all := range f.processes {
		slices.SortStableFunc(all, func(a, b Process) int { return cmp.Compare(a.At, b.At) })
	}
	slices.SortStableFunc(f.faults, func(a, b faultAt) int { return cmp.Compare(a.Begun, b.Begun) })
	slices.SortStableFunc(f.grants, func(a, b grantAt) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(f.terms, func(a, b *term) int { return cmp.Compare(a.began, b.began) })
	f.killed()
	return f, nil
}

// belief folds what a node said of a term: the first end counts.
func (f *facts) belief(b Belief, at Place) {
	name := termName{b.Node, b.Token}
	t := f.byName[name]
	if b.State == Began {
		if t != nil {
			f.reopened = append(f.reopened, beliefAt{b, at, t.beganAt})
			return
		}
		t = &term{termName: name, began: b.At, ended: clock.Never, beganAt: at}
		f.byName[name] = t
		f.terms = append(f.terms, t)
		return
	}
	switch {
	case t == nil && b.State == Ended:
		f.strays = append(f.strays, beliefAt{b, at, Place{}})
	case t == nil || b.State == Missed: // it is of no term
	case b.At < t.ended:
		t.ended, t.endedAt = b.At, at
		if b.Cause != "" {
			t.cause = b.Cause
		}
	case b.State == Ended && t.cause == "":
		t.cause = b.Cause
	}
}

// killed ends the terms of processes that could not say so.
func (f *facts) killed() {
	for _, k := range f.faults {
		if k.Class != ClassKill {
			continue
		}
		for _, t := range f.terms {
			if t.node == k.Target && t.began < k.Begun && t.ended > k.Begun {
				t.ended, t.endedAt, t.cause = k.Begun, k.at, killed
			}
		}
	}
}

// whole reports whether the history has what every process of a fleet did.
func (f *facts) whole() bool { return f.run.Nodes > 0 && !f.old }

// damaged notes once that a file is not whole.
func (f *facts) damaged(h *historyError) {
	for _, b := range f.broken {
		if b.at == h.at {
			return
		}
	}
	f.broken = append(f.broken, h)
}

// span is a part of time, its end not included.
type span struct{ from, to clock.Instant }

// excused is when a node's belief does not count for G3.
func (f *facts) excused(node string) []span {
	var all []span
	for _, x := range f.faults {
		if x.Target != node {
			continue
		}
		switch x.Class {
		case ClassPause:
			all = append(all, span{x.Begun, later(x.Healed, f.run.wake())})
		case ClassClock:
			all = append(all, span{x.Begun, later(x.Healed, f.run.ttl())})
		case ClassForce:
			all = append(all, span{x.Begun, later(x.Begun, f.run.ttl())})
		}
	}
	return all
}

// paused reports whether a node did not run at an instant, or had just been woken.
func (f *facts) paused(node string, at clock.Instant) bool {
	for _, x := range f.faults {
		if x.Class == ClassPause && x.Target == node && x.Begun <= at && at <= later(x.Healed, f.run.wake()) {
			return true
		}
	}
	return false
}

func later(at clock.Instant, d time.Duration) clock.Instant {
	if at > clock.Never-clock.Instant(d) {
		return clock.Never
	}
	return at.Add(d)
}

// less is the part of a span that no other covers.
func (s span) less(others []span) []span {
	left := []span{s}
	for _, o := range others {
		var next []span
		for _, p := range left {
			if o.to <= p.from || p.to <= o.from {
				next = append(next, p)
				continue
			}
			if p.from < o.from {
				next = append(next, span{p.from, o.from})
			}
			if o.to < p.to {
				next = append(next, span{o.to, p.to})
			}
		}
		left = next
	}
	return left
}
