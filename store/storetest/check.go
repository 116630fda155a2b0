package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/suite"
	"github.com/tenurehq/tenure/store"
)

// check is the check of one promise.
type check struct {
	suite.Check

	t      *testing.T
	engine Engine
	ctx    context.Context
	prefix string
	store  store.Store // a client; Engine.Open makes others

	mu     sync.Mutex
	opened []store.SessionID
	ends   []func()
}

// lasting is the TTL of sessions that are not meant to expire.
const lasting = 5 * time.Minute

// observe returns what is wrong with a promise, nil if it is kept.
func observe(t *testing.T, e Engine, p promise) error {
	if e.Patience == 0 {
		e.Patience = e.TTL + e.Settle + 15*time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*e.Patience)
	defer cancel()
	c := &check{
		t: t, engine: e, ctx: ctx, store: e.Open(t),
		prefix: "t" + strconv.FormatUint(rand.Uint64(), 36) + "-",
	}
	defer c.cleanUp()
	c.Observe(func() { p.check(c) })
	return c.Err()
}

func (c *check) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), c.engine.Patience)
	defer cancel()
	for _, end := range c.ends {
		end()
	}
	for _, id := range c.opened {
		if err := c.store.End(ctx, id, store.Closed); err != nil {
			c.t.Logf("session %s was not closed: %v", id, err)
		}
	}
}

// wants reports an error other than want.
func (c *check) wants(what string, got, want error) {
	if !errors.Is(got, want) {
		c.Errorf("%s: answered %v, want %v", what, got, want)
	}
}

// group returns a name that no other check or run uses.
func (c *check) group(name string) string { return c.prefix + name }

// scope returns a scope of the groups whose names have this prefix.
func (c *check) scope(begin string) store.Scope { return store.Scope{c.prefix + begin + "*"} }

func (c *check) openAs(who tenure.Candidate, ttl time.Duration, scope store.Scope) store.Session {
	n, err := c.store.Open(c.ctx, who, min(ttl, c.store.Caps().MaxTTL), store.OpenOptions{Scope: scope})
	c.Must("open", err)
	c.mu.Lock()
	c.opened = append(c.opened, n.ID)
	c.mu.Unlock()
	return n
}

// session opens a session that does not expire, for all groups of the check.
func (c *check) session(name string) store.SessionID {
	return c.openAs(tenure.Candidate{ID: name}, lasting, c.scope("")).ID
}

// expiring opens a session that will expire and acquires a group for it. On a busy machine
// the session can expire before that; then it tries with another one.
func (c *check) expiring(name, group string) (store.SessionID, store.Record) {
	for range 10 {
		n := c.openAs(tenure.Candidate{ID: name}, c.engine.TTL, c.scope(""))
		granted, err := c.store.Acquire(c.ctx, n.ID, c.read(group).Record)
		if errors.Is(err, store.ErrSessionDead) {
			continue
		}
		c.Must("acquire", err)
		return n.ID, granted[0]
	}
	c.Fatalf("ten sessions in a row died before they were granted a group: is a TTL of %v comfortable?", c.engine.TTL)
	return "", store.Record{}
}

func (c *check) close(id store.SessionID) {
	c.Must("close", c.store.End(c.ctx, id, store.Closed))
}

func (c *check) read(group string) store.View {
	v, err := c.store.Read(c.ctx, group)
	c.Must("read", err)
	if v.Group != group || v.State != tenure.Led && v.State != tenure.Vacant {
		c.Fatalf("read of %q answered %+v", group, v)
	}
	return v
}

// shown returns the view of a group in a listing, which also works while data is lost.
func (c *check) shown(group string) store.View {
	views, err := c.store.Groups(c.ctx, store.Scope{group}, store.Page{})
	c.Must("list", err)
	if len(views) != 1 || views[0].Group != group {
		c.Fatalf("a listing of %q answered %+v", group, views)
	}
	return views[0]
}

// take acquires a group from its current version.
func (c *check) take(id store.SessionID, group string) store.Record {
	v := c.read(group)
	granted, err := c.store.Acquire(c.ctx, id, v.Record)
	c.Must("acquire", err)
	if len(granted) != 1 {
		c.Fatalf("an acquire of one record answered %d", len(granted))
	}
	r := granted[0]
	if r.Group != group || r.Holder != id || r.Version <= v.Version || r.Token <= v.Token {
		c.Fatalf("acquire from %+v answered %+v", v.Record, r)
	}
	return r
}

func (c *check) give(id store.SessionID, held store.Record, to store.SessionID) store.Record {
	r, err := release(c.ctx, c.store, id, held, to, "")
	c.Must("release", err)
	if r.Group != held.Group || r.Holder != to || r.Version <= held.Version {
		c.Fatalf("release of %+v to %q answered %+v", held, to, r)
	}
	return r
}

// unchanged reports an error if the record in the store is not want.
func (c *check) unchanged(what string, want store.Record, state tenure.State) {
	v := c.read(want.Group)
	if v.Version != want.Version || v.Token != want.Token || v.Holder != want.Holder || v.State != state {
		c.Errorf("%s: the record is at version %d, token %d, held by %q, %v; want version %d, token %d, held by %q, %v",
			what, v.Version, v.Token, v.Holder, v.State, want.Version, want.Token, want.Holder, state)
	}
}

// eventually repeats f until it returns nil, for Patience at most.
func (c *check) eventually(what string, f func() error) {
	deadline := time.Now().Add(c.engine.Patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s: still after %v: %w", what, c.engine.Patience, err)
		}
		time.Sleep(min(c.engine.TTL/20, 50*time.Millisecond))
	}
}

// vacant reads the group until it is vacant.
func (c *check) vacant(group string) {
	c.eventually("waiting for the vacancy of "+group, func() error {
		if v := c.read(group); v.State != tenure.Vacant {
			return fmt.Errorf("it is led by %q", v.Holder)
		}
		return nil
	})
}

// errOf returns the error of a call that returns two values.
func errOf(_ any, err error) error { return err }

// release releases one record.
func release(ctx context.Context, s store.Store, id store.SessionID, held store.Record, to store.SessionID, why store.Reason) (store.Record, error) {
	released, err := s.Release(ctx, id, to, why, held)
	if err != nil {
		return store.Record{}, err
	}
	if len(released) != 1 {
		return store.Record{}, fmt.Errorf("a release of one record answered %d", len(released))
	}
	return released[0], nil
}
