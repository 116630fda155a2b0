package keeper

import (
	"time"

	"github.com/tenurehq/tenure/clock"
)

// Reason says why the command is being stopped.
type Reason string

// The reasons. The zero Reason: it is not being stopped.
const (
	Exited   Reason = "exited"   // the command ended by itself
	Expired  Reason = "expired"  // the deadline is near
	Asked    Reason = "asked"    // the supervisor sent Stop
	Forced   Reason = "forced"   // the supervisor sent Kill
	Orphaned Reason = "orphaned" // the supervisor is gone
)

// watchdog decides when to send SIGTERM and SIGKILL. It reads no clock.
//
// V1: killAt is never after deadline − Reserve. V2: once it is stopping, nothing extends it.
type watchdog struct {
	grace    time.Duration
	deadline clock.Instant
	reason   Reason
	killAt   clock.Instant
}

// extend sets a later deadline.
func (w *watchdog) extend(deadline clock.Instant) {
	if w.reason == "" {
		w.deadline = max(w.deadline, deadline)
	}
}

// latestKill is when SIGKILL is sent at the latest.
func (w *watchdog) latestKill() clock.Instant { return w.deadline.Add(-Reserve) }

// stop begins to stop, and reports whether this call did: SIGTERM is then due.
func (w *watchdog) stop(now clock.Instant, reason Reason) bool {
	if w.reason != "" {
		return false
	}
	w.reason = reason
	w.killAt = min(now.Add(w.grace), w.latestKill())
	return true
}

// kill makes SIGKILL due now.
func (w *watchdog) kill(now clock.Instant, reason Reason) {
	w.stop(now, reason)
	w.killAt = min(w.killAt, now)
}

// due reports which signal is due.
func (w *watchdog) due(now clock.Instant) (term, kill bool) {
	if now >= w.latestKill().Add(-w.grace) {
		term = w.stop(now, Expired)
	}
	kill = w.reason != "" && now >= w.killAt
	return term && !kill, kill
}

// next is when to call due again.
func (w *watchdog) next() clock.Instant {
	if w.reason == "" {
		return w.latestKill().Add(-w.grace)
	}
	return w.killAt
}
