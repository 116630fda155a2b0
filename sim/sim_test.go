package sim

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
)

// No guarantee is broken in any of these seeds. make sim runs more.
func TestGuarantees(t *testing.T) {
	seeds := 400 // a fifth of them are about the service, a tenth about shards
	if testing.Short() {
		seeds = 20
	}
	s := Many(Config{}, 1, seeds, 1, nil)
	for _, v := range s.Violations {
		t.Errorf("%v\n\treplay: go run ./sim/cmd/sim -seed %d -v", v, v.Seed)
	}
	// Faults without an effect prove nothing.
	if missing := s.Missing(); len(missing) > 0 && !testing.Short() {
		t.Errorf("never occurred: %q", missing)
	}
	if s.Total.StaleUnfenced == 0 || s.Total.Refused == 0 || s.Total.Overlaps == 0 {
		t.Errorf("no zombie tried: %d stale writes at the unfenced sink, %d refused, %d overlaps", s.Total.StaleUnfenced, s.Total.Refused, s.Total.Overlaps)
	}
	if s.Total.StaleFenced != 0 {
		t.Errorf("%d stale writes took effect at the fenced sink", s.Total.StaleFenced)
	}
}

// A run that is too short for all kinds lists those that are missing.
func TestMissing(t *testing.T) {
	s := Many(Config{}, 5, 1, 0, nil) // one plain world
	missing := s.Missing()
	for _, name := range []string{"slow store", "drill: crash", deposedAck} {
		if !slices.Contains(missing, name) {
			t.Errorf("a plain world is said to have had %q", name)
		}
	}
	for name, n := range s.Total.Faults {
		if n > 0 && slices.Contains(missing, name) {
			t.Errorf("%q occurred %d times and is missing", name, n)
		}
		if !slices.Contains(Kinds(), name) {
			t.Errorf("%q occurred and is not listed", name)
		}
	}
}

// Seeds that once found a bug stay clean.
func TestKeptSeeds(t *testing.T) {
	kept, err := os.ReadFile("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(kept)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		number, why, _ := strings.Cut(line, " ")
		seed, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			t.Fatalf("seeds.txt: %q: %v", line, err)
		}
		if v := Run(Config{Seed: seed}).Violation; v != nil {
			t.Errorf("%v\n\tit was once: %s", v, why)
		}
	}
}

// A seed is a bug report: the same seed gives the same run, to the last event,
// on one core and on two.
func TestRepeats(t *testing.T) {
	a := Many(Config{}, 1, 30, 0, nil)
	b := Many(Config{}, 1, 30, 0, nil)
	if a.Total.Hash != b.Total.Hash || a.Total.Events != b.Total.Events {
		t.Fatalf("two runs of the same seeds differ: hash %016x and %016x, events %d and %d", a.Total.Hash, b.Total.Hash, a.Total.Events, b.Total.Events)
	}
	if c := Many(Config{}, 2, 30, 0, nil); c.Total.Hash == a.Total.Hash {
		t.Fatal("other seeds give the same hash: it hashes nothing")
	}
}

// A vacancy costs one acquire, not one per candidate.
func TestHerd(t *testing.T) {
	h := Herd(plant.Set{}, 1, 2)
	if h.Vacancies < 20 {
		t.Fatalf("only %d vacancies", h.Vacancies)
	}
	if !h.OK() {
		t.Fatalf("%v; bars %d, %d and %d", h, HerdP50, HerdP99, HerdCalls)
	}
}

// Every planted bug is caught, and the same seeds without a bug are clean.
func TestPlanted(t *testing.T) {
	if !plant.Enabled {
		t.Log("this build cannot plant bugs; make test runs this with -tags planted as well")
		return
	}
	const seeds = 2000
	for _, b := range plant.All() {
		t.Run(b.String(), func(t *testing.T) {
			c := Hunt(b, 1, seeds)
			if c.Violation == nil {
				t.Fatalf("survived %d seeds", c.Seeds)
			}
			t.Logf("caught after %d seeds by %s: %s", c.Seeds, c.Violation.Guarantee, c.Violation.Detail)
			if v := Run(Config{Seed: c.Violation.Seed}).Violation; v != nil {
				t.Fatalf("the control, without the bug, is broken too: %v", v)
			}
		})
	}
}

// A clock's two directions agree: when is the first instant at which read says so.
func TestWheel(t *testing.T) {
	r := newRand(1)
	for range 10_000 {
		c := simClock{anchor: instant(r.Int64N(int64(time.Hour))), offset: clock.Instant(r.Int64N(int64(time.Hour))), ppm: r.Int64N(100_000) - 50_000}
		i := c.offset + clock.Instant(r.Int64N(int64(time.Hour)))
		at := c.when(i)
		if c.read(at) < i || at > c.anchor && c.read(at-1) >= i {
			t.Fatalf("%+v: when(%d) = %d, which reads %d, and %d one nanosecond before", c, i, at, c.read(at), c.read(at-1))
		}
	}
}
