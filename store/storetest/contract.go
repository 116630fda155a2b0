package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// A session can be read by everybody while it lives, as it was opened, and not after.
func sessionRead(c *check) {
	who := tenure.Candidate{ID: "a", Address: "host:1", Priority: 3}
	opened := c.openAs(who, lasting, c.scope("x"))
	for name, s := range map[string]store.Store{"the same client": c.store, "another client": c.engine.Open(c.t)} {
		got, err := s.Session(c.ctx, opened.ID)
		c.Must("session", err)
		if got.ID != opened.ID || got.Candidate.Address != who.Address || got.Candidate.Priority != who.Priority ||
			!slices.Equal(got.Scope, opened.Scope) || got.TTL != opened.TTL || got.Opened != opened.Opened || got.Deployment != opened.Deployment {
			c.Errorf("%s reads %+v, opened was %+v", name, got, opened)
		}
	}
	c.close(opened.ID)
	for _, id := range []store.SessionID{opened.ID, "never-was"} {
		c.wants(fmt.Sprintf("session %q", id), errOf(c.store.Session(c.ctx, id)), store.ErrSessionDead)
	}
}

// A keep-alive returns the current records of the named groups, in that order, so that a
// leader learns with each keep-alive whether it leads.
func beatShowsRecords(c *check) {
	a, b := c.session("a"), c.session("b")
	held := c.take(a, c.group("held"))
	given := c.give(a, c.take(a, c.group("given")), b)
	never := store.Record{Group: c.group("never")}
	want := []store.Record{given, held, never}
	if c.store.Caps().Batch < len(want) {
		want = []store.Record{held}
	}
	var groups []string
	for _, r := range want {
		groups = append(groups, r.Group)
	}
	beat, err := c.engine.Open(c.t).KeepAlive(c.ctx, a, groups...)
	c.Must("keep-alive", err)
	if len(beat.Records) != len(want) {
		c.Fatalf("a keep-alive for %d groups shows %d records", len(want), len(beat.Records))
	}
	for i, r := range beat.Records {
		if r.Group != want[i].Group || r.Version != want[i].Version || r.Holder != want[i].Holder || r.Token != want[i].Token {
			c.Errorf("a keep-alive shows %+v, want %+v", r, want[i])
		}
	}
	c.wants("keep-alive for too many groups", errOf(c.store.KeepAlive(c.ctx, a, make([]string, c.store.Caps().Batch+1)...)), store.ErrInvalid)
}

// A close from records that have changed closes nothing and shows them. Of a close and an
// acquire at the same time one fails: no session is closed that was just granted a group.
func closeCompares(c *check) {
	a, b := c.session("a"), c.session("b")
	free := c.give(b, c.take(b, c.group("g")), "")
	held := c.take(a, c.group("g"))
	err := c.store.End(c.ctx, a, store.Closed, free)
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) || len(conflict.Current) != 1 || conflict.Current[0].Version != held.Version {
		c.Errorf("a close from an old record answered %v, want a conflict that shows version %d", err, held.Version)
	}
	c.unchanged("after a close that was refused", held, tenure.Led)
	c.wants("keep-alive after a close that was refused", errOf(c.store.KeepAlive(c.ctx, a)), nil)
	c.Must("close from the record as it is", c.store.End(c.ctx, a, store.Closed, held))
	c.vacant(held.Group)
	c.wants("a second close", c.store.End(c.ctx, a, store.Closed, held), nil)

	other := c.engine.Open(c.t)
	for i := range 20 {
		id := c.session("racer")
		seen := c.read(c.group(fmt.Sprintf("race-%d", i))).Record
		var both sync.WaitGroup
		var won []store.Record
		var acquire error
		both.Go(func() { won, acquire = other.Acquire(c.ctx, id, seen) })
		closed := c.store.End(c.ctx, id, store.Closed, seen)
		both.Wait()
		switch {
		case acquire == nil && closed == nil:
			c.Errorf("Acquire granted %q and End closed the session: one of them must fail", won[0].Group)
		case acquire == nil:
			c.wants("a close that lost", closed, store.ErrConflict)
			c.unchanged("after a close that lost", won[0], tenure.Led)
		case closed != nil:
			c.Errorf("both failed: acquire %w, close %w", acquire, closed)
		}
	}
}

// A batch is released, or handed over, as a whole or not at all.
func releaseBatch(c *check) {
	n := min(3, c.store.Caps().Batch)
	a, b := c.session("a"), c.session("b")
	take := func() []store.Record {
		var seen []store.Record
		for i := range n {
			seen = append(seen, c.read(c.group(fmt.Sprintf("g%d", i))).Record)
		}
		held, err := c.store.Acquire(c.ctx, a, seen...)
		c.Must("acquire", err)
		return held
	}
	held := take()
	stale := slices.Clone(held)
	stale[n-1].Version--
	c.wants("a release with one record of another version", errOf(c.store.Release(c.ctx, a, "", "", stale...)), store.ErrConflict)
	for _, r := range held {
		c.unchanged("after a release that was refused", r, tenure.Led)
	}
	freed, err := c.store.Release(c.ctx, a, "", store.SteppedDown, held...)
	c.Must("release", err)
	for i, r := range freed {
		if r.Group != held[i].Group || r.Holder != "" || r.Token != held[i].Token {
			c.Errorf("released %+v, got %+v", held[i], r)
		}
		c.unchanged("after the release", r, tenure.Vacant)
	}
	held = take()
	moved, err := c.store.Release(c.ctx, a, b, "", held...)
	c.Must("hand over", err)
	for i, r := range moved {
		if r.Holder != b || r.Token <= held[i].Token {
			c.Errorf("handed over %+v, got %+v", held[i], r)
		}
		c.unchanged("after the handover", r, tenure.Led)
	}
	c.wants("a release of too many", errOf(c.store.Release(c.ctx, a, "", "", make([]store.Record, c.store.Caps().Batch+1)...)), store.ErrInvalid)
}

// The next token follows the one in the store, whatever token the caller passes.
func tokenFromStore(c *check) {
	a := c.session("a")
	free := c.give(a, c.take(a, c.group("g")), "")
	want, err := free.Token.Next(free.Token.Epoch())
	c.Must("next token", err)
	for _, claimed := range []fence.Token{0, 1000} {
		seen := store.Record{Group: free.Group, Version: free.Version, Token: claimed}
		held, err := c.store.Acquire(c.ctx, a, seen)
		c.Must("acquire", err)
		if held[0].Token != want {
			c.Errorf("a caller that claims token %d is granted %d, want %d", claimed, held[0].Token, want)
		}
		claim := held[0]
		claim.Token, claim.Terms = claimed, nil
		released, err := c.store.Release(c.ctx, a, "", "", claim)
		c.Must("release", err)
		if free = released[0]; free.Token != want || len(free.Terms) < 2 {
			c.Errorf("a release by a caller that claims token %d left %+v", claimed, free)
		}
		want++
	}
}

// A watch shows the sessions in its scope that live when it begins, and then each that
// begins and each that ends, with the reason.
func watchSessions(c *check) {
	before := c.openAs(tenure.Candidate{ID: "before", Address: "host:1"}, lasting, c.scope("in"))
	c.openAs(tenure.Candidate{ID: "outside"}, lasting, c.scope("out"))
	w := c.watch(c.store, c.scope("in"))
	living := map[store.SessionID]store.Session{}
	for {
		u := w.update("waiting for the end of the snapshot")
		if u.Kind == store.Synced {
			break
		}
		if u.Kind == store.SessionBegan {
			living[u.Session.ID] = u.Session
		}
	}
	if got := living[before.ID]; len(living) != 1 || got.Candidate.Address != "host:1" || got.Opened != before.Opened {
		c.Errorf("the snapshot shows %+v, want %+v alone", living, before)
	}
	next := func(what string, kind store.UpdateKind, id store.SessionID) store.Update {
		for {
			u := w.update(what)
			if u.Kind == kind && u.Session.ID == id {
				return u
			}
		}
	}
	after := c.openAs(tenure.Candidate{ID: "after"}, lasting, c.scope("in"))
	if u := next("waiting for a session that began", store.SessionBegan, after.ID); u.Session.Candidate.ID != "after" {
		c.Errorf("the watch shows %+v, opened was %+v", u.Session, after)
	}
	c.Must("close", c.store.End(c.ctx, before.ID, store.SteppedDown))
	if u := next("waiting for a session that was closed", store.SessionEnded, before.ID); u.Reason != store.SteppedDown {
		c.Errorf("a session that stepped down is shown as %q", u.Reason)
	}
	short := c.openAs(tenure.Candidate{ID: "short"}, c.engine.TTL, c.scope("in"))
	c.take(after.ID, c.group("in")) // with observed expiry, leaders observe the sessions of waiting candidates
	next("waiting for a session that expired", store.SessionEnded, short.ID)
}

// The snapshot of a watch includes everything that was acknowledged before the watch.
func watchLinearizable(c *check) {
	writer, reader := c.store, c.engine.Open(c.t)
	a := c.session("a")
	for i := range 10 {
		held := c.take(a, c.group(fmt.Sprintf("g%d", i)))
		views := c.watch(reader, c.scope("g")).snapshot()
		if v := views[held.Group]; v.Version != held.Version || v.State != tenure.Led {
			c.Errorf("%q was granted in version %d before the watch, which shows version %d, %v", held.Group, held.Version, v.Version, v.State)
		}
		released, err := release(c.ctx, writer, a, held, "", "")
		c.Must("release", err)
		views = c.watch(reader, c.scope("g")).snapshot()
		if v := views[held.Group]; v.Version != released.Version || v.State != tenure.Vacant {
			c.Errorf("%q was released in version %d before the watch, which shows version %d, %v", held.Group, released.Version, v.Version, v.State)
		}
	}
}
