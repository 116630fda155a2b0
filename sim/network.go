package sim

import (
	"errors"
	"time"
)

// road is what lies between a process and the store, or the sink: each direction
// can be cut, and messages be late, lost and doubled.
type road struct {
	w        *world
	cutOut   bool // what the process sends is lost
	cutIn    bool // what it is sent is lost
	slowOut  time.Duration
	slowIn   time.Duration
	lossy    float64
	doubling float64
}

var (
	errReset    = errors.New("connection reset")
	errStopping = errors.New("the instance stops")
)

// delay is mostly a millisecond, and now and then much more.
func (r *road) delay(slow time.Duration) time.Duration {
	d := r.w.between(100*time.Microsecond, 1500*time.Microsecond)
	if r.w.faulty && r.w.chance(0.02) {
		d += r.w.between(0, 50*time.Millisecond)
	}
	if slow > 0 {
		d += r.w.between(0, slow)
	}
	return d
}

func (r *road) loses() bool { return r.lossy > 0 && r.w.chance(r.lossy) }

// there sends a message. A message that is lost may be noticed: fail then says
// that the outcome is unknown. Doubled messages arrive late, and unasked. It reports whether
// the message is under way.
func (r *road) there(arrive func(), fail func(error)) bool {
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
func (r *road) back(arrive func()) {
	if r.cutIn || r.loses() {
		return
	}
	r.w.after(r.delay(r.slowIn), arrive)
}

func (r *road) heal() {
	r.cutOut, r.cutIn, r.slowOut, r.slowIn, r.lossy, r.doubling = false, false, 0, 0, 0, 0
}
