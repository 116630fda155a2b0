package check

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// planted breaks one guarantee in a good history.
type planted struct {
	name      string
	guarantee string
	check     string
	result    Result
	// says is what the finding must say: other rules of the check may notice as well.
	says string
	// plant returns the file and the line (from 0) that must be reported. pick chooses
	// one of several possible places.
	plant func(h history, pick func([]int) int) (file string, line int)
}

func isLed(g Grant) bool     { return g.State == Led && g.Token > 2 }
func isBegan(b Belief) bool  { return b.State == Began && b.Token > 1 }
func isAnswered(c Call) bool { return c.numbers() && c.First > 100 }
func isTick(e Effect) bool   { return e.What == EffectTick && e.N > 2 }
func isEvery(e Effect) bool {
	return e.What == EffectFiring && e.Name == "every" && e.InstantMS > kWall+200
}
func isSequence(e Effect) bool { return e.What == EffectSequence && e.Refused == "" && e.Token > 2 }
func isRefused(e Effect) bool  { return e.Refused != "" }

func cause(c string) func(Belief) bool {
	return func(b Belief) bool { return b.State == Ended && b.Cause == c }
}

func fault(class string) func(Fault) bool {
	return func(f Fault) bool { return f.Class == class && f.Healed != 0 }
}

// inTime puts an event of the nodes where its instant belongs, and returns the line.
func (h history) inTime(e Event) int {
	i := slices.IndexFunc(h["nodes"], func(o Event) bool { return o.when() > e.when() })
	if i < 0 {
		i = len(h["nodes"])
	}
	h.insert("nodes", i, e)
	return i
}

// cutLeader is the term that expired in a partition, and the one after it.
func cutLeader(h history) (end Belief, next Belief) {
	for _, x := range h["faults"] {
		x := x.(Fault)
		if x.Name != "partition-leader" {
			continue
		}
		i := find(h, "nodes", func(b Belief) bool { return b.State == Ended && b.At > x.Begun })[0]
		end = h["nodes"][i].(Belief)
		return end, successor(h, end)
	}
	panic("no partition")
}

func successor(h history, of Belief) Belief {
	i := find(h, "nodes", func(b Belief) bool { return b.State == Began && b.Token == of.Token+1 })[0]
	return h["nodes"][i].(Belief)
}

func lastOf(h history, file string, before int) Effect {
	for i := before - 1; i >= 0; i-- {
		if e, ok := h[file][i].(Effect); ok && isSequence(e) {
			return e
		}
	}
	return Effect{}
}

// silence removes every success after the last fault was healed.
func silence(h history) (end clock.Instant) {
	var healed clock.Instant
	for _, x := range h["faults"] {
		healed = max(healed, x.(Fault).Healed)
		end = max(end, x.(Fault).Healed)
	}
	h["calls"] = slices.DeleteFunc(h["calls"], func(e Event) bool { return e.when() >= healed && e.(Call).numbers() })
	h["nodes"] = slices.DeleteFunc(h["nodes"], func(e Event) bool { _, is := e.(Attempt); return is && e.when() >= healed })
	return end
}

func plantReuse(h history, pick func([]int) int) (string, int) {
	all := find(h, "calls", isAnswered)
	i, j := pick(all), pick(all)
	for abs(int(h["calls"][i].when()-h["calls"][j].when())) < int(20*time.Millisecond) {
		i, j = pick(all), pick(all)
	}
	if h["calls"][i].when() < h["calls"][j].when() {
		i, j = j, i
	}
	edit(h, "calls", i, func(c *Call) { c.First = h["calls"][j].(Call).Last; c.Last = c.First })
	return "calls", i
}

// plantReuseNear gives a number to two calls that were under way together: no order of
// time is broken.
func plantReuseNear(h history, pick func([]int) int) (string, int) {
	all := find(h, "calls", isAnswered)
	for {
		i := pick(all)
		a := h["calls"][i].(Call)
		for _, j := range all {
			b := h["calls"][j].(Call)
			if b.First == a.Last+1 && b.Token == a.Token && a.Start < b.End && b.Start < a.End {
				edit(h, "calls", j, func(c *Call) { c.First = a.Last })
				return "calls", -1 // either may be named first
			}
		}
	}
}

// plantOutOfOrder gives a number that nobody has to a call which began after a larger
// one had been handed out.
func plantOutOfOrder(h history, pick func([]int) int) (string, int) {
	used := map[uint64]bool{}
	for _, i := range find(h, "calls", func(c Call) bool { return c.numbers() }) {
		c := h["calls"][i].(Call)
		for n := c.First; n <= c.Last; n++ {
			used[n] = true
		}
	}
	free := uint64(1)
	for used[free] {
		free++
	}
	late := find(h, "calls", func(c Call) bool { return c.numbers() && c.First > free+100 })
	i := pick(late)
	edit(h, "calls", i, func(c *Call) { c.First, c.Last, c.Token = free, free, 1 })
	return "calls", i
}

func abs(n int) int { return max(n, -n) }

// Each planted violation is found by its check, which names the guarantee and the line.
func TestPlanted(t *testing.T) {
	for i, p := range everything() {
		t.Run(p.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(i), 2))
			h := good(uint64(i) + 100)
			file, line := p.plant(h, func(of []int) int { return of[rng.IntN(len(of))] })
			v, ok := h.check(t).Verdict(p.check)
			if !ok || v.Guarantee != p.guarantee || v.Result != p.result || len(v.Findings) == 0 {
				t.Fatalf("%v; want %s of %s", v, p.result, p.guarantee)
			}
			want := Place{file + extension, line + 1}
			if line >= 0 && !slices.ContainsFunc(v.Findings, func(f Finding) bool {
				return slices.Contains(f.At, want) && strings.Contains(f.What, p.says)
			}) {
				t.Fatalf("%v with %q is not in %v", want, p.says, v.Findings)
			}
		})
	}
}

// A violation at a random place of a random history is found. Checks beside its own
// may notice too.
func TestPlantedAnywhere(t *testing.T) {
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 3))
		all := everything()
		p := all[rng.IntN(len(all))]
		h := good(seed + 1000)
		p.plant(h, func(of []int) int { return of[rng.IntN(len(of))] })
		r := h.check(t)
		if v, _ := r.Verdict(p.check); v.Result != p.result || r.Passed() {
			t.Errorf("seed %d, %s: %v", seed, p.name, v)
		}
	}
}
