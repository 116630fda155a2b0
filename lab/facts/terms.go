package facts

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// Attempts is what is known of the attempts with a token.
type Attempts struct {
	First, Last history.Attempt
	N, Refused  int64
	refusedAt   []clock.Instant // the first maxRefused
	// Told is when the node was first told of a refusal; 0: it was not.
	Told clock.Instant
}

const maxRefused = 64

// Answers is what is known of the answers with a token.
type Answers struct {
	Low, High   history.Call  // with the smallest and the largest number
	first, last clock.Instant // when clients were answered
	n           int64
}

// Attempt keeps what is needed of an attempt.
func (f *Facts) Attempt(a history.Attempt) {
	s := f.Attempts[a.Token]
	if s == nil {
		if !f.Room(len(f.Attempts)+1, Max) {
			return
		}
		s = &Attempts{First: a, Last: a}
		f.Attempts[a.Token] = s
	}
	s.N++
	if a.At < s.First.At {
		s.First = a
	}
	if a.At > s.Last.At {
		s.Last = a
	}
	if a.Outcome == history.OutcomeRefused {
		s.Refused++
		if a.End > 0 && (s.Told == 0 || a.End < s.Told) {
			s.Told = a.End
		}
		if len(s.refusedAt) < maxRefused {
			s.refusedAt = append(s.refusedAt, a.At)
		}
	}
}

// Answer keeps what is needed of an answered call.
func (f *Facts) Answer(c history.Call) {
	all := &f.Callers
	if all.Calls == 0 {
		all.First, f.answered = c.First, c.End
	}
	all.First, all.Last = min(all.First, c.First), max(all.Last, c.Last)
	all.SilenceMS = max(all.SilenceMS, float64(c.End.Sub(f.answered))/float64(time.Millisecond))
	all.Calls++
	all.Numbers += c.Last - c.First + 1
	f.answered = c.End

	s := f.Answers[c.Token]
	if s == nil {
		if !f.Room(len(f.Answers)+1, Max) {
			return
		}
		s = &Answers{Low: c, High: c, first: c.End}
		f.Answers[c.Token] = s
		all.Tokens++
	}
	if c.First < s.Low.First {
		s.Low = c
	}
	if c.Last > s.High.Last {
		s.High = c
	}
	s.last = c.End
	s.n++
}

// Sorted returns the tokens of a map in their order.
func Sorted[V any](m map[fence.Token]V) []fence.Token { return slices.Sorted(maps.Keys(m)) }

// Report returns the terms for a report. A term that did not end ends with the history.
func (f *Facts) Report(end clock.Instant) (terms []verdict.Term) {
	all := map[fence.Token]*verdict.Term{}
	get := func(token fence.Token) *verdict.Term {
		if all[token] == nil {
			all[token] = &verdict.Term{Token: token}
		}
		return all[token]
	}
	led := map[fence.Token]bool{}
	for _, t := range f.Terms {
		end = max(end, t.Began)
		led[t.Token] = true
	}
	for _, t := range f.Terms {
		x := get(t.Token)
		x.Node, x.Began, x.Ended, x.Cause = t.Node, t.Began, t.Ended, t.Cause
		if x.Ended == clock.Never {
			x.Ended = end
		}
	}
	for token, a := range f.Attempts {
		x := get(token)
		x.FirstAttempt, x.LastAttempt, x.Attempts, x.Refused, x.RefusedAt = a.First.At, a.Last.At, a.N, a.Refused, a.refusedAt
		x.Node = cmp.Or(x.Node, a.First.Node)
	}
	for token, a := range f.Answers {
		x := get(token)
		x.FirstAnswer, x.LastAnswer, x.Answers = a.first, a.last, a.n
	}
	// A vacancy has the token of the term before it. The next term ended it.
	vacant := map[fence.Token]clock.Instant{}
	for _, g := range f.Grants {
		if g.State != history.Blind && vacant[g.Token] == 0 {
			vacant[g.Token] = 0
			if g.State == history.Vacant {
				vacant[g.Token] = g.At
			}
		}
	}
	granted := Sorted(vacant)
	for _, token := range Sorted(all) {
		x := all[token]
		i, _ := slices.BinarySearch(granted, token)
		for i--; i >= 0; i-- {
			x.Vacant = cmp.Or(vacant[granted[i]], x.Vacant)
			if led[granted[i]] { // a grant whose term never began ended no vacancy
				break
			}
		}
		terms = append(terms, *x)
	}
	return terms
}
