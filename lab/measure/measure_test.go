package measure

import (
	"strings"
	"testing"
	"time"
)

// At returns measurements, sorted, and the shortest and the longest at the ends.
func TestSeries(t *testing.T) {
	t.Parallel()
	s := Series{4, 1, 3, 2}
	for q, want := range map[float64]time.Duration{0: 1, 0.25: 1, 0.5: 2, 0.51: 3, 0.95: 4, 1: 4} {
		if got := s.At(q); got != want {
			t.Errorf("At(%v) is %v, want %v", q, got, want)
		}
	}
	if Series(nil).At(1) != 0 {
		t.Error("an empty series has a measurement")
	}
}

// Each kind of bar can be met and missed. Nothing measured never meets a bar that needs
// something.
func TestBars(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		good, bad func(Judge)
	}{
		"count":         {func(j Judge) { j.Count("x", 2, 2) }, func(j Judge) { j.Count("x", 1, 2) }},
		"count nothing": {func(j Judge) { j.Count("x", 1, 1) }, func(j Judge) { j.Count("x", 0, 0) }},
		"none":          {func(j Judge) { j.None("x", 0) }, func(j Judge) { j.None("x", 1) }},
		"some":          {func(j Judge) { j.Some("x", 1) }, func(j Judge) { j.Some("x", 0) }},
		"at least":      {func(j Judge) { j.AtLeast("x", 2, 2) }, func(j Judge) { j.AtLeast("x", 1, 2) }},
		"at most":       {func(j Judge) { j.AtMost("x", 2, 2) }, func(j Judge) { j.AtMost("x", 3, 2) }},
		"at most 0":     {func(j Judge) { j.AtMost("x", 0, 1) }, func(j Judge) { j.AtMost("x", 0, 0) }},
		"below":         {func(j Judge) { j.Below("x", Series{ms}, 2*ms, 1) }, func(j Judge) { j.Below("x", Series{2 * ms}, 2*ms, 1) }},
		"below, few":    {func(j Judge) { j.Below("x", Series{ms, ms}, 2*ms, 2) }, func(j Judge) { j.Below("x", Series{ms}, 2*ms, 2) }},
		"below nothing": {func(j Judge) { j.Below("x", Series{ms}, 2*ms, 1) }, func(j Judge) { j.Below("x", nil, 2*ms, 0) }},
		"above 0":       {func(j Judge) { j.Above0("x", "> 0", Series{ms, ms}, 2) }, func(j Judge) { j.Above0("x", "> 0", Series{ms, 0}, 2) }},
	} {
		for want, add := range map[bool]func(Judge){true: c.good, false: c.bad} {
			var s Summary
			add(Judge{&s, "trial"})
			if s.Passed() != want || s.Thresholds[0].Name != "trial: x" {
				t.Errorf("%s: %+v, want %v", name, s.Thresholds, want)
			}
		}
	}
	if (Summary{}).Passed() {
		t.Error("a summary without bars has passed")
	}
}

// A summary prints thresholds before tables, and leaves empty tables out.
func TestPrint(t *testing.T) {
	t.Parallel()
	var s Summary
	s.Table("empty", "trial")
	j := Judge{&s, "a"}
	j.Series("latency", "a", Series{time.Second})
	j.Row("rows", []string{"what"}, 7)
	j.Some("writes", 0)
	var b strings.Builder
	if err := s.Print(&b); err != nil {
		t.Fatal(err)
	}
	const want = `  missed  a: writes  0  > 0

  latency
    trial  n  p50      p95      max
    a      1  1000 ms  1000 ms  1000 ms

  rows
    trial  what
    a      7
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
