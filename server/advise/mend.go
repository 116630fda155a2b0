package advise

import (
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lease"
)

// scaled is a timing with another TTL, and the beat in the same proportion: what is
// derived follows by itself.
func scaled(t lease.Timing, ttl time.Duration) lease.Timing {
	if t.Beat > 0 && t.TTL > 0 {
		t.Beat = max(time.Millisecond, (time.Duration(float64(t.Beat) * float64(ttl) / float64(t.TTL))).Round(time.Millisecond))
	}
	t.TTL = ttl
	return t
}

// ladder are TTLs that a person would choose.
func ladder(e Engine) []time.Duration {
	var out []time.Duration
	for _, unit := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond} {
		for n := time.Duration(2); n < 10; n++ {
			out = append(out, n*unit)
		}
	}
	for n := time.Duration(1); n <= 120; n++ {
		out = append(out, n*time.Second)
	}
	for n := time.Duration(3); n <= 60; n++ {
		out = append(out, n*time.Minute)
	}
	var granted []time.Duration
	for _, ttl := range out {
		if e.granted(ttl) == ttl {
			granted = append(granted, ttl)
		}
	}
	return granted
}

// least is the shortest TTL at which something holds, and most the longest.
func least(t lease.Timing, w Wish, holds func(lease.Explanation) bool) (time.Duration, bool) {
	for _, ttl := range ladder(w.Engine) {
		if works(t, ttl, w, holds) {
			return ttl, true
		}
	}
	return 0, false
}

func most(t lease.Timing, w Wish, holds func(lease.Explanation) bool) (found time.Duration, ok bool) {
	for _, ttl := range ladder(w.Engine) {
		if works(t, ttl, w, holds) {
			found, ok = ttl, true
		}
	}
	return found, ok
}

func works(t lease.Timing, ttl time.Duration, w Wish, holds func(lease.Explanation) bool) bool {
	s := scaled(t, ttl)
	return s.Resolve().Validate() == nil && holds(s.Explain(w.assume()))
}

// mend looks for the smallest changes that make every relation hold: one field, else
// everything but the TTL left to its default, else a longer TTL as well.
func mend(t lease.Timing) string {
	sound := func(t lease.Timing) bool { return t.Resolve().Validate() == nil }
	var ways []string
	try := func(flag string, value any, changed lease.Timing) bool {
		if !sound(changed) {
			return false
		}
		ways = append(ways, fmt.Sprintf("--%s=%v", flag, value))
		return true
	}
	whole := t.Resolve()
	for m := whole.Misses - 1; m >= 1; m-- {
		c := t
		if c.Misses = m; try("misses", m, c) {
			break
		}
	}
	for part := time.Duration(4); part <= 40; part += 2 {
		c := t
		if c.Beat = (whole.TTL / part).Round(time.Millisecond); c.Beat < whole.Beat && try("beat", c.Beat, c) {
			break
		}
	}
	for _, one := range []struct {
		flag  string
		unset func(*lease.Timing)
		value func(lease.Timing) any
	}{
		{"call-timeout", func(t *lease.Timing) { t.CallTimeout = 0 }, func(t lease.Timing) any { return t.CallTimeout }},
		{"margin", func(t *lease.Timing) { t.Margin = max(time.Millisecond, (whole.TTL / 10).Round(time.Millisecond)) }, func(t lease.Timing) any { return t.Margin }},
		{"drift", func(t *lease.Timing) { t.Drift = 0 }, func(t lease.Timing) any { return t.Drift }},
		{"grace", func(t *lease.Timing) { t.Grace = max(0, whole.TTL/8).Round(time.Millisecond) }, func(t lease.Timing) any { return t.Grace }},
		{"misses", func(t *lease.Timing) { t.Misses = 0 }, func(t lease.Timing) any { return t.Misses }},
		{"beat", func(t *lease.Timing) { t.Beat = 0 }, func(t lease.Timing) any { return t.Beat }},
		{"step", func(t *lease.Timing) { t.Step = 0 }, func(t lease.Timing) any { return t.Step }},
	} {
		c := t
		if one.unset(&c); c != t {
			try(one.flag, one.value(c.Resolve()), c)
		}
	}
	for _, ttl := range ladder(Engine{}) {
		c := t
		if c.TTL = ttl; ttl > whole.TTL && try("ttl", ttl, c) {
			break
		}
	}
	if len(ways) == 0 {
		return fmt.Sprintf("several fields at once: leave all but the TTL to their defaults, and begin with --ttl=%v", lease.Default().TTL)
	}
	return strings.Join(unique(ways), ", or ")
}

func unique(in []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range in {
		if flag, _, _ := strings.Cut(s, "="); !seen[flag] {
			seen[flag] = true
			out = append(out, s)
		}
	}
	return out
}
