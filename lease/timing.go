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

// Timing has the TTL and all other durations. A zero field is derived from TTL, so
// Timing{TTL: 3 * time.Second} is complete. Resolve fills in the fields, Validate
// checks the relations between them, and Explain says what they mean for users.
type Timing struct {
	// TTL is how long a session lives after its last keep-alive: how long a group has
	// no leader after a crash. From 20 ms to 24 h. Default 8 s.
	TTL time.Duration
	// Beat is the time between keep-alives, at least 1 ms. Default TTL/4, so that two
	// can fail in a row and the third still keeps the term.
	Beat time.Duration
	// Misses × Beat is how long the store may be silent before a term is at risk
	// (Term.AtRisk) and the node logs a warning. Only the end of trust ends a term. It
	// must be less than the trust that one keep-alive gives. Default 3.
	Misses int
	// Drift is the largest difference in rate between this clock and the engine's, as
	// a fraction below 0.5. It shortens trust. Default 0.02. Zero means the default: if
	// the clocks are perfect, use a very small number. Only the simulator, which does
	// not call Resolve, uses an exact zero.
	Drift float64
	// Margin shortens trust further, for an engine that acknowledges keep-alives a
	// little longer than it should. Less than TTL/2. Default the larger of 50 ms and
	// TTL/40; for a TTL below about 220 ms set a smaller one.
	Margin time.Duration
	// CallTimeout bounds each call to the store. It must be well below the TTL, so that
	// a call to another member of the engine can succeed before trust ends: Beat +
	// CallTimeout must be less than the trust that one keep-alive gives. Default TTL/4.
	CallTimeout time.Duration
	// Step is how long each candidate in line waits for the one before it when a
	// group falls vacant. If a recent commit took longer, that time is used. At most
	// TTL. Default the larger of 20 ms and TTL/400.
	Step time.Duration
	// BackoffMin and BackoffMax bound the pause after a failed call: exponential with
	// full jitter. BackoffMin ≤ BackoffMax ≤ TTL. Default 50 ms (or Beat, if shorter)
	// and Beat. With many candidates the pause before another Open or watch grows to
	// one Step for each candidate, at most 2 × TTL, so that they do not overload an
	// engine that is back after an outage.
	BackoffMin, BackoffMax time.Duration
	// Grace is how long before the end of trust a term ends (its context and Check),
	// so that work can stop in time. It leaves less time for pauses and failed
	// keep-alives. Default 0.
	Grace time.Duration
}

// The bounds of a TTL.
const minTTL, maxTTL = 20 * time.Millisecond, 24 * time.Hour

// Default suits processes in the same region as their engine: after a crash there is
// no leader for eight seconds, and no pause of up to five seconds ends a term.
func Default() Timing {
	return Timing{
		TTL:    8 * time.Second, // longer than pauses by garbage collection or a busy host
		Beat:   2 * time.Second, // three attempts before trust ends; an engine's own election takes less
		Misses: 3,               // two failures in a row are normal; the third attempt is the last
	}.Resolve()
}

// LAN suits processes in the same zone as their engine, if a fast failover matters
// more than a few unnecessary ones.
func LAN() Timing {
	return Timing{
		TTL: 3 * time.Second, // a little longer than an engine's own election, which takes one to two seconds
	}.Resolve()
}

// WAN suits candidates that reach their engine across regions.
func WAN() Timing {
	return Timing{
		TTL:    15 * time.Second, // longer than a route takes to settle
		Beat:   3 * time.Second,  // four attempts before trust ends: packet loss comes in bursts
		Misses: 4,                // three failures in a row are normal
	}.Resolve()
}

// Cautious suits work for which a change of leader costs more than half a minute
// without a leader: slow starts, large caches, live migration of machines.
func Cautious() Timing {
	return Timing{
		TTL:    30 * time.Second, // longer than a live migration or a stalled disk
		Beat:   5 * time.Second,  // five attempts before trust ends, with few calls
		Misses: 5,                // warn only when most of the trust has passed
	}.Resolve()
}

// Resolve fills in the fields that are zero, as their comments say. It does not check
// the others: call Validate.
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

// Validate checks a complete Timing. It returns an ArgumentError for each broken rule,
// joined. Drift and Margin may be zero: the simulator runs without them, because
// margins hide bugs.
func (t Timing) Validate() error {
	var broken []error
	// rule reports whether the rule holds. Rules on invalid values are skipped below.
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

// plus returns a+b, or the largest duration if that overflows. Both must be positive.
func plus(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// tidy rounds a computed duration for display.
func tidy(d time.Duration) time.Duration {
	if d >= time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}

// percent formats a fraction for display.
func percent(f float64) string { return strconv.FormatFloat(100*f, 'g', 3, 64) + " %" }

// window is the trust that one keep-alive gives, counted from when it is sent.
func (t Timing) window() time.Duration { return machine.Timing(t).Window() }
