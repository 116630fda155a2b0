package supervise

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// observer is a store that watches the calls of a campaign. It prints one line when the
// store cannot be reached, one when it is back, and one when the store refuses this
// candidate.
type observer struct {
	store.Store
	lines   chan string   // to print
	changed chan struct{} // refused may have changed

	mu      sync.Mutex
	failed  int       // calls in a row without an answer
	down    time.Time // when that was printed; zero: the store can be reached
	refusal error     // the last answer to Open or Acquire, if it refuses this candidate
}

// downAfter is how many calls in a row fail before the store counts as unreachable. A single
// lost call is not reported.
const downAfter = 2

func observe(st store.Store) *observer {
	return &observer{Store: st, lines: make(chan string, 16), changed: make(chan struct{}, 1)}
}

// print prints lines until done is closed. It is not done by the calls, because a standard
// error that nobody reads would hold up keep-alives.
func (o *observer) print(say func(string, ...any), done <-chan struct{}) {
	for {
		select {
		case line := <-o.lines:
			say("%s", line)
		case <-done:
			return
		}
	}
}

func (o *observer) say(format string, args ...any) {
	select {
	case o.lines <- fmt.Sprintf(format, args...):
	default:
	}
}

func (o *observer) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, opts store.OpenOptions) (store.Session, error) {
	s, err := o.Store.Open(ctx, c, ttl, opts)
	o.result(ctx, err, true)
	return s, err
}

func (o *observer) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	records, err := o.Store.Acquire(ctx, id, seen...)
	o.result(ctx, err, true)
	return records, err
}

func (o *observer) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	beat, err := o.Store.KeepAlive(ctx, id, groups...)
	o.result(ctx, err, false)
	return beat, err
}

func (o *observer) Read(ctx context.Context, group string) (store.View, error) {
	v, err := o.Store.Read(ctx, group)
	o.result(ctx, err, false)
	return v, err
}

// result evaluates the answer to a call. decides: the answer says whether this candidate
// may lead.
func (o *observer) result(ctx context.Context, err error, decides bool) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // we gave up
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && !store.Definite(err) {
		if o.failed++; o.failed == downAfter {
			o.down = time.Now()
			o.say("cannot reach the store, retrying: %v", plain(err))
		}
		return
	}
	if o.failed = 0; !o.down.IsZero() {
		o.say("reached the store again after %v", time.Since(o.down).Round(100*time.Millisecond))
		o.down = time.Time{}
	}
	if !decides {
		return
	}
	before := o.refusal
	if o.refusal = nil; errors.Is(err, store.ErrBusy) {
		o.refusal = plain(err)
		if before == nil {
			o.say("waiting: %v", o.refusal)
		}
		select {
		case o.changed <- struct{}{}:
		default:
		}
	}
}

// refused returns why the store does not let this candidate lead; nil: it does.
func (o *observer) refused() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.refusal
}

// plain removes the name of the call from an error of a service.
func plain(err error) error {
	for {
		var call *remote.CallError
		if !errors.As(err, &call) {
			return err
		}
		err = call.Err
	}
}
