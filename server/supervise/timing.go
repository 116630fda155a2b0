package supervise

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure/lease"
)

// Reserve is how long before the deadline SIGKILL is sent: a signal takes a moment to be
// sent, delivered and obeyed, and the keeper one to wake up.
const Reserve = 200 * time.Millisecond

// Timing derives how a session is kept alive for a command that gets grace between SIGTERM
// and SIGKILL. It refuses what would leave too little time for beats, with what to change.
func Timing(ttl, grace time.Duration) (lease.Timing, error) {
	t := lease.Timing{TTL: ttl}.Resolve()
	if grace < 0 {
		return t, fmt.Errorf("grace: %v is negative: 0 means SIGKILL without a SIGTERM before it", grace)
	}
	window := time.Duration(float64(t.TTL)*(1-t.Drift)) - t.Margin
	room, least := window-grace-Reserve, t.TTL/4
	if t.TTL > 0 && room < least {
		return t, fmt.Errorf("ttl %v, grace %v: a keep-alive is good for %v (TTL·(1−drift) − margin); less the grace and %v for the killing that is %v for the next ones to come through, and TTL/4 = %v is the least: take --ttl=%v or more%s",
			t.TTL, grace, window.Round(time.Millisecond), Reserve, room.Round(time.Millisecond), least, ttlFor(t, grace), orGrace(window-Reserve-least))
	}
	t.Grace = grace + Reserve
	t.Beat = min(t.Beat, room/4)
	t.CallTimeout = min(t.CallTimeout, room/4)
	t.BackoffMax = t.Beat
	t.BackoffMin = min(t.BackoffMin, t.Beat)
	return t, t.Validate()
}

func orGrace(most time.Duration) string {
	const step = 10 * time.Millisecond
	if most = most.Truncate(step); most <= 0 {
		return ""
	}
	return fmt.Sprintf(", or --grace=%v or less", most)
}

// ttlFor is the shortest TTL, in tenths of a second, that has room for the grace.
func ttlFor(t lease.Timing, grace time.Duration) time.Duration {
	// Above 2 s the margin is TTL/40, below it 50 ms.
	share := 1 - t.Drift - 0.25
	long := time.Duration(float64(grace+Reserve) / (share - 1.0/40))
	short := time.Duration(float64(grace+Reserve+50*time.Millisecond) / share)
	const step = 100 * time.Millisecond
	return (max(long, short) + step - 1).Truncate(step)
}
