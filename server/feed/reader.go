package feed

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
)

// readsKept bounds the cache of a Reader; when it is full, it is cleared.
const readsKept = 1 << 16

// Reader reads groups linearizably and shares reads between callers. Its methods are safe for
// concurrent use.
type Reader struct {
	store   store.Store
	clock   clock.Clock
	timeout time.Duration
	report  func(took time.Duration, err error)
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu     sync.Mutex
	closed bool
	reads  map[string]*reads
	last   map[string]*Remembered
}

// Answer is a view and when the read began: the view is not older.
type Answer struct {
	store.View
	Asked clock.Instant
}

// Remembered is the last answer for a group.
type Remembered struct {
	Answer
	encoded atomic.Pointer[encoded]
}

type encoded struct {
	ms   int64
	body []byte
}

// Say returns the encoded answer. It includes the age in milliseconds, so it is encoded once
// per millisecond, however many callers ask.
func (r *Remembered) Say(ageMS int64, encode func() ([]byte, error)) ([]byte, error) {
	if s := r.encoded.Load(); s != nil && s.ms == ageMS {
		return s.body, nil
	}
	body, err := encode()
	if err == nil {
		r.encoded.Store(&encoded{ageMS, body})
	}
	return body, err
}

type sharedRead struct {
	done   chan struct{}
	answer Answer
	err    error
}

// reads are the reads of one group: the current one, and the next one, for callers that came
// after the current one began.
type reads struct{ now, next *sharedRead }

// NewReader returns a reader whose reads take at most timeout each. report, if set, gets the
// result of each read. Close stops it.
func NewReader(store store.Store, c clock.Clock, timeout time.Duration, report func(time.Duration, error)) *Reader {
	r := &Reader{store: store, clock: c, timeout: timeout, report: report, reads: make(map[string]*reads), last: make(map[string]*Remembered)}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// Read returns the view of a group at a moment after the call began.
func (r *Reader) Read(ctx context.Context, group string) (Answer, error) {
	f, err := r.join(group)
	if err != nil {
		return Answer{}, err
	}
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
		return Answer{}, fmt.Errorf("read group %q: %w", group, context.Cause(ctx))
	}
}

func (r *Reader) join(group string) (*sharedRead, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, context.Canceled
	}
	l := r.reads[group]
	if l == nil {
		l = &reads{now: &sharedRead{done: make(chan struct{})}}
		r.reads[group] = l
		r.work.Go(func() { r.readWhileWanted(group, l) })
		return l.now, nil
	}
	// The engine may have answered the current read before this call.
	if l.next == nil {
		l.next = &sharedRead{done: make(chan struct{})}
	}
	return l.next, nil
}

// readWhileWanted reads a group until nobody waits any more.
func (r *Reader) readWhileWanted(group string, l *reads) {
	for f := l.now; f != nil; {
		ctx, cancel := context.WithTimeout(r.ctx, r.timeout)
		asked := r.clock.Now()
		v, err := r.store.Read(ctx, group)
		cancel()
		f.answer, f.err = Answer{v, asked}, err
		if r.report != nil {
			r.report(r.clock.Now().Sub(asked), err)
		}
		r.mu.Lock()
		if err == nil {
			if len(r.last) >= readsKept {
				clear(r.last)
			}
			r.last[group] = &Remembered{Answer: f.answer}
		}
		done := f.done
		l.now, l.next = l.next, nil
		if f = l.now; f == nil {
			delete(r.reads, group)
		}
		r.mu.Unlock()
		close(done)
	}
}

// Recent returns the last answer for a group, if there is one, and its greatest possible age.
// It makes no call, so it works without a quorum too.
func (r *Reader) Recent(group string) (last *Remembered, age time.Duration, known bool) {
	r.mu.Lock()
	last, known = r.last[group]
	r.mu.Unlock()
	if !known {
		return nil, 0, false
	}
	return last, r.clock.Now().Sub(last.Asked), true
}

// Close cancels all reads and waits for them.
func (r *Reader) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	r.work.Wait()
}
