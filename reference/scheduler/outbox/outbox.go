// Package outbox keeps the firings that a leader has recorded and not delivered yet.
package outbox

import (
	"encoding/json"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/tenurehq/tenure/clock"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// Firing is one that was recorded and is being delivered.
type Firing struct {
	Job     string
	AtMS    int64
	Payload json.RawMessage

	// Unsure is since when the worker of its lane may have it; 0: it has not.
	Unsure clock.Instant
	// Alone: a batch with it was refused because one of its firings is invalid.
	Alone bool
}

// ID identifies a firing.
type ID struct {
	Job  string
	AtMS int64
}

// ID returns the identity of the firing.
func (f *Firing) ID() ID { return ID{f.Job, f.AtMS} }

// size is roughly its size in memory.
func (f *Firing) size() int {
	const itself = 200
	return itself + len(f.Job) + len(f.Payload)
}

// Outbox is the firings that are not delivered, or not recorded as delivered, as far as they
// fit. The ledger has them all. Each waits in the lane of one worker.
//
// O1: a firing in it is in one lane, in flight, or among the delivered.
type Outbox struct {
	mu        sync.Mutex
	limit     int
	bytes     int // of the known
	known     map[ID]*Firing
	lanes     []lane
	delivered []ledgerapi.DeliveredWrite
	// since are those that were recorded as delivered after a read of pending firings began: the
	// read may still have them. nil: no read.
	since map[ID]bool
	// more: the ledger has pending firings that are not here.
	more bool
	// taken wakes the reader of pending firings when there is room.
	taken chan struct{}
}

type lane struct {
	queue []*Firing
	down  bool
	// wake is buffered by one.
	wake chan struct{}
}

// MaxBytes bounds the memory of all firings. One always fits.
const MaxBytes = 64 << 20

// New returns an outbox with a lane for each worker, for at most limit firings.
func New(workers, limit int) *Outbox {
	o := &Outbox{limit: limit, known: make(map[ID]*Firing), lanes: make([]lane, workers), more: true, taken: make(chan struct{}, 1)}
	for i := range o.lanes {
		o.lanes[i].wake = make(chan struct{}, 1)
	}
	return o
}

// Offer adds unknown firings, as far as there is room.
func (o *Outbox) Offer(all []*Firing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(all)
}

// add returns whether some did not fit.
func (o *Outbox) add(all []*Firing) (full bool) {
	if len(o.lanes) == 0 {
		return false
	}
	for _, f := range all {
		if o.known[f.ID()] != nil {
			continue
		}
		if len(o.known) >= o.limit || len(o.known) > 0 && o.bytes+f.size() > MaxBytes {
			o.more = true
			return true
		}
		o.known[f.ID()] = f
		o.bytes += f.size()
		o.put(f, preferred(f.Job, len(o.lanes)))
	}
	return len(o.known) >= o.limit
}

// Reading notes that a read of pending firings begins.
func (o *Outbox) Reading() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = make(map[ID]bool)
}

// Read adds what was read, except what was recorded as delivered meanwhile. full: there is no
// more room.
func (o *Outbox) Read(all []*Firing) (full bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all = slices.DeleteFunc(all, func(f *Firing) bool { return o.since[f.ID()] })
	o.since = nil
	return o.add(all)
}

// preferred is the lane of a job while all workers are reachable.
func preferred(job string, lanes int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(job))
	return int(h.Sum32() % uint32(lanes))
}

// put queues a firing in the first lane, counted from one, that is not down.
func (o *Outbox) put(f *Firing, from int) {
	to := from
	for i := range o.lanes {
		if l := (from + i) % len(o.lanes); !o.lanes[l].down {
			to = l
			break
		}
	}
	o.lanes[to].queue = append(o.lanes[to].queue, f)
	wait.Signal(o.lanes[to].wake)
}

// Take takes the next batch of a lane.
func (o *Outbox) Take(l, most int) []*Firing {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue := o.lanes[l].queue
	n := min(most, len(queue))
	for i, f := range queue[:n] {
		if f.Alone {
			n = max(i, 1)
			break
		}
	}
	batch := slices.Clone(queue[:n])
	o.lanes[l].queue = slices.Delete(queue, 0, n)
	return batch
}

// Done: the worker has them, or will never accept them.
func (o *Outbox) Done(batch []*Firing, worker string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range batch {
		o.delivered = append(o.delivered, ledgerapi.DeliveredWrite{Job: f.Job, AtMS: f.AtMS, Worker: worker})
	}
}

// Again puts a batch back in front, for the same worker.
func (o *Outbox) Again(l int, batch []*Firing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lanes[l].queue = slices.Insert(o.lanes[l].queue, 0, batch...)
	wait.Signal(o.lanes[l].wake)
}

// Elsewhere queues a batch for the next worker.
func (o *Outbox) Elsewhere(l int, batch []*Firing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range batch {
		f.Unsure = 0
		o.put(f, (l+1)%len(o.lanes))
	}
}

// Mark records whether the worker of a lane is reachable. Firings in lanes that are down move
// to other lanes. A firing that its worker may have stays there: that worker recognises it,
// and another would do it twice.
func (o *Outbox) Mark(l int, down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lanes[l].down == down {
		return
	}
	o.lanes[l].down = down
	for i := range o.lanes {
		if !o.lanes[i].down {
			continue
		}
		queue := o.lanes[i].queue
		o.lanes[i].queue = nil
		for _, f := range queue {
			if f.Unsure != 0 {
				o.lanes[i].queue = append(o.lanes[i].queue, f)
			} else {
				o.put(f, preferred(f.Job, len(o.lanes)))
			}
		}
	}
}

// Unrecorded are deliveries that the ledger does not have yet, at most so many.
func (o *Outbox) Unrecorded(most int) []ledgerapi.DeliveredWrite {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.delivered[:min(most, len(o.delivered))])
}

// Recorded drops the first n of them.
func (o *Outbox) Recorded(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.delivered[:n] {
		id := ID{d.Job, d.AtMS}
		if f := o.known[id]; f != nil {
			o.bytes -= f.size()
			delete(o.known, id)
		}
		if o.since != nil {
			o.since[id] = true
		}
	}
	o.delivered = slices.Delete(o.delivered, 0, n)
	wait.Signal(o.taken)
}

// WantsMore reports whether to read pending firings from the ledger.
func (o *Outbox) WantsMore() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.more && len(o.lanes) > 0 && len(o.known) <= o.limit/2 && o.bytes <= MaxBytes/2
}

// SetMore notes whether the ledger has pending firings that are not here.
func (o *Outbox) SetMore(more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.more = more
	if more {
		wait.Signal(o.taken)
	}
}

// Size is how many firings are in it.
func (o *Outbox) Size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.known)
}

// Wake is signaled when the lane of a worker has something to send.
func (o *Outbox) Wake(lane int) <-chan struct{} { return o.lanes[lane].wake }

// WakeAll signals every lane.
func (o *Outbox) WakeAll() {
	for i := range o.lanes {
		wait.Signal(o.lanes[i].wake)
	}
}

// Room is signaled when there may be room for more pending firings.
func (o *Outbox) Room() <-chan struct{} { return o.taken }

// Bytes is roughly the memory of all firings.
func (o *Outbox) Bytes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}
