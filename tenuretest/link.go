package tenuretest

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

var _ store.Store = (*link)(nil)

// link is one node's connection to the store, through its gate. It embeds no Store, so that a
// method that is added to the contract cannot bypass the gate.
type link struct {
	store    store.Store
	gate     *gate
	patience time.Duration // how long a stream may be cut off before it breaks

	mu       sync.Mutex
	sessions []store.SessionID // opened and not closed
}

// The caller of a call decides whether a pause delays its deadline: the node itself is
// frozen, but a test that reads through a paused node is not.
const (
	theNode = true
	anyone  = false
)

// travel makes a call: request and answer both pass the gate.
func travel[T any](ctx context.Context, r *link, frozen bool, f func() (T, error)) (T, error) {
	var zero T
	if err := r.gate.pass(ctx, frozen); err != nil {
		return zero, err
	}
	v, err := f()
	if lost := r.gate.pass(ctx, frozen); lost != nil {
		return zero, lost
	}
	return v, err
}

func tell(ctx context.Context, r *link, frozen bool, f func() error) error {
	_, err := travel(ctx, r, frozen, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// expire ends the sessions at the store and reports whether there was one.
func (r *link) expire(ctx context.Context) (bool, error) {
	r.mu.Lock()
	sessions := r.sessions
	r.sessions = nil
	r.mu.Unlock()
	for _, id := range sessions {
		if err := r.store.End(ctx, id, store.Expired); err != nil {
			return true, err
		}
	}
	return len(sessions) > 0, nil
}

func (r *link) Caps() store.Caps { return r.store.Caps() }

func (r *link) Session(ctx context.Context, id store.SessionID) (store.Session, error) {
	return travel(ctx, r, anyone, func() (store.Session, error) { return r.store.Session(ctx, id) })
}

func (r *link) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	return travel(ctx, r, theNode, func() (store.Session, error) {
		s, err := r.store.Open(ctx, c, ttl, o)
		if err == nil {
			r.mu.Lock()
			r.sessions = append(r.sessions, s.ID)
			r.mu.Unlock()
		}
		return s, err
	})
}

func (r *link) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	return travel(ctx, r, theNode, func() (store.Beat, error) { return r.store.KeepAlive(ctx, id, groups...) })
}

func (r *link) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	return tell(ctx, r, theNode, func() error {
		err := r.store.End(ctx, id, why, seen...)
		if err == nil {
			r.mu.Lock()
			r.sessions = slices.DeleteFunc(r.sessions, func(s store.SessionID) bool { return s == id })
			r.mu.Unlock()
		}
		return err
	})
}

func (r *link) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	return travel(ctx, r, theNode, func() ([]store.Record, error) { return r.store.Acquire(ctx, id, seen...) })
}

func (r *link) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	return travel(ctx, r, theNode, func() ([]store.Record, error) { return r.store.Release(ctx, id, to, why, held...) })
}

func (r *link) Answer(ctx context.Context, id store.SessionID, request string, a store.Answer) error {
	return tell(ctx, r, theNode, func() error { return r.store.Answer(ctx, id, request, a) })
}

func (r *link) Ask(ctx context.Context, id store.SessionID, q store.Request) error {
	return tell(ctx, r, anyone, func() error { return r.store.Ask(ctx, id, q) })
}

func (r *link) Answered(ctx context.Context, id store.SessionID, request string) (store.Answer, error) {
	return travel(ctx, r, anyone, func() (store.Answer, error) { return r.store.Answered(ctx, id, request) })
}

func (r *link) Read(ctx context.Context, group string) (store.View, error) {
	return travel(ctx, r, anyone, func() (store.View, error) { return r.store.Read(ctx, group) })
}

// Watch receives nothing in a partition and breaks if that lasts. Updates that arrive during
// a pause wait for its end.
func (r *link) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		wctx, sever := context.WithCancelCause(ctx)
		var guard sync.WaitGroup
		defer guard.Wait()
		defer sever(nil)
		guard.Go(func() {
			if err := r.gate.severed(wctx, r.patience); err != nil {
				sever(err)
			}
		})
		for v, err := range r.store.Watch(wctx, scope) {
			if !r.gate.awake(ctx.Done()) {
				return
			}
			if lost := r.gate.pass(wctx, false); lost != nil {
				err = lost
			}
			if wctx.Err() != nil {
				err = context.Cause(wctx)
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
		if wctx.Err() != nil && ctx.Err() == nil {
			yield(store.Update{}, context.Cause(wctx))
		}
	}
}

func (r *link) Groups(ctx context.Context, scope store.Scope, p store.Page) ([]store.View, error) {
	return travel(ctx, r, anyone, func() ([]store.View, error) { return r.store.Groups(ctx, scope, p) })
}

func (r *link) Sessions(ctx context.Context, scope store.Scope, p store.Page) ([]store.Session, error) {
	return travel(ctx, r, anyone, func() ([]store.Session, error) { return r.store.Sessions(ctx, scope, p) })
}

func (r *link) History(ctx context.Context, group string, p store.Page) ([]store.Term, error) {
	return travel(ctx, r, anyone, func() ([]store.Term, error) { return r.store.History(ctx, group, p) })
}

func (r *link) Meta(ctx context.Context) (store.Meta, error) {
	return travel(ctx, r, anyone, func() (store.Meta, error) { return r.store.Meta(ctx) })
}

func (r *link) RaiseEpoch(ctx context.Context, to uint64) (store.Meta, error) {
	return travel(ctx, r, anyone, func() (store.Meta, error) { return r.store.RaiseEpoch(ctx, to) })
}

func (r *link) Suspect(ctx context.Context, group string, seen fence.Token) error {
	return tell(ctx, r, anyone, func() error { return r.store.Suspect(ctx, group, seen) })
}

func (r *link) Attributes(ctx context.Context, name string) (store.Attributes, error) {
	return travel(ctx, r, anyone, func() (store.Attributes, error) { return r.store.Attributes(ctx, name) })
}

func (r *link) ListAttributes(ctx context.Context, prefix string, p store.Page) ([]store.Attributes, error) {
	return travel(ctx, r, anyone, func() ([]store.Attributes, error) { return r.store.ListAttributes(ctx, prefix, p) })
}

func (r *link) SetAttributes(ctx context.Context, seen store.Attributes) (store.Attributes, error) {
	return travel(ctx, r, anyone, func() (store.Attributes, error) { return r.store.SetAttributes(ctx, seen) })
}
