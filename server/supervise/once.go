package supervise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

// once is the mark of what is run to its end once for all, kept in the store beside the
// group. Every leader writes it when it begins, from the version that it saw: so whoever
// began earlier, and wakes up with a result, finds another version and writes nothing.
type once struct {
	store lease.Store
	name  string
	call  time.Duration
	// denied reports whether an error says that this is not allowed, which no patience
	// mends.
	denied func(error) bool
	seen   lease.Attributes
}

const (
	onceRunning = "running"
	onceDone    = "done"
)

// look reads the mark.
func (o *once) look(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.call)
	defer cancel()
	a, err := o.store.Attributes(ctx, o.name)
	if err != nil {
		return false, err
	}
	o.seen = a
	return a.Values["state"] == onceDone, nil
}

// begin says who runs it now. Done: there is nothing to run. A call that is under way when
// ctx ends is waited for, here and in finish: it may have done it.
func (o *once) begin(ctx context.Context, term *tenure.Term) (done bool, err error) {
	err = o.persist(ctx, term, func(ctx context.Context) (bool, error) {
		if done, err = o.look(ctx); err != nil || done {
			return done, err
		}
		return o.write(ctx, term, onceRunning)
	})
	return done, err
}

// finish says that it is done.
func (o *once) finish(ctx context.Context, term *tenure.Term) error {
	mine := maps.Clone(o.seen.Values)
	return o.persist(ctx, term, func(ctx context.Context) (bool, error) {
		ok, err := o.write(ctx, term, onceDone)
		if err == nil {
			return ok, nil
		}
		// Somebody else's mark, or our own whose answer was lost?
		done, lerr := o.look(ctx)
		switch {
		case lerr != nil:
			return false, lerr
		case o.seen.Values["token"] != mine["token"]:
			return true, fmt.Errorf("%s has begun it anew with token %s", o.seen.Values["node"], o.seen.Values["token"])
		case done:
			return true, nil
		default:
			return false, err
		}
	})
}

// persist tries until it is settled, cannot be, or the term is over.
func (o *once) persist(ctx context.Context, term *tenure.Term, try func(context.Context) (settled bool, err error)) error {
	const pause = 100 * time.Millisecond
	for {
		settled, err := try(context.WithoutCancel(ctx))
		if settled || errors.Is(err, lease.ErrInvalid) || o.denied != nil && o.denied(err) {
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
		"state": state, "node": term.Candidate().ID, "token": strconv.FormatUint(uint64(term.Token()), 10), "at": time.Now().UTC().Format(time.RFC3339),
	}
	a, err := o.store.SetAttributes(ctx, next)
	if err != nil {
		return false, err
	}
	o.seen = a
	return true, nil
}
