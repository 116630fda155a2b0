package check

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/history"
)

// possible reports whether an answered call can have happened.
func possible(c history.Call) bool { return c.First > 0 && c.Last >= c.First && c.End >= c.Start }

// sequence is G6 as the clients saw it: a number is larger than every number that anybody
// had when it was asked for, none is handed out twice, and the token does not fall, neither
// in time nor along the numbers.
func sequence(v *Verdict, f *facts) watcher {
	var (
		tokens peaks
		used   ranges
		most   uint64 // the largest number of numbers in one answer
	)
	call := func(c history.Call) {
		switch {
		case !c.ForNumbers():
		case c.Unknown:
			v.count("calls of unknown outcome")
		case c.Error != "":
			v.count("calls failed")
		default:
			if v.count("calls answered"); !possible(c) {
				v.doubt(at{c.Line}, "an impossible answer: numbers %d to %d, from %d to %d", c.First, c.Last, c.Start, c.End)
			}
		}
	}
	answer := func(now history.Call, before peak) {
		*v.counter("numbers") += int64(now.Last - now.First + 1)
		if before.value >= now.First {
			if before.sure {
				v.violated(at{now.Line, before.Line}, "number %d was handed out %v after %d had been", now.First, now.Start.Sub(before.End), before.value)
			} else {
				v.doubt(at{now.Line, before.Line}, "number %d was handed out to a call that began too long ago to compare it with all others", now.First)
			}
		}
		if high := tokens.before(now.Start); high.value > uint64(now.Token) {
			if high.sure {
				v.violated(at{now.Line, high.Line}, "token %d answered %v after token %d had", now.Token, now.Start.Sub(high.End), high.value)
			} else {
				v.doubt(at{now.Line, high.Line}, "token %d answered a call that began too long ago to compare it with all others", now.Token)
			}
		}
		tokens.add(now, uint64(now.Token))
		if f.whole() && f.accepted.holding(now.Token, now.First, now.Last) == nil {
			v.violated(at{now.Line}, "a client has %d to %d under token %d, and no effect in the history has that range", now.First, now.Last, now.Token)
		}
		most = max(most, now.Last-now.First+1)
		if fresh := used.add(now.First, now.Last); !fresh {
			v.Violations++
			if len(f.reused) < maxFindings {
				f.reused, f.firstUse = append(f.reused, now), append(f.firstUse, history.Place{})
			}
		}
		f.room(len(used), maxFacts)
	}
	end := func() {
		*v.counter("tokens") = int64(len(f.answers))
		for i, c := range f.reused {
			what := fmt.Sprintf("number %d was handed out before", c.First)
			if c.First != c.Last {
				what = fmt.Sprintf("some of the numbers %d to %d were handed out before", c.First, c.Last)
			}
			v.find(Finding{What: what, At: at{c.Line, f.firstUse[i]}})
		}
		// Every number that took effect was answered, or the outcome of its call is unknown.
		unknown := v.Count("calls of unknown outcome")
		if f.whole() && f.accepted.sum > f.callers.Numbers+uint64(unknown)*max(most, 1) {
			v.violated(nil, "%d numbers took effect, and clients have %d of them and %d calls of unknown outcome: calls are missing", f.accepted.sum, f.callers.Numbers, unknown)
		}
		var high *history.Call
		for _, token := range sorted(f.answers) {
			s := f.answers[token]
			if high != nil && high.Last >= s.low.First {
				v.violated(at{high.Line, s.low.Line}, "token %d handed out %d, and the later token %d handed out %d", high.Token, high.Last, token, s.low.First)
			}
			if high == nil || s.high.Last > high.Last {
				high = &s.high
			}
		}
	}
	return watcher{call: call, answer: answer, end: end}
}

// peaks finds the call with the largest value among those that ended before an instant. It
// keeps the newest maxPeaks rises, and of those before only the last.
type peaks struct {
	rises  []peak
	base   peak
	pruned bool
}

// peak is a call with a larger value than all that ended before it.
type peak struct {
	history.Call
	value uint64
	// sure: no call that ended in time has a larger value. If not, the value is too large
	// rather than too small.
	sure bool
}

const maxPeaks = 1 << 19

// add is told calls in the order of their ends.
func (p *peaks) add(c history.Call, value uint64) {
	if n := len(p.rises); n > 0 && p.rises[n-1].value >= value {
		return
	}
	if len(p.rises) >= maxPeaks {
		half := len(p.rises) / 2
		p.base, p.pruned = p.rises[half-1], true
		p.rises = slices.Delete(p.rises, 0, half)
	}
	p.rises = append(p.rises, peak{c, value, true})
}

// before returns the peak before an instant; its value is 0 if there is none.
func (p *peaks) before(start clock.Instant) peak {
	i := sort.Search(len(p.rises), func(i int) bool { return p.rises[i].End >= start })
	switch {
	case i > 0:
		return p.rises[i-1]
	case p.pruned:
		base := p.base
		base.sure = base.End < start
		return base
	}
	return peak{}
}

// findFirstUse finds the calls that first had the numbers that were handed out again.
func (f *facts) findFirstUse(ctx context.Context, dir *history.Dir) error {
	if len(f.reused) == 0 {
		return nil
	}
	return dir.Each(ctx, func(e history.Event) {
		c := e.(history.Call)
		for i, again := range f.reused {
			if c.Answered() && f.firstUse[i].File == "" && c.Line != again.Line && c.First <= again.Last && again.First <= c.Last {
				f.firstUse[i] = c.Line
			}
		}
	}, "call")
}

// ranges is a set of numbers. Neighbours are merged, so its size is that of the gaps.
type ranges []numbers

type numbers struct{ first, last uint64 }

// add adds numbers and reports whether none of them was there.
func (r *ranges) add(first, last uint64) (fresh bool) {
	// i is the first range that ends at or after the number before first.
	i := sort.Search(len(*r), func(i int) bool { return (*r)[i].last+1 >= first })
	j, now, fresh := i, numbers{first, last}, true
	for ; j < len(*r) && (*r)[j].first <= last+1; j++ {
		old := (*r)[j]
		fresh = fresh && (old.first > last || first > old.last)
		now = numbers{min(now.first, old.first), max(now.last, old.last)}
	}
	*r = slices.Replace(*r, i, j, now)
	return fresh
}
