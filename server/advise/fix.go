package advise

import (
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

// withTTL returns a timing with another TTL and its beat in the same proportion.
func withTTL(t lease.Timing, ttl time.Duration) lease.Timing {
	if t.Beat > 0 && t.TTL > 0 {
		t.Beat = max(time.Millisecond, (time.Duration(float64(t.Beat) * float64(ttl) / float64(t.TTL))).Round(time.Millisecond))
	}
	t.TTL = ttl
	return t
}

// roundTTLs returns round TTLs that the engine grants, shortest first.
func roundTTLs(c store.Caps) (out []time.Duration) {
	for _, r := range []struct{ first, last, unit time.Duration }{
		{2, 9, 10 * time.Millisecond}, {2, 9, 100 * time.Millisecond}, {1, 120, time.Second}, {3, 60, time.Minute},
	} {
		for n := r.first; n <= r.last; n++ {
			if ttl := n * r.unit; granted(c, ttl) == ttl {
				out = append(out, ttl)
			}
		}
	}
	return out
}

// ttlsThat returns the round TTLs for which a condition holds, shortest first.
func ttlsThat(t lease.Timing, g Goals, holds func(lease.Explanation) bool) (out []time.Duration) {
	for _, ttl := range roundTTLs(g.Engine) {
		if s := withTTL(t, ttl); s.Resolve().Validate() == nil && holds(s.Explain(g.assume())) {
			out = append(out, ttl)
		}
	}
	return out
}

// suggestFix looks for single fields whose change satisfies every rule.
func suggestFix(t lease.Timing) string {
	var ways []string
	found := map[string]bool{}
	try := func(flag string, value func(lease.Timing) any, change func(*lease.Timing)) bool {
		changed := t
		if change(&changed); found[flag] || changed == t || changed.Resolve().Validate() != nil {
			return false
		}
		found[flag] = true
		ways = append(ways, fmt.Sprintf("--%s=%v", flag, value(changed.Resolve())))
		return true
	}
	whole := t.Resolve()
	misses := func(t lease.Timing) any { return t.Misses }
	for m := whole.Misses - 1; m >= 1; m-- {
		if try("misses", misses, func(t *lease.Timing) { t.Misses = m }) {
			break
		}
	}
	beat := func(t lease.Timing) any { return t.Beat }
	for part := time.Duration(4); part <= 40; part += 2 {
		if b := (whole.TTL / part).Round(time.Millisecond); b < whole.Beat && try("beat", beat, func(t *lease.Timing) { t.Beat = b }) {
			break
		}
	}
	try("call-timeout", func(t lease.Timing) any { return t.CallTimeout }, func(t *lease.Timing) { t.CallTimeout = 0 })
	try("margin", func(t lease.Timing) any { return t.Margin }, func(t *lease.Timing) {
		t.Margin = max(time.Millisecond, (whole.TTL / 10).Round(time.Millisecond))
	})
	try("drift", func(t lease.Timing) any { return t.Drift }, func(t *lease.Timing) { t.Drift = 0 })
	try("grace", func(t lease.Timing) any { return t.Grace }, func(t *lease.Timing) { t.Grace = max(0, whole.TTL/8).Round(time.Millisecond) })
	try("misses", misses, func(t *lease.Timing) { t.Misses = 0 })
	try("beat", beat, func(t *lease.Timing) { t.Beat = 0 })
	try("step", func(t lease.Timing) any { return t.Step }, func(t *lease.Timing) { t.Step = 0 })
	for _, ttl := range roundTTLs(store.Caps{}) {
		if ttl > whole.TTL && try("ttl", func(t lease.Timing) any { return t.TTL }, func(t *lease.Timing) { t.TTL = ttl }) {
			break
		}
	}
	if len(ways) == 0 {
		return fmt.Sprintf("change several fields: leave all but the TTL at their defaults, and start with --ttl=%v", lease.Default().TTL)
	}
	return strings.Join(ways, ", or ")
}
