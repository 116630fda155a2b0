package machine

import "time"

// defaults are those of lease.Default, which cannot be imported here.
func defaults() Timing {
	return Timing{
		TTL: 8 * time.Second, Beat: 2 * time.Second, Misses: 3, Drift: 0.02, Margin: 200 * time.Millisecond,
		CallTimeout: 2 * time.Second, Step: 20 * time.Millisecond, BackoffMin: 50 * time.Millisecond, BackoffMax: 2 * time.Second,
	}
}

// wan is lease.WAN.
func wan() Timing {
	return Timing{
		TTL: 15 * time.Second, Beat: 3 * time.Second, Misses: 4, Drift: 0.02, Margin: 375 * time.Millisecond,
		CallTimeout: 3750 * time.Millisecond, Step: 37500 * time.Microsecond, BackoffMin: 50 * time.Millisecond, BackoffMax: 3 * time.Second,
	}
}
