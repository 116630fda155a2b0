package history

import (
	"cmp"
	"time"
)

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// TTL is the TTL of the lease.
func (r Run) TTL() time.Duration { return ms(r.TTLMS) }

// Wake is WakeMS or its default.
func (r Run) Wake() time.Duration { return ms(cmp.Or(r.WakeMS, 150)) }

// Late is LateMS or its default.
func (r Run) Late() time.Duration { return ms(cmp.Or(r.LateMS, 20)) }

// Seen is SeenMS or its default.
func (r Run) Seen() time.Duration { return ms(cmp.Or(r.SeenMS, 500)) }

// CrashBound is the longest failover after a crash without other faults, given a round
// trip to the engine: TTL·(1 + Drift) + 3 round trips + the engine's delay.
func (r Run) CrashBound(roundTrip time.Duration) time.Duration {
	return r.BeliefBound() + 3*roundTrip + ms(r.EngineDelayMS)
}

// RecoveryBound is the bound of G7: how long nobody may lead after the last of any number
// of faults. It is the simulator's bound without the time for a watch that failed
// unnoticed, plus the engine's delay.
func (r Run) RecoveryBound() time.Duration {
	return r.TTL()*11/10 + 7*ms(r.BeatMS) + 2*ms(r.CallTimeoutMS) + 2*ms(r.BackoffMaxMS) + ms(r.EngineDelayMS)
}

// BeliefBound is how long a leader may believe after the engine lost its quorum: a TTL on
// its own clock from the last acknowledged keep-alive, which was sent before the loss.
func (r Run) BeliefBound() time.Duration { return time.Duration(float64(r.TTL()) * (1 + r.Drift)) }

// SilentAfter is how long after the loss of the quorum the history may still show a belief:
// BeliefBound, and the time from the node's timer to its record.
func (r Run) SilentAfter() time.Duration { return r.BeliefBound() + r.Wake() }
