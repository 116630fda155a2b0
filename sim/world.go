package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/kv"
)

// world is one run: processes, a store, sinks, and the network links between them.
// Everything runs in one goroutine, in the order of one heap of events.
type world struct {
	cfg    Config
	timing lease.Timing
	rand   *rand.Rand
	now    instant
	queue  queue
	seq    uint64

	groups         []string
	caps           kv.Caps // of the engine's driver
	gaps           bool    // watches lose changes, and report a gap
	newIncarnation bool    // a restored engine gets another incarnation
	running        *task
	idle           []*worker
	ids            uint64
	nodes          []*node // candidates
	store          *simStore
	sinks          map[string]*sink
	// In worlds with a service:
	instances []*instance
	cordons   map[string]bool // by candidate
	shards    *shardWorld     // in worlds with shards

	result  *Result
	faulty  bool // faults are being injected
	healAt  instant
	deck    []*fault        // the faults to draw from, repeated by weight
	armed   []func(n *node) // faults that wait for the next change of leader
	rewound bool            // the store was rewound, and the epoch is not raised yet
	asked   int             // requests of operators so far
	raised  int             // raised epochs so far
	// coolDowns are the cool-downs of the requests, by the Detail of the machine's note.
	coolDowns map[string]time.Duration

	kind    kind
	traits  uint32
	lenient bool // clocks drift beyond the bound: only G1, G2, G4, G5, G6 and S1 to S5 must hold
	trace   func(format string, args ...any)
}

// instant is true time, which no process can read.
type instant int64

const never instant = 1 << 62

func (t instant) add(d time.Duration) instant { return t + instant(d) }

// simClock is a clock that runs at its own rate: reading = offset + elapsed·(1+ppm).
type simClock struct {
	anchor instant
	offset clock.Instant
	ppm    int64
}

const million = 1_000_000

func (c *simClock) read(t instant) clock.Instant {
	d := int64(t - c.anchor)
	return c.offset + clock.Instant(d+d/million*c.ppm+d%million*c.ppm/million)
}

// when is the first true instant at which the clock reads at least i.
func (c *simClock) when(i clock.Instant) instant {
	if i == clock.Never {
		return never
	}
	// Exact to a nanosecond or two for any run of less than two hours.
	t := c.anchor + instant(int64(i-c.offset)*million/(million+c.ppm))
	for c.read(t) >= i {
		t--
	}
	for c.read(t) < i {
		t++
	}
	return t
}

// event is something that will happen.
type event struct {
	at  instant
	seq uint64
	f   func()
}

// queue is a heap of events in order of time, then of creation.
type queue []*event

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(e any)   { *q = append(*q, e.(*event)) }

func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}

func (w *world) at(t instant, f func()) {
	w.seq++
	heap.Push(&w.queue, &event{max(t, w.now), w.seq, f})
}

func (w *world) after(d time.Duration, f func()) { w.at(w.now.add(d), f) }

// run runs the world until the end, or until a guarantee is broken.
func (w *world) run(end instant) {
	const busy = 100_000 // events at one instant: a busy loop
	since, spin := w.now, 0
	for len(w.queue) > 0 && w.result.Violation == nil {
		if w.queue[0].at > end {
			break
		}
		e := heap.Pop(&w.queue).(*event)
		w.now = e.at
		w.result.Events++
		if spin++; w.now != since {
			since, spin = w.now, 0
		} else if spin > busy {
			w.broken("G7", "the world spins: %d events without time passing", busy)
		}
		e.f()
	}
	w.now = max(w.now, end)
}

func (w *world) chance(p float64) bool { return w.rand.Float64() < p }

func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.rand.Int64N(int64(b-a)+1))
}

// broken records that a guarantee does not hold. The first one ends the run.
func (w *world) broken(guarantee, format string, args ...any) {
	if w.result.Violation == nil {
		w.result.Violation = &Violation{
			Seed: w.cfg.Seed, Guarantee: guarantee, At: time.Duration(w.now), Detail: fmt.Sprintf(format, args...),
		}
		w.log("BROKEN %s: %s", guarantee, w.result.Violation.Detail)
	}
}

func (w *world) log(format string, args ...any) {
	if w.trace != nil {
		w.trace("%12.6f  "+format, append([]any{time.Duration(w.now).Seconds()}, args...)...)
	}
}

// mix adds an event to the hash, which a second run must reproduce.
func (w *world) mix(values ...uint64) {
	const prime = 1099511628211
	h := w.result.Hash
	h = (h ^ uint64(w.now)) * prime
	for _, v := range values {
		h = (h ^ v) * prime
	}
	w.result.Hash = h
}
