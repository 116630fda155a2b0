// Command sim plays simulated elections and fails when a guarantee is broken.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/sim"
)

func main() {
	debug.SetGCPercent(400) // worlds are small and make much garbage
	os.Exit(run())
}

func run() int {
	var (
		seeds    = flag.Int("seeds", 10000, "how many seeds to play")
		first    = flag.Uint64("first", 1, "the first seed")
		seed     = flag.Uint64("seed", 0, "play this one seed only")
		verbose  = flag.Bool("v", false, "with -seed: print everything that happens")
		planted  = flag.Bool("planted", false, "plant each bug in turn and see it caught (build with -tags planted)")
		bug      = flag.String("bug", "", "with -planted: only this bug; with -seed: plant it")
		duration = flag.Duration("duration", 10*time.Minute, "virtual time of each run")
		herd     = flag.Int("herd", 20, "how many runs with 100 candidates to measure the cost of an election with")
	)
	flag.Parse()
	if flag.NArg() > 0 || *seeds < 1 || *herd < 1 {
		fmt.Fprintln(os.Stderr, "usage: sim [-seeds n] [-first n] | -seed n [-v] | -planted [-bug name]")
		return 2
	}
	switch {
	case *seed != 0:
		return one(*seed, *duration, *verbose, *bug)
	case *planted:
		return hunt(*first, *seeds, *bug)
	default:
		return many(*first, *seeds, *duration, *herd)
	}
}

func one(seed uint64, duration time.Duration, verbose bool, bug string) int {
	cfg := sim.Config{Seed: seed, Duration: duration}
	for _, b := range plant.All() {
		if b.String() == bug {
			cfg.Plant = plant.Of(b)
		}
	}
	if verbose {
		cfg.Trace = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	}
	r := sim.Run(cfg)
	if r.Violation != nil {
		fmt.Println(r.Violation)
		return 1
	}
	fmt.Printf("seed %d: every guarantee held over %v: %d terms, %d events, hash %016x\n", seed, r.Virtual, r.Terms, r.Events, r.Hash)
	return 0
}

func many(first uint64, seeds int, duration time.Duration, herd int) int {
	fmt.Printf("simulating %d seeds of %v with 5 candidates\n", seeds, duration)
	s := sim.Many(sim.Config{Duration: duration}, first, seeds, 10, progress(seeds))
	s.Print(os.Stdout)
	h := sim.Herd(plant.Set{}, first, herd)
	fmt.Printf("  %-46s %d per candidate and minute\n", "store calls with 100 candidates", h.Calls)
	fmt.Printf("  %-46s p50 %d, p99 %d over %d vacancies\n", "attempts with 100 candidates", h.P50, h.P99, h.Vacancies)

	failed := 0
	bar := func(name string, value any, bar string, ok bool) {
		verdict := "ok"
		if !ok {
			verdict = "short"
			failed++
		}
		fmt.Printf("%-46s %-12v %-10s %s\n", name, value, bar, verdict)
	}
	fmt.Println()
	bar("guarantees broken", len(s.Violations), "0", len(s.Violations) == 0)
	bar("stale writes accepted, fenced", s.Total.StaleFenced, "0", s.Total.StaleFenced == 0)
	bar("stale writes accepted, unfenced, same seeds", s.Total.StaleUnfenced, "> 0", s.Total.StaleUnfenced > 0)
	missing := s.Missing()
	bar("kinds of faults and worlds that never occurred", len(missing), "0", len(missing) == 0)
	bar("acquire attempts, 100 candidates, p50", h.P50, fmt.Sprintf("<= %d", sim.HerdP50), h.P50 <= sim.HerdP50)
	bar("acquire attempts, 100 candidates, p99", h.P99, fmt.Sprintf("<= %d", sim.HerdP99), h.P99 <= sim.HerdP99)
	bar("store calls per candidate and minute", h.Calls, fmt.Sprintf("<= %d", sim.HerdCalls), h.Calls <= sim.HerdCalls)
	for _, name := range missing {
		fmt.Printf("never occurred: %s\n", name)
	}
	for _, v := range s.Violations {
		fmt.Printf("\n%v\n  replay: go run ./sim/cmd/sim -seed %d -v\n  keep:   add %d to sim/testdata/seeds.txt\n", v, v.Seed, v.Seed)
	}
	if failed > 0 {
		return 1
	}
	return 0
}

// progress says how far it is, once a second at most.
func progress(total int) func(int) {
	var mu sync.Mutex
	start, last := time.Now(), time.Now()
	return func(done int) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < 5*time.Second {
			return
		}
		last = time.Now()
		left := time.Duration(float64(time.Since(start)) / float64(done) * float64(total-done))
		fmt.Fprintf(os.Stderr, "  %d of %d seeds, about %v to go\n", done, total, left.Round(time.Second))
	}
}

func hunt(first uint64, seeds int, only string) int {
	if !plant.Enabled {
		fmt.Fprintln(os.Stderr, "sim: this build cannot plant bugs: go run -tags planted ./sim/cmd/sim -planted")
		return 2
	}
	start := time.Now()
	survived, needed := 0, 1
	fmt.Printf("%-22s %8s %8s  %s\n", "bug", "seeds", "took", "caught by")
	for _, b := range plant.All() {
		if only != "" && only != b.String() {
			continue
		}
		c := sim.Hunt(b, first, seeds)
		if c.Violation == nil {
			survived++
			fmt.Printf("%-22s %8d %7.1fs  SURVIVED\n", b, c.Seeds, c.Took.Seconds())
			continue
		}
		needed = max(needed, c.Seeds)
		fmt.Printf("%-22s %8d %7.1fs  %s: %s\n", b, c.Seeds, c.Took.Seconds(), c.Violation.Guarantee, c.Violation.Detail)
	}
	// The same seeds without a bug, or the net catches everything.
	control := sim.Many(sim.Config{}, first, needed, 0, nil)
	h := sim.Herd(plant.Set{}, first, 2)
	clean := len(control.Violations) == 0 && h.OK()
	fmt.Printf("%-22s %8d %7.1fs  ", "none (control)", control.Seeds, control.Took.Seconds())
	if clean {
		fmt.Println("no guarantee broken")
	} else {
		fmt.Printf("BROKEN: %v (%s)\n", control.Violations, h)
	}
	fmt.Printf("\nplanted bugs that survived: %d, control clean: %v, in %.0f s\n", survived, clean, time.Since(start).Seconds())
	if survived > 0 || !clean {
		return 1
	}
	return 0
}
