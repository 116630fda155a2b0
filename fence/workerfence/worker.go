package workerfence

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tenurehq/tenure/fence"
)

// Handler executes an order. Its context ends when the caller's does, or when a higher token
// arrives. It must return soon after that.
type Handler func(ctx context.Context, s fence.Stamp, order []byte) error

// InterruptedError: the order was admitted and started, and then a higher token arrived. It
// is not a refusal: part of the order may be done. It is the cause with which the handler's
// context ended.
type InterruptedError struct {
	Stamp fence.Stamp
	By    fence.Stamp
	// Err is what the handler returned, or nil if it still runs. Unwrap does not return it:
	// if a sink refused a write of the handler, the order itself was not refused.
	Err error
}

func (e *InterruptedError) Error() string {
	text := fmt.Sprintf("workerfence: order interrupted: %s, and then came token %d: another leads, and part of the order may be done", e.Stamp, e.By.Token)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Worker executes orders. Its methods may be called concurrently; orders with one token run
// concurrently.
type Worker struct {
	mark   fence.Sealer
	handle Handler
	// turn is held while an order is admitted, so that admission and the list of running orders
	// change together.
	turn chan struct{}

	mu      sync.Mutex
	running map[*run]struct{}
}

// run is a running order.
type run struct {
	stamp fence.Stamp
	end   context.CancelCauseFunc
	done  chan struct{}
}

// New returns a worker whose mark is stored by mark. Its Seal must be durable when it
// returns, and no other worker may use the mark.
func New(mark fence.Sealer, handle Handler) *Worker {
	return &Worker{mark: mark, handle: handle, turn: make(chan struct{}, 1), running: make(map[*run]struct{})}
}

// Do executes an order if its stamp is admitted, and returns the handler's error. If the
// stamp is refused (fence.ErrRefused), or ctx ends before its turn, nothing was done. If a
// higher token arrived before the handler finished, the error is an *InterruptedError.
func (w *Worker) Do(ctx context.Context, s fence.Stamp, order []byte) error {
	r, hctx, err := w.admit(ctx, s, w.mark.Seal, true)
	if err != nil {
		return err
	}
	defer w.finish(r)
	err = w.handle(hctx, s, order)
	var cut *InterruptedError
	if err == nil || !errors.As(context.Cause(hctx), &cut) {
		return err
	}
	done := &InterruptedError{Stamp: cut.Stamp, By: cut.By}
	if !errors.Is(err, cut) {
		done.Err = err
	}
	return done
}

// Seal refuses all tokens below the stamp's. When it returns, no order with a lower token is
// running.
func (w *Worker) Seal(ctx context.Context, s fence.Stamp) error {
	_, _, err := w.admit(ctx, s, w.mark.Seal, false)
	return err
}

// Advance raises the mark past the slip rule, if the mark supports that, as a *filefence.Dir
// does. Like Seal it ends running orders with lower tokens; advancing the mark directly does
// not.
func (w *Worker) Advance(ctx context.Context, s fence.Stamp) error {
	mark, ok := w.mark.(interface {
		Advance(ctx context.Context, s fence.Stamp) error
	})
	if !ok {
		return fmt.Errorf("workerfence: a mark of type %T cannot be advanced: %w", w.mark, errors.ErrUnsupported)
	}
	_, _, err := w.admit(ctx, s, mark.Advance, false)
	return err
}

// admit stores the mark, ends running orders with lower tokens and waits for them. It adds
// the order to the running ones in the same turn, so that a higher token finds it.
func (w *Worker) admit(ctx context.Context, s fence.Stamp, store func(context.Context, fence.Stamp) error, order bool) (*run, context.Context, error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("workerfence: %s: waiting for its turn: %w", s, context.Cause(ctx))
	}
	if err := store(ctx, s); err != nil {
		return nil, nil, fmt.Errorf("workerfence: %w", err)
	}
	for _, r := range w.lower(s) {
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("workerfence: %s: an order of token %d still runs: %w", s, r.stamp.Token, context.Cause(ctx))
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("workerfence: %s: %w", s, context.Cause(ctx))
	}
	if !order {
		return nil, nil, nil
	}
	hctx, end := context.WithCancelCause(ctx)
	r := &run{stamp: s, end: end, done: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[r] = struct{}{}
	return r, hctx, nil
}

// lower ends the running orders with lower tokens, and returns them.
func (w *Worker) lower(s fence.Stamp) []*run {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*run
	for r := range w.running {
		if r.stamp.Token < s.Token {
			r.end(&InterruptedError{Stamp: r.stamp, By: s})
			all = append(all, r)
		}
	}
	return all
}

func (w *Worker) finish(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, r)
	r.end(nil)
	close(r.done)
}
