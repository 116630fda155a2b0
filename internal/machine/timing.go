package machine

import (
	"math"
	"time"
)

// Timing has the fields of lease.Timing, which documents, completes and validates them.
type Timing struct {
	TTL                    time.Duration
	Beat                   time.Duration
	Misses                 int
	Drift                  float64
	Margin                 time.Duration
	CallTimeout            time.Duration
	Step                   time.Duration
	BackoffMin, BackoffMax time.Duration
	Grace                  time.Duration
}

// Window is how long one keep-alive is trusted, counted from when it is sent.
func (t Timing) Window() time.Duration { return t.Trust(t.TTL) }

// Trust returns how long a holder may rely on a keep-alive that was granted ttl, counted
// from when it was sent.
func (t Timing) Trust(ttl time.Duration) time.Duration {
	return time.Duration(float64(ttl)*(1-t.Drift)) - t.Margin
}

// Times returns d*n, or the largest duration if that overflows. Both must be positive.
func Times(d time.Duration, n int) time.Duration {
	if d > math.MaxInt64/time.Duration(n) {
		return math.MaxInt64
	}
	return d * time.Duration(n)
}
