package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/reference/api"
)

// attemptSpan is what is known of the attempts with a token.
type attemptSpan struct {
	first, last history.Attempt
	n, refused  int64
	refusedAt   []clock.Instant // the first maxRefused
	// told is when the node was first told of a refusal; 0: it was not.
	told clock.Instant
}

const maxRefused = 64

// answerSpan is what is known of the answers with a token.
type answerSpan struct {
	low, high   history.Call  // with the smallest and the largest number
	first, last clock.Instant // when clients were answered
	n           int64
}

func (f *facts) attempt(a history.Attempt) {
	s := f.attempts[a.Token]
	if s == nil {
		if !f.room(len(f.attempts)+1, maxFacts) {
			return
		}
		s = &attemptSpan{first: a, last: a}
		f.attempts[a.Token] = s
	}
	s.n++
	if a.At < s.first.At {
		s.first = a
	}
	if a.At > s.last.At {
		s.last = a
	}
	if a.Outcome == history.OutcomeRefused {
		s.refused++
		if a.End > 0 && (s.told == 0 || a.End < s.told) {
			s.told = a.End
		}
		if len(s.refusedAt) < maxRefused {
			s.refusedAt = append(s.refusedAt, a.At)
		}
	}
}

func (f *facts) answer(c history.Call) {
	all := &f.callers
	if all.Calls == 0 || c.First < all.First {
		all.First = c.First
	}
	if all.Calls > 0 {
		all.SilenceMS = max(all.SilenceMS, float64(c.End.Sub(f.answered))/float64(time.Millisecond))
	}
	all.Calls++
	all.Numbers += c.Last - c.First + 1
	all.Last = max(all.Last, c.Last)
	f.answered = c.End

	s := f.answers[c.Token]
	if s == nil {
		if !f.room(len(f.answers)+1, maxFacts) {
			return
		}
		s = &answerSpan{low: c, high: c, first: c.End}
		f.answers[c.Token] = s
		all.Tokens++
	}
	if c.First < s.low.First {
		s.low = c
	}
	if c.Last > s.high.Last {
		s.high = c
	}
	s.last = c.End
	s.n++
}

// allocations are the ranges of numbers that took effect, by token.
type allocations struct {
	byToken map[fence.Token][]allocation
	n       int
	sum     uint64 // of the sizes
	least   uint64
	sorted  bool
}

type allocation struct {
	numbers
	line history.Place
	// tried: the history has an attempt to write it.
	tried bool
}

// maxAllocations is how many are kept in memory.
const maxAllocations = 1 << 24

// ofNumbers reports whether a write is one of the sequence that clients take numbers from.
func ofNumbers(what, name string) bool { return what == history.EffectSequence && name == api.Sequence }

// accept keeps an effect if it allocated numbers.
func (f *facts) accept(e history.Effect) {
	if f.whole() && e.Accepted() && !e.Applied && ofNumbers(e.What, e.Name) && f.room(f.accepted.n+1, maxAllocations) {
		f.accepted.add(e)
	}
}

func (a *allocations) add(e history.Effect) {
	a.n++
	if a.byToken == nil {
		a.byToken = map[fence.Token][]allocation{}
	}
	if a.least == 0 || e.First < a.least {
		a.least = e.First
	}
	a.sum += e.Last - e.First + 1
	a.byToken[e.Token] = append(a.byToken[e.Token], allocation{numbers: numbers{e.First, e.Last}, line: e.Line})
}

// holding returns the allocation of a token that contains a range; nil: there is none.
func (a *allocations) holding(token fence.Token, first, last uint64) *allocation {
	if !a.sorted {
		a.sorted = true
		for _, all := range a.byToken {
			slices.SortFunc(all, func(x, y allocation) int { return cmp.Compare(x.first, y.first) })
		}
	}
	all := a.byToken[token]
	i, exact := slices.BinarySearchFunc(all, first, func(x allocation, first uint64) int { return cmp.Compare(x.first, first) })
	if !exact {
		i--
	}
	if i < 0 || last > all[i].last {
		return nil
	}
	return &all[i]
}

// terms are the terms of the report.
func (s *scan) terms() (terms []Term) {
	all := map[fence.Token]*Term{}
	get := func(token fence.Token) *Term {
		if all[token] == nil {
			all[token] = &Term{Token: token}
		}
		return all[token]
	}
	led := map[fence.Token]bool{}
	for _, t := range s.facts.terms {
		s.end = max(s.end, t.began)
		led[t.token] = true
	}
	for _, t := range s.facts.terms {
		x := get(t.token)
		x.Node, x.Began, x.Ended, x.Cause = t.node, t.began, t.ended, t.cause
		if x.Ended == clock.Never {
			x.Ended = s.end
		}
	}
	for token, a := range s.attempts {
		x := get(token)
		x.FirstAttempt, x.LastAttempt, x.Attempts, x.Refused, x.RefusedAt = a.first.At, a.last.At, a.n, a.refused, a.refusedAt
		x.Node = cmp.Or(x.Node, a.first.Node)
	}
	for token, a := range s.answers {
		x := get(token)
		x.FirstAnswer, x.LastAnswer, x.Answers = a.first, a.last, a.n
	}
	// A vacancy has the token of the term before it. The next term ended it.
	vacant := map[fence.Token]clock.Instant{}
	for _, g := range s.grants {
		if g.State != history.Blind && vacant[g.Token] == 0 {
			vacant[g.Token] = 0
			if g.State == history.Vacant {
				vacant[g.Token] = g.At
			}
		}
	}
	granted := sorted(vacant)
	for _, token := range sorted(all) {
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
