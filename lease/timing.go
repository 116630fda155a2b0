package lease

import "time"

// Timing says how long everything takes. A zero field is derived from TTL, so
// Timing{TTL: 3 * time.Second} is complete; Resolve fills it in, Validate checks
// the relations between the fields.
type Timing struct {
	// TTL is how long a session outlives its last keep-alive at the store: the
	// time that a crash costs. Default 8 s.
	TTL time.Duration
	// Beat is the time between keep-alives. Default TTL/4, so that three may be
	// lost in a row.
	Beat time.Duration
	// Misses is how many beats may fail in a row before it is said aloud. Missed
	// beats only warn: trust alone ends a term. Misses × Beat must be less than
	// the trust that one keep-alive gives. Default 3.
	Misses int
	// Drift is the largest difference of rate between this clock and the
	// engine's, as a fraction. Trust is shortened by it. Default 0.02.
	Drift float64
	// Margin is taken off trust once more, for what drift does not cover: an
	// engine that acknowledges a little longer than it should. Default the larger
	// of 50 ms and TTL/40.
	Margin time.Duration
	// CallTimeout bounds each call to the store; it must be well inside the TTL,
	// so that another member can be asked before trust ends. Default TTL/4.
	CallTimeout time.Duration
	// Step is how long each candidate in line waits for the one before it when a
	// group falls vacant; the slowest recent commit is used when that was longer.
	// Default the larger of 20 ms and TTL/400.
	Step time.Duration
	// BackoffMin and BackoffMax bound the pause after a failed call: exponential
	// with full jitter. Default 50 ms (or Beat, if shorter) and Beat.
	BackoffMin, BackoffMax time.Duration
	// Grace is how long before the end of trust the context of a term ends, so
	// that work can stop in time. Default 0: work may go on to the last moment.
	Grace time.Duration
}

// window is the trust that one keep-alive gives, counted from its sending.
func (t Timing) window() time.Duration { return t.trust(t.TTL) }

// trust returns how long after its sending a keep-alive that was granted ttl may
// be believed.
func (t Timing) trust(ttl time.Duration) time.Duration {
	return time.Duration(float64(ttl)*(1-t.Drift)) - t.Margin
}
