// Package wait has the ways in which the goroutines of the fleet wait.
package wait

import (
	"context"
	"time"
)

// For waits for d. It returns false at once when ctx ends.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Signal wakes the receiver of a channel that is buffered by one. A receiver that does not
// wait yet finds the signal when it does.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
