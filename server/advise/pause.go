package advise

import (
	"context"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// tick is how often a process looks whether it was stopped.
const tick = time.Millisecond

// LongestPause watches this process for a while and returns the longest time for which it
// did not get to run although it wanted to.
func LongestPause(ctx context.Context, d time.Duration) time.Duration {
	c := clock.System()
	var longest time.Duration
	last := c.Now()
	for end := last.Add(d); last < end && ctx.Err() == nil; {
		time.Sleep(tick)
		now := c.Now()
		longest = max(longest, now.Sub(last)-tick)
		last = now
	}
	return longest
}
