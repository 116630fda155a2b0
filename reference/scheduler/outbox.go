package scheduler

import (
	"encoding/json"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/tenurehq/tenure/clock"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// firing is one that was recorded and is being delivered.
type firing struct {
	job     string
	at      int64
	payload json.RawMessage

	// unsure is since when the worker of its lane may have it; 0: it has not.
	unsure clock.Instant
	// alone: a batch with it was refused because one of its firings is invalid.
	alone bool
}

type firingID struct {
	job string
	at  int64
}

func (f *firing) id() firingID { return firingID{f.job, f.at} }

// size is roughly its size in memory.
func (f *firing) size() int {
	const itself = 200
	return itself + len(f.job) + len(f.payload)
}

// outbox is the firings that are not delivered, or not recorded as delivered, as far as they
// fit. The ledger has them all. Each waits in the lane of one worker.
//
// O1: a firing in it is in one lane, in flight, or among the delivered.
type outbox struct {
	mu        sync.Mutex
	limit     int
	bytes     int // of the known
	known     map[firingID]*firing
	lanes     []lane
	delivered []ledgerapi.DeliveredWrite
	// since are those that were recorded as delivered after a read of pending firings began: the
	// read may still have them. nil: no read.
	since map[firingID]bool
	// more: the ledger has pending firings that are not here.
	more bool
	// taken wakes the reader of pending firings when there is room.
	taken chan struct{}
}

type lane struct {
	queue []*firing
	down  bool
	// wake is buffered by one.
	wake chan struct{}
}

func newOutbox(workers, limit int) *outbox {
	o := &outbox{limit: limit, known: make(map[firingID]*firing), lanes: make([]lane, workers), more: true, taken: make(chan struct{}, 1)}
	for i := range o.lanes {
		o.lanes[i].wake = make(chan struct{}, 1)
	}
	return o
}

// offer adds unknown firings, as far as there is room.
func (o *outbox) offer(all []*firing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(all)
}

// add returns whether some did not fit.
func (o *outbox) add(all []*firing) (full bool) {
	if len(o.lanes) == 0 {
		return false
	}
	for _, f := range all {
		if o.known[f.id()] != nil {
			continue
		}
		if len(o.known) >= o.limit || len(o.known) > 0 && o.bytes+f.size() > outboxBytes {
			o.more = true
			return true
		}
		o.known[f.id()] = f
		o.bytes += f.size()
		o.put(f, preferred(f.job, len(o.lanes)))
	}
	return len(o.known) >= o.limit
}

// reading notes that a read of pending firings begins.
func (o *outbox) reading() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = make(map[firingID]bool)
}

// read adds what was read, without what was recorded as delivered meanwhile. full: there is no
// more room.
func (o *outbox) read(all []*firing) (full bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all = slices.DeleteFunc(all, func(f *firing) bool { return o.since[f.id()] })
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
func (o *outbox) put(f *firing, from int) {
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

// take takes the next batch of a lane.
func (o *outbox) take(l, most int) []*firing {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue := o.lanes[l].queue
	n := min(most, len(queue))
	for i, f := range queue[:n] {
		if f.alone {
			n = max(i, 1)
			break
		}
	}
	batch := slices.Clone(queue[:n])
	o.lanes[l].queue = slices.Delete(queue, 0, n)
	return batch
}

// done: the worker has them, or will never accept them.
func (o *outbox) done(batch []*firing, worker string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range batch {
		o.delivered = append(o.delivered, ledgerapi.DeliveredWrite{Job: f.job, AtMS: f.at, Worker: worker})
	}
}

// again puts a batch back in front, for the same worker.
func (o *outbox) again(l int, batch []*firing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lanes[l].queue = slices.Insert(o.lanes[l].queue, 0, batch...)
	wait.Signal(o.lanes[l].wake)
}

// elsewhere queues a batch for the next worker.
func (o *outbox) elsewhere(l int, batch []*firing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range batch {
		f.unsure = 0
		o.put(f, (l+1)%len(o.lanes))
	}
}

// mark notes whether the worker of a lane is reachable. It moves what waits in lanes that are
// down to the others. What a worker may have stays in its lane: that worker recognises it, and
// another would do it twice.
func (o *outbox) mark(l int, down bool) {
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
			if f.unsure != 0 {
				o.lanes[i].queue = append(o.lanes[i].queue, f)
			} else {
				o.put(f, preferred(f.job, len(o.lanes)))
			}
		}
	}
}

// unrecorded are deliveries that the ledger does not have yet, at most so many.
func (o *outbox) unrecorded(most int) []ledgerapi.DeliveredWrite {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.delivered[:min(most, len(o.delivered))])
}

// recorded drops the first n of them.
func (o *outbox) recorded(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.delivered[:n] {
		id := firingID{d.Job, d.AtMS}
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

// wantsMore reports whether to read pending firings from the ledger.
func (o *outbox) wantsMore() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.more && len(o.lanes) > 0 && len(o.known) <= o.limit/2 && o.bytes <= outboxBytes/2
}

// setMore notes whether the ledger has pending firings that are not here.
func (o *outbox) setMore(more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.more = more
	if more {
		wait.Signal(o.taken)
	}
}

// size is how many firings are in it.
func (o *outbox) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.known)
}
