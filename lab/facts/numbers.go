package facts

import (
	"cmp"
	"context"
	"slices"
	"sort"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/reference/api"
)

// Numbers are those from First to Last.
type Numbers struct{ First, Last uint64 }

// Allocations are the ranges of numbers that took effect, by token.
type Allocations struct {
	ByToken map[fence.Token][]Allocation
	N       int
	Sum     uint64 // of the sizes
	Least   uint64
	sorted  bool
}

// Allocation is a range that took effect.
type Allocation struct {
	Numbers
	Line history.Place
	// Tried: the history has an attempt to write it.
	Tried bool
}

// OfNumbers reports whether a write is one of the sequence that clients take numbers from.
func OfNumbers(what, name string) bool { return what == history.EffectSequence && name == api.Sequence }

// Add adds an effect, if it allocated numbers and there is room.
func (a *Allocations) Add(f *Facts, e history.Effect) {
	const most = 1 << 24
	if !OfNumbers(e.What, e.Name) || !f.Room(a.N+1, most) {
		return
	}
	if a.ByToken == nil {
		a.ByToken, a.Least = map[fence.Token][]Allocation{}, e.First
	}
	a.N++
	a.Least = min(a.Least, e.First)
	a.Sum += e.Last - e.First + 1
	a.ByToken[e.Token] = append(a.ByToken[e.Token], Allocation{Numbers: Numbers{e.First, e.Last}, Line: e.Line})
}

// Holding returns the allocation of a token that contains a range; nil: there is none.
func (a *Allocations) Holding(token fence.Token, first, last uint64) *Allocation {
	if !a.sorted {
		a.sorted = true
		for _, all := range a.ByToken {
			slices.SortFunc(all, func(x, y Allocation) int { return cmp.Compare(x.First, y.First) })
		}
	}
	all := a.ByToken[token]
	i := sort.Search(len(all), func(i int) bool { return all[i].First > first }) - 1
	if i < 0 || last > all[i].Last {
		return nil
	}
	return &all[i]
}

// Peaks finds the call with the largest value among those that ended before an instant. It
// keeps the newest maxPeaks rises, and of those before only the last.
type Peaks struct {
	rises  []Peak
	base   Peak
	pruned bool
}

// Peak is a call with a larger value than all that ended before it.
type Peak struct {
	history.Call
	Value uint64
	// Sure: no call that ended in time has a larger value. If not, the value is too large
	// rather than too small.
	Sure bool
}

const maxPeaks = 1 << 19

// Add is told calls in the order of their ends.
func (p *Peaks) Add(c history.Call, value uint64) {
	if n := len(p.rises); n > 0 && p.rises[n-1].Value >= value {
		return
	}
	if len(p.rises) >= maxPeaks {
		half := len(p.rises) / 2
		p.base, p.pruned = p.rises[half-1], true
		p.rises = slices.Delete(p.rises, 0, half)
	}
	p.rises = append(p.rises, Peak{c, value, true})
}

// Before returns the peak before an instant; its value is 0 if there is none.
func (p *Peaks) Before(start clock.Instant) Peak {
	i := sort.Search(len(p.rises), func(i int) bool { return p.rises[i].End >= start })
	switch {
	case i > 0:
		return p.rises[i-1]
	case p.pruned:
		base := p.base
		base.Sure = base.End < start
		return base
	}
	return Peak{}
}

// Ranges is a set of numbers. Neighbours are merged, so its size is that of the gaps.
type Ranges []Numbers

// Add adds numbers and reports whether none of them was there.
func (r *Ranges) Add(first, last uint64) (fresh bool) {
	// i is the first range that ends at or after the number before first.
	i := sort.Search(len(*r), func(i int) bool { return (*r)[i].Last+1 >= first })
	j, now, fresh := i, Numbers{first, last}, true
	for ; j < len(*r) && (*r)[j].First <= last+1; j++ {
		old := (*r)[j]
		fresh = fresh && (old.First > last || first > old.Last)
		now = Numbers{min(now.First, old.First), max(now.Last, old.Last)}
	}
	*r = slices.Replace(*r, i, j, now)
	return fresh
}

// FindFirstUse finds the calls that first had the numbers that were handed out again.
func (f *Facts) FindFirstUse(ctx context.Context, dir *history.Dir) error {
	if len(f.Reused) == 0 {
		return nil
	}
	return dir.Each(ctx, func(e history.Event) {
		c := e.(history.Call)
		for i := range f.Reused {
			again := &f.Reused[i]
			if c.Answered() && again.FirstUse.File == "" && c.Line != again.Line && c.First <= again.Last && again.First <= c.Last {
				again.FirstUse = c.Line
			}
		}
	}, "call")
}
