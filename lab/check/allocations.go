package check

import (
	"cmp"
	"slices"

	"github.com/tenurehq/tenure/fence"
)

// allocations are ranges of numbers that took effect, by token.
type allocations struct {
	byToken map[fence.Token][]allocation
	n       int
	sum     uint64 // of the sizes
	least   uint64
	sorted  bool
}

type allocation struct {
	numbers
	line int
	// tried: an attempt to write it is in the history.
	tried bool
}

// maxAllocations is how many are kept in memory.
const maxAllocations = 1 << 24

func (a *allocations) add(token fence.Token, x allocation) {
	a.n++
	if a.byToken == nil {
		a.byToken = map[fence.Token][]allocation{}
	}
	if a.least == 0 || x.first < a.least {
		a.least = x.first
	}
	a.sum += x.last - x.first + 1
	a.byToken[token] = append(a.byToken[token], x)
}

// holding returns the allocation of a token in which a range lies; nil: there is none.
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
