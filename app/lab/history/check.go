package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// Result is what a check found.
type Result struct {
	Calls  int    `json:"calls"`
	IDs    uint64 `json:"ids"`
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Tokens int    `json:"tokens"`
	// LongestGapMS is the longest time in which no call was answered.
	LongestGapMS float64 `json:"longest_gap_ms"`
	// Breaches counts broken promises; the first few are in words.
	Breaches int      `json:"breaches"`
	Examples []string `json:"examples,omitempty"`
}

const examples = 10

func (r *Result) breach(format string, args ...any) {
	r.Breaches++
	if len(r.Examples) < examples {
		r.Examples = append(r.Examples, fmt.Sprintf(format, args...))
	}
}

// Check orders the calls in place, by their numbers, and checks them: nothing twice,
// numbers and tokens rise together, and for calls ordered in time both rise.
func Check(calls []Call) Result {
	r := Result{Calls: len(calls)}
	if len(calls) == 0 {
		return r
	}
	r.gap(calls)
	r.ordered(calls)
	slices.SortFunc(calls, func(a, b Call) int { return cmp.Compare(a.First, b.First) })
	r.First, r.Tokens = calls[0].First, 1
	for i, c := range calls {
		if c.Last < c.First || c.First == 0 {
			r.breach("numbers %d to %d are no range", c.First, c.Last)
			continue
		}
		r.IDs += c.Last - c.First + 1
		r.Last = max(r.Last, c.Last)
		if i == 0 {
			continue
		}
		before := calls[i-1]
		if c.First <= before.Last {
			r.breach("numbers %d to %d (token %d) and %d to %d (token %d) were both given away", before.First, before.Last, before.Token, c.First, c.Last, c.Token)
		}
		if c.Token < before.Token {
			r.breach("number %d has token %d, and %d before it had %d", c.First, c.Token, before.Last, before.Token)
		}
		if c.Token != before.Token {
			r.Tokens++
		}
	}
	return r
}

// ordered checks calls that did not overlap: it goes through the starts in order, and
// lets the calls that had ended by then set the floor.
func (r *Result) ordered(calls []Call) {
	starts := make([]int32, len(calls))
	for i := range starts {
		starts[i] = int32(i)
	}
	ends := slices.Clone(starts)
	slices.SortFunc(starts, func(a, b int32) int { return cmp.Compare(calls[a].Start, calls[b].Start) })
	slices.SortFunc(ends, func(a, b int32) int { return cmp.Compare(calls[a].End, calls[b].End) })
	var seq, token Call // with the largest of each among those that had ended
	for _, i := range starts {
		c := calls[i]
		for len(ends) > 0 && calls[ends[0]].End < c.Start {
			done := calls[ends[0]]
			ends = ends[1:]
			if done.Last > seq.Last {
				seq = done
			}
			if done.Token > token.Token {
				token = done
			}
		}
		if c.End < c.Start {
			r.breach("the call for %d ended before it began", c.First)
		}
		if c.First <= seq.Last {
			r.breach("number %d was given %v after %d had been", c.First, c.Start.Sub(seq.End), seq.Last)
		}
		if c.Token < token.Token {
			r.breach("number %d has token %d, %v after token %d had been seen", c.First, c.Token, c.Start.Sub(token.End), token.Token)
		}
	}
}

func (r *Result) gap(calls []Call) {
	ends := make([]clock.Instant, len(calls))
	for i, c := range calls {
		ends[i] = c.End
	}
	slices.Sort(ends)
	var longest time.Duration
	for i := 1; i < len(ends); i++ {
		longest = max(longest, ends[i].Sub(ends[i-1]))
	}
	r.LongestGapMS = float64(longest) / float64(time.Millisecond)
}
