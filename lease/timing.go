package lease

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/store"
)

// Timing says how long everything takes. A zero field is derived from TTL, so
// Timing{TTL: 3 * time.Second} is complete; Resolve fills it in, Validate checks
// the relations between the fields, and Explain says what they mean for users.
type Timing struct {
	// TTL is how long a session outlives its last keep-alive at the store: the
	// time that a crash costs. From 20 ms to 24 h. Default 8 s.
	TTL time.Duration
	// Beat is the time between keep-alives, at least 1 ms. Default TTL/4, so that
	// two may be lost in a row and the third still saves the term.
	Beat time.Duration
	// Misses × Beat is how long the store may be silent before it is said aloud.
	// Missed beats only warn: trust alone ends a term. It must be less than the
	// trust that one keep-alive gives. Default 3.
	Misses int
	// Drift is the largest difference of rate between this clock and the
	// engine's, as a fraction below 0.5. Trust is shortened by it. Default 0.02.
	// Zero means the default: an exact zero is for the simulator alone, which does
	// not call Resolve. Whoever has perfect clocks writes a very small number.
	Drift float64
	// Margin is taken off trust once more, for what drift does not cover: an
	// engine that acknowledges a little longer than it should. Less than TTL/2.
	// Default the larger of 50 ms and TTL/40, so that a TTL below about 220 ms
	// needs a margin of its own.
	Margin time.Duration
	// CallTimeout bounds each call to the store; it must be well inside the TTL,
	// so that another member can be asked before trust ends: Beat + CallTimeout
	// is less than the trust that one keep-alive gives. Default TTL/4.
	CallTimeout time.Duration
	// Step is how long each candidate in line waits for the one before it when a
	// group falls vacant; the slowest recent commit is used when that was longer.
	// At most TTL. Default the larger of 20 ms and TTL/400.
	Step time.Duration
	// BackoffMin and BackoffMax bound the pause after a failed call: exponential
	// with full jitter. They do not fall, and stay within TTL. Default 50 ms (or
	// Beat, if shorter) and Beat. In a large fleet the pause before a session is
	// opened or a watch begun again grows further, to one Step for each candidate
	// and 2 × TTL at most, so that an engine that is back after an outage can answer.
	BackoffMin, BackoffMax time.Duration
	// Grace is how long before the end of trust a term ends (its context, and what
	// Check says), so that work can stop in time. What it takes, pauses and lost beats no longer
	// have. Default 0: work may go on to the last moment.
	Grace time.Duration
}

// The bounds of a TTL.
const minTTL, maxTTL = 20 * time.Millisecond, 24 * time.Hour

// Default suits processes in one region beside their engine: a crash costs eight
// seconds, and no pause of up to five ends a term.
func Default() Timing {
	return Timing{
		TTL:    8 * time.Second, // garbage collection and a busy neighbour pass unnoticed
		Beat:   2 * time.Second, // three attempts before trust ends; an engine's own election takes less
		Misses: 3,               // two in a row happen, the third is the last that can help
	}.Resolve()
}

// LAN suits processes and engine in one zone that would rather fail over too
// often than late.
func LAN() Timing {
	return Timing{
		TTL: 3 * time.Second, // outlasts an engine's own election of one to two seconds, and little more
	}.Resolve()
}

// WAN suits candidates that reach their engine across regions.
func WAN() Timing {
	return Timing{
		TTL:    15 * time.Second, // a route that flaps settles within it
		Beat:   3 * time.Second,  // four attempts before trust ends: packets are lost in runs
		Misses: 4,                // three in a row are an ordinary day
	}.Resolve()
}

// Cautious suits work for which a change of leader costs more than half a minute
// without one: long starts, large caches, machines that migrate.
func Cautious() Timing {
	return Timing{
		TTL:    30 * time.Second, // a live migration or a stalled disk ends no term
		Beat:   5 * time.Second,  // five attempts before trust ends, for few calls
		Misses: 5,                // until most of the trust is spent it is noise
	}.Resolve()
}

// Resolve fills the fields that are zero, as their comments say. It does not
// touch the others, however wrong: that is for Validate to say.
func (t Timing) Resolve() Timing {
	t.TTL = cmp.Or(t.TTL, 8*time.Second)
	t.Beat = cmp.Or(t.Beat, t.TTL/4)
	t.Misses = cmp.Or(t.Misses, 3)
	t.Drift = cmp.Or(t.Drift, 0.02)
	t.Margin = cmp.Or(t.Margin, max(50*time.Millisecond, t.TTL/40))
	t.CallTimeout = cmp.Or(t.CallTimeout, t.TTL/4)
	t.Step = cmp.Or(t.Step, max(20*time.Millisecond, t.TTL/400))
	t.BackoffMin = cmp.Or(t.BackoffMin, min(50*time.Millisecond, t.Beat))
	t.BackoffMax = cmp.Or(t.BackoffMax, t.Beat)
	return t
}

// Validate returns an ArgumentError for each rule that a complete Timing breaks,
// joined, with the numbers. Drift and Margin may be zero here: the simulator
// runs without them, because margins hide bugs.
func (t Timing) Validate() error {
	var broken []error
	// rule reports whether it holds, so that nothing is computed from nonsense.
	rule := func(holds bool, format string, args ...any) bool {
		if !holds {
			broken = append(broken, &store.ArgumentError{Field: "timing", Rule: fmt.Sprintf(format, args...)})
		}
		return holds
	}

	ttl := rule(t.TTL >= minTTL && t.TTL <= maxTTL, "TTL = %v must be from %v to %v", t.TTL, minTTL, maxTTL)
	beat := rule(t.Beat >= time.Millisecond, "Beat = %v must be at least %v", t.Beat, time.Millisecond)
	misses := rule(t.Misses >= 1, "Misses = %d must be at least 1", t.Misses)
	drift := rule(t.Drift >= 0 && t.Drift < 0.5, "Drift = %v must be from 0 to below 0.5: it is a fraction, 0.02 is 2 %%", t.Drift)
	margin := rule(t.Margin >= 0, "Margin = %v must not be negative", t.Margin)
	call := rule(t.CallTimeout > 0, "CallTimeout = %v must be positive", t.CallTimeout)
	step := rule(t.Step > 0, "Step = %v must be positive", t.Step)
	grace := rule(t.Grace >= 0, "Grace = %v must not be negative", t.Grace)
	backoff := rule(t.BackoffMin > 0, "BackoffMin = %v must be positive", t.BackoffMin) &&
		rule(t.BackoffMin <= t.BackoffMax, "BackoffMin = %v must not be above BackoffMax = %v", t.BackoffMin, t.BackoffMax)

	if ttl {
		margin = margin && rule(t.Margin < t.TTL/2, "Margin = %v must be less than half of TTL = %v: set Margin by hand for a TTL this short, or lengthen it", t.Margin, t.TTL)
		if step {
			rule(t.Step <= t.TTL, "Step = %v must not be above TTL = %v", t.Step, t.TTL)
		}
		if backoff {
			rule(t.BackoffMax <= t.TTL, "BackoffMax = %v must not be above TTL = %v", t.BackoffMax, t.TTL)
		}
	}
	if !ttl || !drift || !margin || !grace {
		return errors.Join(broken...)
	}

	const sum = "the trust of one keep-alive, TTL·(1−drift) − margin"
	if !rule(t.Grace < t.window(), "Grace = %v must be less than %s = %v: lengthen the TTL", t.Grace, sum, tidy(t.window())) {
		return errors.Join(broken...)
	}
	room := t.window() - t.Grace
	if beat && misses {
		all := machine.Times(t.Beat, t.Misses)
		rule(all < room, "Misses × Beat = %d × %v = %v must be less than %s − grace = %v: shorten the beat or lengthen the TTL", t.Misses, t.Beat, all, sum, tidy(room))
	}
	if beat && call {
		all := plus(t.Beat, t.CallTimeout)
		rule(all < room, "Beat + CallTimeout = %v + %v = %v must be less than %s − grace = %v: a call that hangs would end the term", t.Beat, t.CallTimeout, all, sum, tidy(room))
	}
	return errors.Join(broken...)
}

// plus stops at the largest duration: a sum that wraps around would pass for a small one.
// The arguments are positive.
func plus(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// tidy rounds what came out of a multiplication by a fraction, for people.
func tidy(d time.Duration) time.Duration {
	if d >= time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}

// percent writes a fraction for people.
func percent(f float64) string { return strconv.FormatFloat(100*f, 'g', 3, 64) + " %" }

// window is the trust that one keep-alive gives, counted from its sending.
func (t Timing) window() time.Duration { return machine.Timing(t).Window() }
