package storetest

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// A session carries its candidate, its scope and the deployment; its TTL is not
// shorter than asked for; a younger one has a larger number.
func sessionAsOpened(c *check) {
	limits := c.store.Caps()
	if limits.MinTTL <= 0 || limits.MaxTTL < limits.MinTTL || limits.Batch < 1 {
		c.Errorf("limits %+v", limits)
	}
	meta, err := c.store.Meta(c.ctx)
	c.Must("meta", err)
	who := tenure.Candidate{ID: "a", Address: "host:1", Metadata: map[string]string{"zone": "b"}, Priority: 3}
	scope := store.Scope{c.group("g"), c.group("shard-") + "*"}
	n := c.openAs(who, lasting, scope)
	check := func(where string, n store.Session) {
		got := n.Candidate
		if n.ID == "" || got.ID != who.ID || got.Address != who.Address || got.Priority != who.Priority ||
			!maps.Equal(got.Metadata, who.Metadata) || !slices.Equal(n.Scope, scope) || n.Deployment != meta.Deployment || n.Deployment == "" {
			c.Errorf("%s the session is %+v; asked for was %+v in %v, of deployment %q", where, n, who, scope, meta.Deployment)
		}
		if n.TTL < min(lasting, limits.MaxTTL) {
			c.Errorf("%s the TTL is %v, less than the %v asked for", where, n.TTL, min(lasting, limits.MaxTTL))
		}
	}
	check("when opened", n)
	listed := c.listed(scope)
	if len(listed) != 1 {
		c.Fatalf("%d sessions are listed, one was opened", len(listed))
	}
	check("when listed", listed[0])
	beat, err := c.store.KeepAlive(c.ctx, n.ID)
	c.Must("keep-alive", err)
	if beat.TTL < n.TTL || len(beat.Requests) != 0 {
		c.Errorf("the beat is %+v, the TTL was granted as %v", beat, n.TTL)
	}
	if short := c.openAs(who, 1, c.scope("x")); short.TTL < limits.MinTTL {
		c.Errorf("a TTL of 1 ns is granted as %v, less than the least, %v", short.TTL, limits.MinTTL)
	}
	if younger := c.openAs(who, lasting, c.scope("x")); younger.Opened <= n.Opened {
		c.Errorf("the younger session has number %d, the older one %d", younger.Opened, n.Opened)
	}
}

// listed returns the sessions of this check in the scope. Sessions of other checks may be for
// all groups.
func (c *check) listed(scope store.Scope) []store.Session {
	var own []store.Session
	page := store.Page{Limit: 50}
	for {
		sessions, err := c.store.Sessions(c.ctx, scope, page)
		c.Must("sessions", err)
		for _, n := range sessions {
			page.After = string(n.ID)
			if slices.Contains(c.opened, n.ID) {
				own = append(own, n)
			}
		}
		if len(sessions) < page.Limit {
			return own
		}
	}
}

// Session ids are unique: between clients, between concurrent calls, and after a close.
func sessionIDsUnique(c *check) {
	stores := []store.Store{c.store, c.engine.Open(c.t)}
	ids := make(chan store.SessionID, 64)
	var openers sync.WaitGroup
	for i := range cap(ids) {
		openers.Go(func() {
			s := stores[i%len(stores)]
			n, err := s.Open(c.ctx, tenure.Candidate{ID: "a"}, lasting, store.OpenOptions{Scope: c.scope("")})
			if err != nil {
				c.Errorf("open: %w", err)
				return
			}
			ids <- n.ID
			if err := s.End(c.ctx, n.ID, ""); err != nil {
				c.Errorf("close: %w", err)
			}
		})
	}
	openers.Wait()
	close(ids)
	seen := make(map[store.SessionID]bool)
	for id := range ids {
		if seen[id] {
			c.Errorf("id %q was given twice", id)
		}
		seen[id] = true
	}
}

// Opening again with the same attempt returns the living session, also through another
// client and at the same moment. Another instance, another attempt and an attempt whose
// session has died get a session of their own, with an id that was never used.
func openRetried(c *check) {
	who := tenure.Candidate{ID: "a"}
	options := func(instance, attempt string) store.OpenOptions {
		return store.OpenOptions{Scope: c.scope(""), Instance: c.prefix + "-instance-" + instance, Attempt: attempt}
	}
	other := c.engine.Open(c.t)
	open := func(s store.Store, o store.OpenOptions) store.Session {
		n, err := s.Open(c.ctx, who, min(lasting, s.Caps().MaxTTL), o)
		c.Must("open", err)
		c.mu.Lock()
		c.opened = append(c.opened, n.ID)
		c.mu.Unlock()
		return n
	}
	first := open(c.store, options("one", "1"))
	if first.Instance != store.InstanceDigest(options("one", "1").Instance) {
		c.Errorf("the session's instance is %q, not the digest of the one that opened it", first.Instance)
	}
	for name, s := range map[string]store.Store{"the same client": c.store, "another client": other} {
		if again := open(s, options("one", "1")); again.ID != first.ID || again.Opened != first.Opened || again.TTL != first.TTL || again.Instance != first.Instance {
			c.Errorf("opened again by %s: %+v, not %+v", name, again, first)
		}
	}
	if listed := c.listed(c.scope("")); len(listed) != 1 || listed[0].Instance != first.Instance {
		c.Errorf("%d sessions are listed after one attempt was opened three times: %+v", len(listed), listed)
	}
	seen := map[store.SessionID]string{first.ID: "the first attempt"}
	fresh := func(what string, n store.Session) {
		if was, ok := seen[n.ID]; ok {
			c.Errorf("%s got session %q of %s", what, n.ID, was)
		}
		seen[n.ID] = what
	}
	fresh("another attempt", open(c.store, options("one", "2")))
	fresh("another instance", open(c.store, options("two", "1")))
	fresh("an instance without an attempt", open(c.store, options("one", "")))

	wrong := options("one", "1")
	wrong.Scope = c.scope("other")
	c.wants("opening a living attempt with another scope", errOf(c.store.Open(c.ctx, who, lasting, wrong)), store.ErrInvalid)

	var openers sync.WaitGroup
	ids := make(chan store.SessionID, 16)
	for i := range cap(ids) {
		openers.Go(func() {
			n, err := []store.Store{c.store, other}[i%2].Open(c.ctx, who, min(lasting, other.Caps().MaxTTL), options("three", "1"))
			if err != nil {
				c.Errorf("open: %w", err)
			}
			ids <- n.ID
		})
	}
	openers.Wait()
	close(ids)
	one := <-ids
	for id := range ids {
		if id != one {
			c.Errorf("one attempt, opened by many at once, has sessions %q and %q", one, id)
		}
	}

	held := c.take(first.ID, c.group("g"))
	c.Must("close", c.store.End(c.ctx, first.ID, store.Closed))
	reopened := open(other, options("one", "1"))
	fresh("an attempt whose session was closed", reopened)
	if v := c.read(held.Group); v.State != tenure.Vacant {
		c.Errorf("the group of the closed session is %v after its attempt was opened again", v.State)
	}
	c.wants("keep-alive of the closed session", errOf(c.store.KeepAlive(c.ctx, first.ID)), store.ErrSessionDead)
}

// A hint ends a session that was opened as fenced, and no other.
func suspectedIsFenced(c *check) {
	for _, fenced := range []bool{false, true} {
		group := c.group(fmt.Sprintf("fenced-%v", fenced))
		s, err := c.store.Open(c.ctx, tenure.Candidate{ID: "a"}, min(lasting, c.store.Caps().MaxTTL), store.OpenOptions{Scope: store.Scope{group}, Fenced: fenced})
		c.Must("open", err)
		held := c.take(s.ID, group)
		err = c.store.End(c.ctx, s.ID, store.Suspected)
		if fenced {
			c.Must("end of a fenced session on suspicion", err)
			c.vacant(group)
			continue
		}
		c.wants("end of an unfenced session on suspicion", err, store.ErrInvalid)
		c.unchanged("the group of an unfenced session", held, tenure.Led)
	}
}

// No call revives a session that was closed or has expired, or creates one for an unknown id.
// Its groups stay vacant.
func deathIsFinal(c *check) {
	closed := c.session("closed")
	held := c.take(closed, c.group("closed"))
	expired, void := c.expiring("expired", c.group("expired"))
	c.close(closed)
	c.vacant(void.Group)
	other := c.session("other")
	mine := c.take(other, c.group("mine"))
	for _, id := range []store.SessionID{closed, expired, "never-was"} {
		for range 3 {
			c.wants(fmt.Sprintf("keep-alive of dead session %q", id), errOf(c.store.KeepAlive(c.ctx, id)), store.ErrSessionDead)
		}
		c.wants("ask", c.store.Ask(c.ctx, id, store.Request{ID: "r", Verb: store.StepDown, Group: held.Group, TTL: time.Minute}), store.ErrSessionDead)
		c.wants("acquire", errOf(c.store.Acquire(c.ctx, id, store.Record{Group: c.group("new")})), store.ErrSessionDead)
		c.wants("transfer", errOf(release(c.ctx, c.store, other, mine, id, "")), store.ErrSuccessor)
		c.wants("close", c.store.End(c.ctx, id, ""), nil)
		c.wants("keep-alive after all that", errOf(c.store.KeepAlive(c.ctx, id)), store.ErrSessionDead)
	}
	c.unchanged("closed", held, tenure.Vacant)
	c.unchanged("expired", void, tenure.Vacant)
	c.unchanged("mine", mine, tenure.Led)
	for _, n := range c.listed(c.scope("")) {
		if n.ID != other {
			c.Errorf("dead session %q is listed", n.ID)
		}
	}
}

// A candidate whose session died in line is not granted the group when it becomes vacant,
// alone or in a batch, and its attempt has no effect.
func deadNeverLeads(c *check) {
	group := c.group("g")
	holder, closed := c.session("holder"), c.session("closed")
	expired, witness := c.expiring("expired", c.group("witness"))
	held := c.take(holder, group)
	c.close(closed)
	c.vacant(witness.Group)
	free := c.give(holder, held, "")
	for _, id := range []store.SessionID{closed, expired} {
		c.wants("acquire by a dead waiter", errOf(c.store.Acquire(c.ctx, id, free)), store.ErrSessionDead)
		if c.store.Caps().Batch > 1 {
			c.wants("acquire of a batch by a dead waiter", errOf(c.store.Acquire(c.ctx, id, store.Record{Group: c.group("h")}, free)), store.ErrSessionDead)
		}
	}
	c.unchanged("after the tries of the dead", free, tenure.Vacant)
	c.unchanged("after the tries of the dead", store.Record{Group: c.group("h")}, tenure.Vacant)
	c.take(c.session("living"), group)
}

// A session that is kept alive outlives its TTL; after the last keep-alive it
// dies no earlier than the TTL, and no later than the TTL and Settle.
func ttlKept(c *check) {
	for range 10 {
		if ttlKeptOnce(c) {
			return
		}
	}
	c.Fatalf("ten sessions in a row could not be kept alive: is a TTL of %v comfortable?", c.engine.TTL)
}

// ttlKeptOnce returns false if the check itself was too slow for a result.
func ttlKeptOnce(c *check) bool {
	group := c.group("g")
	opened := time.Now()
	id, held := c.expiring("a", group)
	sent, received := opened, time.Now()
	ttl := c.engine.TTL
	for received.Sub(opened) < 2*ttl {
		time.Sleep(c.engine.TTL / 6)
		before := sent
		sent = time.Now()
		beat, err := c.store.KeepAlive(c.ctx, id)
		received = time.Now()
		if err != nil && received.Sub(before) >= ttl-ttl/50 {
			return false
		}
		c.Must("keep-alive in time", err)
		ttl = beat.TTL
	}
	// The engine's clock may run faster than ours, so allow a fiftieth of the TTL.
	earliest := sent.Add(ttl - ttl/50)
	latest := received.Add(ttl + c.engine.Settle)
	for {
		asked := time.Now()
		v := c.read(group)
		answered := time.Now()
		if v.Version != held.Version {
			c.Fatalf("version %d became %d without a call", held.Version, v.Version)
		}
		if v.State == tenure.Vacant {
			if answered.Before(earliest) {
				c.Errorf("dead %v after its keep-alive, with a TTL of %v", answered.Sub(sent), ttl)
			}
			return true
		}
		if asked.After(latest) {
			c.Fatalf("alive %v after its keep-alive, with a TTL of %v and %v to settle", asked.Sub(received), ttl, c.engine.Settle)
		}
		time.Sleep(c.engine.TTL / 50)
	}
}
