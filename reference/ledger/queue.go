package ledger

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/state"
	"github.com/tenurehq/tenure/reference/wait"
)

// kind is the kind of an op: a state.Kind, or one of these.
type kind = state.Kind

const (
	share  kind = state.Advance + 1 + iota // write a shared record, which belongs to no resource
	probe                                  // write something, to see whether the database can write
	accept                                 // accept the state although callers have seen a later one
)

// op is a batch that waits for its commit.
type op struct {
	kind  kind
	batch api.Batch
	// shared is the write of a share, instead of the batch.
	shared *api.SharedWrite
	// seen is the identity of the ledger that the caller has seen; zero: none.
	seen api.Identity
	// replaces is the id that an accept names.
	replaces string
	size     int

	taken atomic.Bool   // by the committer, or withdrawn by its caller
	done  chan struct{} // closed when the verdict is there
	state.Verdict
}

// claim decides a race: either the committer takes the op, or its caller withdraws it.
func (o *op) claim() bool { return o.taken.CompareAndSwap(false, true) }

func (o *op) finish(v state.Verdict) {
	o.Verdict = v
	close(o.done)
}

// queue is the ops that wait for the next commit.
type queue struct {
	most, mostBytes int
	wake            chan struct{} // wakes the committer

	mu     sync.Mutex
	ops    []*op
	bytes  int
	want   int // how many ops wake the committer
	closed bool
}

func newQueue(most, mostBytes int) *queue {
	return &queue{most: most, mostBytes: mostBytes, want: 1, wake: make(chan struct{}, 1)}
}

// push refuses an op when the queue is full, because nobody could tell the caller how long to
// wait.
func (q *queue) push(o *op) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return api.ErrUnavailable
	case len(q.ops) >= q.most, len(q.ops) > 0 && q.bytes+o.size > q.mostBytes:
		return api.ErrBusy
	}
	q.ops = append(q.ops, o)
	q.bytes += o.size
	if len(q.ops) >= q.want {
		wait.Signal(q.wake)
	}
	return nil
}

// close refuses new ops; the waiting ones are still taken.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	wait.Signal(q.wake)
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ops)
}

// take waits for ops and returns up to most of them; none when the queue is closed and empty.
// Callers that were answered together send their next op almost together. So if the last group
// had several, take waits up to patience for as many.
func (q *queue) take(most, lately int, patience time.Duration) []*op {
	q.await(1, nil)
	if lately > 1 && patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		q.await(min(lately, most), timer.C)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(most, len(q.ops))
	group := make([]*op, 0, n)
	for _, o := range q.ops[:n] {
		q.bytes -= o.size
		if o.claim() {
			group = append(group, o)
		}
	}
	rest := copy(q.ops, q.ops[n:])
	clear(q.ops[rest:])
	q.ops = q.ops[:rest]
	return group
}

// await returns when there are n ops, the queue is closed, or up fires.
func (q *queue) await(n int, up <-chan time.Time) {
	for {
		q.mu.Lock()
		enough := len(q.ops) >= n || q.closed
		q.want = n
		if enough {
			q.want = 1
		}
		q.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-q.wake:
		case <-up:
			return
		}
	}
}

// drained reports whether the queue is closed and empty.
func (q *queue) drained() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed && len(q.ops) == 0
}
