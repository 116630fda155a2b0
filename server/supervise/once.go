package supervise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// once is the record of --once in the store. Every leader writes it when it begins, from
// the version that it read. So an earlier leader that returns with a result finds another
// version and writes nothing.
type once struct {
	store  store.Store
	name   string
	call   time.Duration
	denied func(error) bool // an error that no retry helps
	seen   store.Attributes
}

const (
	onceRunning = "running"
	onceDone    = "done"
)

func (o *once) read(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.call)
	defer cancel()
	a, err := o.store.Attributes(ctx, o.name)
	if err != nil {
		return false, err
	}
	o.seen = a
	return a.Values["state"] == onceDone, nil
}

// begin records the start. Done: there is nothing to run. begin and finish wait for a call
// that is in progress when ctx ends, because it may succeed.
func (o *once) begin(ctx context.Context, term *tenure.Term) (done bool, err error) {
	err = o.retry(ctx, term, func(ctx context.Context) (bool, error) {
		if done, err = o.read(ctx); err != nil || done {
			return done, err
		}
		return o.write(ctx, term, onceRunning)
	})
	return done, err
}

// finish records the success.
func (o *once) finish(ctx context.Context, term *tenure.Term) error {
	mine := maps.Clone(o.seen.Values)
	return o.retry(ctx, term, func(ctx context.Context) (bool, error) {
		ok, err := o.write(ctx, term, onceDone)
		if err == nil {
			return ok, nil
		}
		// Either another leader wrote the record, or the answer to our own write was lost.
		done, readErr := o.read(ctx)
		switch {
		case readErr != nil:
			return false, readErr
		case o.seen.Values["token"] != mine["token"]:
			return true, fmt.Errorf("%s has started it again with token %s", o.seen.Values["node"], o.seen.Values["token"])
		case done:
			return true, nil
		default:
			return false, err
		}
	})
}

// retry tries until the outcome is settled, the error is permanent, or the term has ended.
func (o *once) retry(ctx context.Context, term *tenure.Term, try func(context.Context) (settled bool, err error)) error {
	const pause = 100 * time.Millisecond
	for {
		settled, err := try(context.WithoutCancel(ctx))
		if settled || errors.Is(err, store.ErrInvalid) || o.denied != nil && o.denied(err) {
			return err
		}
		if over := term.Check(); over != nil {
			return errors.Join(err, over)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

func (o *once) write(ctx context.Context, term *tenure.Term, state string) (bool, error) {
	if err := term.Check(); err != nil {
		return true, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.call)
	defer cancel()
	next := o.seen
	next.Values = map[string]string{
		"state": state, "node": term.Candidate().ID, "token": term.Token().String(), "at": time.Now().UTC().Format(time.RFC3339),
	}
	a, err := o.store.SetAttributes(ctx, next)
	if err != nil {
		return false, err
	}
	o.seen = a
	return true, nil
}
