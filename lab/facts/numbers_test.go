package facts

import (
	"math/rand/v2"
	"testing"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/history"
)

// If a slow call began before all that is kept, the result is a doubt.
func TestPeaksPruned(t *testing.T) {
	var p Peaks
	for i := range clock.Instant(maxPeaks + 1) {
		p.Add(history.Call{End: 10 * i, Last: uint64(i)}, uint64(i))
	}
	if c := p.Before(50); c.Sure || c.Last < 4 {
		t.Fatalf("sure %v, %d", c.Sure, c.Last)
	}
	if c := p.Before(10 * maxPeaks); !c.Sure || c.Last != maxPeaks-1 {
		t.Fatalf("sure %v, %d", c.Sure, c.Last)
	}
}

// The set contains exactly the numbers that were added.
func TestRanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		var r Ranges
		had := map[uint64]bool{}
		for range 60 {
			first := 1 + uint64(rng.IntN(200))
			last := first + uint64(rng.IntN(4))
			want := true
			for n := first; n <= last; n++ {
				want = want && !had[n]
				had[n] = true
			}
			if fresh := r.Add(first, last); fresh != want {
				t.Fatalf("%d to %d: fresh %v, want %v", first, last, fresh, want)
			}
		}
	}
}
