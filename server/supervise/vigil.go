package supervise

import (
	"time"

	"github.com/tenurehq/tenure/clock"
)

// ending says why the tree is being stopped.
type ending string

const (
	goesOn   ending = ""
	exited   ending = "exited"   // the command ended by itself
	expired  ending = "expired"  // the deadline came near
	asked    ending = "asked"    // the wrapper says that the term is over
	forced   ending = "forced"   // the wrapper says at once
	orphaned ending = "orphaned" // the wrapper is gone
)

// vigil decides when the tree is told to stop and when it is killed. It reads no clock.
//
// V1: killAt is never after deadline − Reserve. V2: once it is ending, nothing extends it.
type vigil struct {
	grace    time.Duration
	deadline clock.Instant
	why      ending
	killAt   clock.Instant
}

// extend takes a later deadline.
func (v *vigil) extend(deadline clock.Instant) {
	if v.why == goesOn {
		v.deadline = max(v.deadline, deadline)
	}
}

// last is when the killing begins, whatever happens.
func (v *vigil) last() clock.Instant { return v.deadline.Add(-Reserve) }

// stop begins the end and reports whether this call did: the tree is then to be told.
func (v *vigil) stop(now clock.Instant, why ending) bool {
	if v.why != goesOn {
		return false
	}
	v.why = why
	v.killAt = min(now.Add(v.grace), v.last())
	return true
}

// kill ends it now.
func (v *vigil) kill(now clock.Instant, why ending) {
	v.stop(now, why)
	v.killAt = min(v.killAt, now)
}

// due says what the time demands.
func (v *vigil) due(now clock.Instant) (tell, kill bool) {
	if now >= v.last().Add(-v.grace) {
		tell = v.stop(now, expired)
	}
	kill = v.why != goesOn && now >= v.killAt
	return tell && !kill, kill
}

// next is when to ask due again.
func (v *vigil) next() clock.Instant {
	if v.why == goesOn {
		return v.last().Add(-v.grace)
	}
	return v.killAt
}
