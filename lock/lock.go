package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/shardhook"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

// Set is a set of locks with names. Its methods are safe for concurrent use.
type Set struct {
	node *lease.Node
	hook shardhook.Node
	set  string

	mu    sync.Mutex
	turns map[string]*turn
}

// turn is held by the one goroutine of this process that may campaign for a name.
type turn struct {
	held chan struct{}
	uses int
}

// New returns the locks of a set. The node's scope must have "set--*".
func New(node *lease.Node, set string) (*Set, error) {
	if node == nil {
		return nil, &store.ArgumentError{Field: "node", Rule: "must not be nil"}
	}
	s := &Set{node: node, hook: shardhook.Of(node), set: set, turns: map[string]*turn{}}
	group, err := s.group("a")
	if err != nil {
		return nil, &store.ArgumentError{Field: "set", Value: set, Rule: "1 to 60 of a-z 0-9 . _ -, beginning and ending with a letter or digit, without --"}
	}
	if !s.hook.Scope.Covers(group) {
		return nil, &store.ArgumentError{Field: "set", Value: set, Rule: fmt.Sprintf("the node's scope must have %q", set+store.PrefixEnd+"*")}
	}
	return s, nil
}

// group returns the group of a name.
func (s *Set) group(name string) (string, error) {
	group := s.set + store.PrefixEnd + name
	if prefix, ok := store.Prefix(group); !ok || prefix != s.set || !store.ValidName(group) {
		return "", &store.ArgumentError{Field: "name", Value: name, Rule: fmt.Sprintf("1 to %d of a-z 0-9 . _ -, beginning with a letter or digit", max(0, 61-len(s.set)))}
	}
	return group, nil
}

// Do waits for the lock, runs work while this process holds it, and gives it up after work has
// returned. It returns what work returns. If the lock was lost before that, it also returns why:
// another process may have worked at the same time, and only fenced sinks have refused one of them.
// If ctx ends before the lock is held, Do returns its cause.
func (s *Set) Do(ctx context.Context, name string, work func(context.Context, *tenure.Term) error, opts ...tenure.Option) error {
	group, err := s.group(name)
	if err != nil {
		return err
	}
	e, err := s.node.Elector(group)
	if err != nil {
		return err
	}
	done, err := s.wait(ctx, group)
	if err != nil {
		return err
	}
	defer done()
	var result error
	held := false
	err = tenure.Lead(ctx, e, func(during context.Context, term *tenure.Term) error {
		held = true
		result = work(during, term)
		if cause := context.Cause(term.Context()); cause != nil && ctx.Err() == nil {
			result = errors.Join(result, fmt.Errorf("lock: %q was lost: %w", name, cause))
		}
		return tenure.ErrDone
	}, opts...)
	if held {
		s.retire(ctx, group)
		return result
	}
	return err
}

// wait waits until no other goroutine of this process campaigns for the group.
func (s *Set) wait(ctx context.Context, group string) (done func(), err error) {
	s.mu.Lock()
	t := s.turns[group]
	if t == nil {
		t = &turn{held: make(chan struct{}, 1)}
		s.turns[group] = t
	}
	t.uses++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.uses--; t.uses == 0 {
			delete(s.turns, group)
		}
	}
	select {
	case t.held <- struct{}{}:
		return func() { <-t.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// retireTimeout bounds the removal of a record after the work. If it fails, the record stays until
// the name is used again.
const retireTimeout = 5 * time.Second

func (s *Set) retire(ctx context.Context, group string) {
	r, ok := s.hook.Store.(store.Retirer)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retireTimeout)
	defer cancel()
	v, err := s.hook.Store.Read(ctx, group)
	if err == nil && v.State == tenure.Vacant && v.Version != 0 {
		err = r.Retire(ctx, v.Record)
	}
	if err != nil && !errors.Is(err, store.ErrConflict) {
		s.hook.Log.Warn("lock: the record of an unused name was not removed", "group", group, "error", err)
	}
}
