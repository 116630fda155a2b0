package sim

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/internal/plant"
)

// Summary is the result of many runs.
type Summary struct {
	Seeds      int
	Total      Result // sums; Hash folds the hashes of all seeds in their order
	Violations []*Violation
	Took       time.Duration
}

// Many runs the seeds first, first+1, … on all cores. It stops after stopAfter
// violations (0: never). progress, if not nil, gets the number of finished seeds.
func Many(cfg Config, first uint64, seeds, stopAfter int, progress func(done int)) *Summary {
	start := time.Now()
	results := make([]*Result, seeds)
	var next, done, broken atomic.Int64
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= seeds || stopAfter > 0 && broken.Load() >= int64(stopAfter) {
					return
				}
				c := cfg
				c.Seed = first + uint64(i)
				results[i] = Run(c)
				if results[i].Violation != nil {
					broken.Add(1)
				}
				if d := int(done.Add(1)); progress != nil {
					progress(d)
				}
			}
		})
	}
	wait.Wait()
	s := &Summary{Total: Result{Faults: map[string]int{}, Endings: map[string]int{}}}
	for _, r := range results {
		if r != nil {
			s.add(r)
		}
	}
	s.Took = time.Since(start)
	return s
}

func (s *Summary) add(r *Result) {
	t := &s.Total
	s.Seeds++
	if r.Violation != nil {
		s.Violations = append(s.Violations, r.Violation)
	}
	t.Virtual += r.Virtual
	t.Events += r.Events
	t.Calls += r.Calls
	t.Terms += r.Terms
	t.Writes += r.Writes
	t.Refused += r.Refused
	t.StaleFenced += r.StaleFenced
	t.StaleUnfenced += r.StaleUnfenced
	t.Overlaps += r.Overlaps
	t.Overruns += r.Overruns
	t.Busiest = max(t.Busiest, r.Busiest)
	t.Tries = append(t.Tries, r.Tries...)
	t.Vacant = append(t.Vacant, r.Vacant...)
	for k, v := range r.Faults {
		t.Faults[k] += v
	}
	for k, v := range r.Endings {
		t.Endings[k] += v
	}
	t.Hash = (t.Hash ^ r.Hash) * 1099511628211
}

// Quantile returns the value below which the fraction q of the values lies.
func Quantile[T cmp.Ordered](values []T, q float64) T {
	if len(values) == 0 {
		var zero T
		return zero
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// Print prints the summary.
func (s *Summary) Print(out io.Writer) {
	t := &s.Total
	faults := 0
	for _, n := range t.Faults {
		faults += n
	}
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(out, "  %-46s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("seeds", "%d in %.1f s", s.Seeds, s.Took.Seconds())
	line("virtual time", "%.0f hours", t.Virtual.Hours())
	line("events", "%d", t.Events)
	line("store calls", "%d", t.Calls)
	line("terms", "%d (%s)", t.Terms, counts(t.Endings))
	line("writes that took effect", "%d", t.Writes)
	line("stale writes refused by the fence", "%d", t.Refused)
	line("stale writes accepted, fenced", "%d", t.StaleFenced)
	line("stale writes accepted, unfenced", "%d", t.StaleUnfenced)
	line("overlaps of belief under pause", "%d (a term began while a paused process had not been told)", t.Overlaps)
	line("work that did not return in time", "%d", t.Overruns)
	line("vacancies", "%d, of %v at the median, %v at p99", len(t.Vacant), Quantile(t.Vacant, 0.5).Round(time.Microsecond), Quantile(t.Vacant, 0.99).Round(time.Microsecond))
	line("acquire attempts per vacancy", "p50 %d, p99 %d", Quantile(t.Tries, 0.5), Quantile(t.Tries, 0.99))
	line("busiest process", "%d %% of the calls that are allowed in ten seconds", t.Busiest)
	line("what occurred", "%d times", faults)
	for _, name := range Kinds() {
		line("  "+name, "%d", t.Faults[name])
	}
	line("hash", "%016x", t.Hash)
}

// Missing lists the kinds that should have occurred and did not.
func (s *Summary) Missing() []string {
	return slices.DeleteFunc(Kinds(), func(name string) bool { return s.Total.Faults[name] > 0 })
}

func counts(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}

// The bars for the cost of an election with a hundred candidates: acquires per
// vacancy, and calls of one candidate in a minute. A keep-alive every two seconds and a
// list every eleven seconds make 36 calls.
const (
	HerdCandidates = 100
	HerdP50        = 2
	HerdP99        = 5
	HerdCalls      = 40
)

// HerdCost is the cost of elections with a hundred candidates.
type HerdCost struct {
	P50, P99  int // acquires per vacancy
	Vacancies int
	Calls     int // per candidate and minute
}

// OK reports whether the bars are met.
func (h HerdCost) OK() bool { return h.P50 <= HerdP50 && h.P99 <= HerdP99 && h.Calls <= HerdCalls }

func (h HerdCost) String() string {
	return fmt.Sprintf("acquire attempts per vacancy with %d candidates: p50 %d, p99 %d over %d vacancies; %d calls per candidate and minute",
		HerdCandidates, h.P50, h.P99, h.Vacancies, h.Calls)
}

// Herd runs calm worlds with a hundred candidates.
func Herd(p plant.Set, first uint64, seeds int) HerdCost {
	t := Many(Config{Candidates: HerdCandidates, Calm: true, Plant: p}, first, seeds, 0, nil).Total
	return HerdCost{
		P50: Quantile(t.Tries, 0.5), P99: Quantile(t.Tries, 0.99), Vacancies: len(t.Tries),
		Calls: int(float64(t.Calls) / HerdCandidates / t.Virtual.Minutes()),
	}
}

// Caught says how a planted bug was found.
type Caught struct {
	Bug       plant.Bug
	Seeds     int // seeds that were needed
	Violation *Violation
	Took      time.Duration
}

// Hunt looks for a planted bug in at most seeds seeds.
func Hunt(bug plant.Bug, first uint64, seeds int) Caught {
	start := time.Now()
	c := Caught{Bug: bug}
	if bug == plant.Herd {
		// This bug breaks no guarantee, only the bar.
		h := Herd(plant.Of(bug), first, 2)
		c.Seeds = 2
		if !h.OK() {
			c.Violation = &Violation{Seed: first, Guarantee: "bar", Detail: h.String()}
		}
	} else {
		s := Many(Config{Plant: plant.Of(bug)}, first, seeds, 1, nil)
		c.Seeds = s.Seeds
		if len(s.Violations) > 0 {
			c.Violation = s.Violations[0]
			c.Seeds = int(c.Violation.Seed-first) + 1
		}
	}
	c.Took = time.Since(start)
	return c
}
