package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// fate is what happens to a call.
type fate int

const (
	delivered  fate = iota
	callLost        // it never arrived
	answerLost      // it was applied, and its answer lost
)

var errNoAnswer = errors.New("no answer")

// flakyStore is a store behind a network that loses calls or answers. The
// caller cannot tell which.
type flakyStore struct {
	store.Store
	next fate
}

func flaky[T any](f *flakyStore, call func() (T, error)) (T, error) {
	var zero T
	switch f.next {
	case callLost:
		return zero, errNoAnswer
	case answerLost:
		if _, err := call(); err != nil {
			return zero, errors.Join(errNoAnswer, err)
		}
		return zero, errNoAnswer
	}
	return call()
}

func (f *flakyStore) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	return flaky(f, func() (store.Beat, error) { return f.Store.KeepAlive(ctx, id, groups...) })
}

func (f *flakyStore) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	_, err := flaky(f, func() (struct{}, error) { return struct{}{}, f.Store.End(ctx, id, why, seen...) })
	return err
}

func (f *flakyStore) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	return flaky(f, func() ([]store.Record, error) { return f.Store.Acquire(ctx, id, seen...) })
}

func (f *flakyStore) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	return flaky(f, func() ([]store.Record, error) { return f.Store.Release(ctx, id, to, why, held...) })
}

// After a lost call or a lost answer a read shows which of them was lost. Repeating the call
// has its effect, once.
func lostRepliesResolve(c *check) {
	f := &flakyStore{Store: c.store}
	noAnswer := func(what string, err error) {
		if store.Definite(err) || err == nil {
			c.Fatalf("%s, with its answer lost: %v", what, err)
		}
	}
	for _, lost := range []fate{callLost, answerLost} {
		applied := lost == answerLost
		group := c.group([]string{"", "call", "answer"}[lost])
		a, b := c.session("a"), c.session("b")

		seen := c.read(group).Record
		f.next = lost
		_, err := f.Acquire(c.ctx, a, seen)
		noAnswer("acquire", err)
		held := c.read(group).Record
		if mine := held.Holder == a && held.Version > seen.Version; mine != applied {
			c.Errorf("acquire was applied: %v; a read shows version %d held by %q", applied, held.Version, held.Holder)
		}
		if again, err := c.store.Acquire(c.ctx, a, seen); applied {
			c.wants("acquire again", err, store.ErrConflict)
		} else {
			c.Must("acquire again", err)
			held = again[0]
		}
		c.unchanged("after an acquire was repeated", held, tenure.Led)

		f.next = lost
		_, err = f.KeepAlive(c.ctx, a)
		noAnswer("keep-alive", err)
		_, err = c.store.KeepAlive(c.ctx, a)
		c.Must("keep-alive again", err)

		f.next = lost
		_, err = release(c.ctx, f, a, held, b, "")
		noAnswer("transfer", err)
		moved := c.read(group).Record
		if theirs := moved.Holder == b && moved.Version > held.Version; theirs != applied {
			c.Errorf("transfer was applied: %v; a read shows version %d held by %q", applied, moved.Version, moved.Holder)
		}
		if again, err := release(c.ctx, c.store, a, held, b, ""); applied {
			c.wants("transfer again", err, store.ErrConflict)
		} else {
			c.Must("transfer again", err)
			moved = again
		}
		c.unchanged("after a transfer was repeated", moved, tenure.Led)

		f.next = lost
		_, err = release(c.ctx, f, b, moved, "", "")
		noAnswer("release", err)
		free := c.read(group)
		if isVacant(free) != applied {
			c.Errorf("release was applied: %v; a read shows %v", applied, free.State)
		}
		if again, err := release(c.ctx, c.store, b, moved, "", ""); applied {
			c.wants("release again", err, store.ErrConflict)
		} else {
			c.Must("release again", err)
			free.Record = again
		}
		c.unchanged("after a release was repeated", free.Record, tenure.Vacant)

		last := c.take(a, group)
		f.next = lost
		noAnswer("close", f.End(c.ctx, a, ""))
		if v := c.read(group); isVacant(v) != applied {
			c.Errorf("close was applied: %v; a read shows %v", applied, v.State)
		}
		c.wants("close again", c.store.End(c.ctx, a, ""), nil)
		c.unchanged("after a close was repeated", last, tenure.Vacant)
		c.take(b, group)
	}
}

// interrupted cancels a call at a moment that differs from one to the next:
// before it, or up to twice as long after its start as such a call takes.
func interrupted[T any](c *check, n int, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	if n%8 == 0 {
		cancel()
		return call(ctx)
	}
	began := time.Now()
	_, _ = c.store.Read(c.ctx, c.group("pace"))
	pace := max(time.Since(began), time.Microsecond)
	timer := time.AfterFunc(rand.N(2*pace), cancel)
	defer timer.Stop()
	return call(ctx)
}

// A call that is cancelled at any moment has been made or not, and a read or a
// repetition tells; in the end the session's close frees the group for another.
func cancelNoOrphan(c *check) {
	group := c.group("g")
	other := c.session("other")
	for i := range 32 {
		id := c.session("a")
		seen := c.read(group).Record
		granted, err := interrupted(c, i, func(ctx context.Context) ([]store.Record, error) { return c.store.Acquire(ctx, id, seen) })
		held := c.settle("acquire", id, seen, err, func() (store.Record, error) {
			again, err := c.store.Acquire(c.ctx, id, seen)
			if err != nil {
				return store.Record{}, err
			}
			return again[0], nil
		})
		if err == nil && granted[0].Version != held.Version {
			c.Errorf("acquire answered version %d, a read %d", granted[0].Version, held.Version)
		}
		if held.Holder != id || held.Version <= seen.Version {
			c.Fatalf("the acquire of %s from version %d ended at version %d, held by %q", id, seen.Version, held.Version, held.Holder)
		}

		to := []store.SessionID{"", other}[i%2]
		_, err = interrupted(c, i+1, func(ctx context.Context) (store.Record, error) {
			return release(ctx, c.store, id, held, to, "")
		})
		given := c.settle("release", id, held, err, func() (store.Record, error) {
			return release(c.ctx, c.store, id, held, to, "")
		})
		if given.Holder != to || given.Version <= held.Version {
			c.Fatalf("the release of version %d to %q ended at version %d, held by %q", held.Version, to, given.Version, given.Holder)
		}
		if to != "" {
			c.give(other, given, "")
		}

		c.take(id, group)
		_, err = interrupted(c, i+2, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, c.store.End(ctx, id, "")
		})
		if err != nil {
			c.close(id)
		}
		c.give(other, c.take(other, group), "")
	}
}

// settle resolves a call of unknown outcome: it repeats the call, and if that conflicts, the
// first one was applied. It returns the resulting record.
func (c *check) settle(what string, id store.SessionID, from store.Record, err error, again func() (store.Record, error)) store.Record {
	if store.Definite(err) {
		c.Fatalf("%s by %s from version %d: %w", what, id, from.Version, err)
	}
	if err == nil {
		return c.read(from.Group).Record
	}
	r, err := again()
	switch {
	case errors.Is(err, store.ErrConflict):
		return c.read(from.Group).Record
	case err != nil:
		c.Fatalf("%s again: %w", what, err)
	}
	return r
}

// Every call whose context has ended returns soon, with an error of unknown outcome.
func contextObeyed(c *check) {
	id, b := c.session("a"), c.session("b")
	held := c.take(id, c.group("g"))
	c.Must("ask", c.store.Ask(c.ctx, id, c.request("asked")))
	meta, err := c.store.Meta(c.ctx)
	c.Must("meta", err)
	s := c.store
	ended, cancel := context.WithCancel(c.ctx)
	cancel()
	for name, call := range map[string]func(context.Context) error{
		"Open": func(ctx context.Context) error {
			return errOf(s.Open(ctx, tenure.Candidate{ID: "a"}, c.engine.TTL, store.OpenOptions{Scope: c.scope("")}))
		},
		"KeepAlive":  func(ctx context.Context) error { return errOf(s.KeepAlive(ctx, id)) },
		"Close":      func(ctx context.Context) error { return s.End(ctx, b, "") },
		"Acquire":    func(ctx context.Context) error { return errOf(s.Acquire(ctx, id, store.Record{Group: c.group("h")})) },
		"Release":    func(ctx context.Context) error { return errOf(release(ctx, s, id, held, "", "")) },
		"Ask":        func(ctx context.Context) error { return s.Ask(ctx, id, c.request("r")) },
		"Answer":     func(ctx context.Context) error { return s.Answer(ctx, id, "asked", store.Answer{Outcome: store.Done}) },
		"Answered":   func(ctx context.Context) error { return errOf(s.Answered(ctx, id, "asked")) },
		"Read":       func(ctx context.Context) error { return errOf(s.Read(ctx, held.Group)) },
		"Groups":     func(ctx context.Context) error { return errOf(s.Groups(ctx, c.scope(""), store.Page{})) },
		"Sessions":   func(ctx context.Context) error { return errOf(s.Sessions(ctx, c.scope(""), store.Page{})) },
		"History":    func(ctx context.Context) error { return errOf(s.History(ctx, held.Group, store.Page{})) },
		"Meta":       func(ctx context.Context) error { return errOf(s.Meta(ctx)) },
		"RaiseEpoch": func(ctx context.Context) error { return errOf(s.RaiseEpoch(ctx, meta.Epoch+1)) },
		"Suspect":    func(ctx context.Context) error { return s.Suspect(ctx, held.Group, held.Token) },
		"Attributes": func(ctx context.Context) error { return errOf(s.Attributes(ctx, "group/"+held.Group)) },
		"ListAttributes": func(ctx context.Context) error {
			return errOf(s.ListAttributes(ctx, "group/", store.Page{}))
		},
		"SetAttributes": func(ctx context.Context) error {
			return errOf(s.SetAttributes(ctx, store.Attributes{Name: "group/" + held.Group}))
		},
	} {
		answer := make(chan error, 1)
		go func() { answer <- call(ended) }()
		select {
		case err := <-answer:
			if err == nil || store.Definite(err) {
				c.Errorf("%s with a context that had ended answered %v", name, err)
			}
		case <-time.After(c.engine.Patience):
			c.Errorf("%s with a context that had ended does not return", name)
		}
	}

	// A watch that waits for changes ends with its context.
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for u, err := range s.Watch(ctx, store.Scope{held.Group}) {
			if err != nil {
				if store.Definite(err) {
					c.Errorf("a watch whose context ended says: %v", err)
				}
				return
			}
			if u.Kind == store.Synced {
				cancel()
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(c.engine.Patience):
		c.Errorf("a watch goes on after its context")
	}
}
