package sim

import (
	"errors"
	"time"
)

// link is the network between a process and the store or a sink. Each direction can
// be cut, and messages can be delayed, lost and duplicated.
type link struct {
	w        *world
	cutOut   bool // messages from the process are lost
	cutIn    bool // messages to the process are lost
	slowOut  time.Duration
	slowIn   time.Duration
	lossy    float64
	doubling float64
}

var (
	errReset    = errors.New("connection reset")
	errStopping = errors.New("the instance stops")
)

// delay is mostly a millisecond, and sometimes much more.
func (r *link) delay(slow time.Duration) time.Duration {
	d := r.w.between(100*time.Microsecond, 1500*time.Microsecond)
	if r.w.faulty && r.w.chance(0.02) {
		d += r.w.between(0, 50*time.Millisecond)
	}
	if slow > 0 {
		d += r.w.between(0, slow)
	}
	return d
}

func (r *link) loses() bool { return r.lossy > 0 && r.w.chance(r.lossy) }

// there sends a message, and reports whether it will arrive. If it is lost, fail may be
// called, with an unknown outcome. The second copy of a duplicated message arrives late.
func (r *link) there(arrive func(), fail func(error)) bool {
	if r.cutOut || r.loses() {
		if r.w.chance(0.3) {
			r.w.after(r.delay(r.slowOut), func() { fail(errReset) })
		}
		return false
	}
	r.w.after(r.delay(r.slowOut), arrive)
	if r.doubling > 0 && r.w.chance(r.doubling) {
		r.w.after(r.w.between(time.Millisecond, 2*r.w.timing.TTL), arrive)
	}
	return true
}

// back sends an answer.
func (r *link) back(arrive func()) {
	if r.cutIn || r.loses() {
		return
	}
	r.w.after(r.delay(r.slowIn), arrive)
}

func (r *link) heal() {
	r.cutOut, r.cutIn, r.slowOut, r.slowIn, r.lossy, r.doubling = false, false, 0, 0, 0, 0
}
