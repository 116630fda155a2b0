package check

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// planted breaks one guarantee in a good history.
type planted struct {
	name      string
	guarantee string
	check     string
	result    verdict.Result
	// says is part of the finding. Other rules of the check may find something too.
	says string
	// plant returns the file and the line (from 0) that must be reported. pick chooses
	// one of several possible places.
	plant func(h files, pick func([]int) int) (file string, line int)
}

func isLed(g history.Grant) bool     { return g.State == history.Led && g.Token > 2 }
func isBegan(b history.Belief) bool  { return b.State == history.Began && b.Token > 1 }
func isAnswered(c history.Call) bool { return c.Answered() && c.First > 100 }
func isTick(e history.Effect) bool   { return e.What == history.EffectTick && e.N > 2 }
func isEvery(e history.Effect) bool {
	return e.What == history.EffectFiring && e.Name == "every" && e.InstantMS > kWall+200
}
func isSequence(e history.Effect) bool {
	return e.What == history.EffectSequence && e.Refused == "" && e.Token > 2
}
func isRefused(e history.Effect) bool { return e.Refused != "" }

func cause(c string) func(history.Belief) bool {
	return func(b history.Belief) bool { return b.State == history.Ended && b.Cause == c }
}

func fault(class string) func(history.Fault) bool {
	return func(f history.Fault) bool { return f.Class == class && f.Healed != 0 }
}

// inTime inserts an event of the nodes in the order of time, and returns the line.
func (h files) inTime(e history.Event) int {
	i := slices.IndexFunc(h["nodes"], func(o history.Event) bool { return history.When(o) > history.When(e) })
	if i < 0 {
		i = len(h["nodes"])
	}
	h.insert("nodes", i, e)
	return i
}

// cutLeader is the term that expired in a partition, and the one after it.
func cutLeader(h files) (end history.Belief, next history.Belief) {
	for _, x := range h["faults"] {
		x := x.(history.Fault)
		if x.Name != "partition-leader" {
			continue
		}
		i := find(h, "nodes", func(b history.Belief) bool { return b.State == history.Ended && b.At > x.Begun })[0]
		end = h["nodes"][i].(history.Belief)
		return end, successor(h, end)
	}
	panic("no partition")
}

func successor(h files, of history.Belief) history.Belief {
	i := find(h, "nodes", func(b history.Belief) bool { return b.State == history.Began && b.Token == of.Token+1 })[0]
	return h["nodes"][i].(history.Belief)
}

func lastOf(h files, file string, before int) history.Effect {
	for i := before - 1; i >= 0; i-- {
		if e, ok := h[file][i].(history.Effect); ok && isSequence(e) {
			return e
		}
	}
	return history.Effect{}
}

// silence removes every success after the last fault was healed.
func silence(h files) (end clock.Instant) {
	var healed clock.Instant
	for _, x := range h["faults"] {
		healed = max(healed, x.(history.Fault).Healed)
		end = max(end, x.(history.Fault).Healed)
	}
	h["calls"] = slices.DeleteFunc(h["calls"], func(e history.Event) bool { return history.When(e) >= healed && e.(history.Call).Answered() })
	h["nodes"] = slices.DeleteFunc(h["nodes"], func(e history.Event) bool { _, is := e.(history.Attempt); return is && history.When(e) >= healed })
	return end
}

func plantReuse(h files, pick func([]int) int) (string, int) {
	all := find(h, "calls", isAnswered)
	i, j := pick(all), pick(all)
	for abs(int(history.When(h["calls"][i])-history.When(h["calls"][j]))) < int(20*time.Millisecond) {
		i, j = pick(all), pick(all)
	}
	if history.When(h["calls"][i]) < history.When(h["calls"][j]) {
		i, j = j, i
	}
	edit(h, "calls", i, func(c *history.Call) { c.First = h["calls"][j].(history.Call).Last; c.Last = c.First })
	return "calls", i
}

// plantReuseNear gives a number to two concurrent calls: the order of time is not violated.
func plantReuseNear(h files, pick func([]int) int) (string, int) {
	all := find(h, "calls", isAnswered)
	for {
		i := pick(all)
		a := h["calls"][i].(history.Call)
		for _, j := range all {
			b := h["calls"][j].(history.Call)
			if b.First == a.Last+1 && b.Token == a.Token && a.Start < b.End && b.Start < a.End {
				edit(h, "calls", j, func(c *history.Call) { c.First = a.Last })
				return "calls", -1 // either may be named first
			}
		}
	}
}

// plantOutOfOrder gives a number that nobody has to a call which began after a larger
// one had been handed out.
func plantOutOfOrder(h files, pick func([]int) int) (string, int) {
	used := map[uint64]bool{}
	for _, i := range find(h, "calls", func(c history.Call) bool { return c.Answered() }) {
		c := h["calls"][i].(history.Call)
		for n := c.First; n <= c.Last; n++ {
			used[n] = true
		}
	}
	free := uint64(1)
	for used[free] {
		free++
	}
	late := find(h, "calls", func(c history.Call) bool { return c.Answered() && c.First > free+100 })
	i := pick(late)
	edit(h, "calls", i, func(c *history.Call) { c.First, c.Last, c.Token = free, free, 1 })
	return "calls", i
}

func abs(n int) int { return max(n, -n) }

// Its check finds each planted violation, and names the guarantee and the line.
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
			want := history.Place{File: file + extension, Line: line + 1}
			if line >= 0 && !slices.ContainsFunc(v.Findings, func(f verdict.Finding) bool {
				return slices.Contains(f.At, want) && strings.Contains(f.What, p.says)
			}) {
				t.Fatalf("%v with %q is not in %v", want, p.says, v.Findings)
			}
		})
	}
}

// A violation at a random place of a random history is found. Other checks may find it too.
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
