package supervise

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/supervise/keeper"
)

// Timing derives the timing of a session whose command gets a grace period between SIGTERM
// and SIGKILL. If that leaves too little time for keep-alives, the error says what to change.
func Timing(ttl, grace time.Duration) (lease.Timing, error) {
	t := lease.Timing{TTL: ttl}.Resolve()
	if grace < 0 {
		return t, fmt.Errorf("grace: %v is negative; 0 sends SIGKILL without SIGTERM", grace)
	}
	trust := time.Duration(float64(t.TTL)*(1-t.Drift)) - t.Margin
	room, least := trust-grace-keeper.Reserve, t.TTL/4
	if t.TTL > 0 && room < least {
		return t, fmt.Errorf("TTL %v is too short for a grace period of %v; use at least --ttl=%v%s", t.TTL, grace, ttlFor(t, grace), orGrace(trust-keeper.Reserve-least))
	}
	t.Grace = grace + keeper.Reserve
	t.Beat = min(t.Beat, room/4)
	t.CallTimeout = min(t.CallTimeout, room/4)
	const maxBackoff = 500 * time.Millisecond // so that a candidate is elected soon after an outage
	t.BackoffMax = min(t.Beat, maxBackoff)
	t.BackoffMin = min(t.BackoffMin, t.BackoffMax)
	return t, t.Validate()
}

func orGrace(most time.Duration) string {
	if most = most.Truncate(10 * time.Millisecond); most <= 0 {
		return ""
	}
	return fmt.Sprintf(", or at most --grace=%v", most)
}

// ttlFor returns the shortest TTL, in tenths of a second, that has room for the grace period.
func ttlFor(t lease.Timing, grace time.Duration) time.Duration {
	// Above 2 s the margin is TTL/40, below it is 50 ms.
	share := 1 - t.Drift - 0.25
	long := time.Duration(float64(grace+keeper.Reserve) / (share - 1.0/40))
	short := time.Duration(float64(grace+keeper.Reserve+50*time.Millisecond) / share)
	const step = 100 * time.Millisecond
	return (max(long, short) + step - 1).Truncate(step)
}
