package advise

import (
	"context"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// LongestPause measures for d and returns the longest time for which this process was
// ready to run and did not run.
func LongestPause(ctx context.Context, d time.Duration) time.Duration {
	const tick = time.Millisecond
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
