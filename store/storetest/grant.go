package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// A group that is led is granted to nobody else, its holder included, from
// whatever version, and its holder goes on.
func livingHolderKeeps(c *check) {
	group := c.group("g")
	holder, other := c.session("holder"), c.session("other")
	held := c.take(holder, group)
	for _, id := range []store.SessionID{other, holder} {
		for _, version := range []uint64{0, held.Version, held.Version + 1} {
			seen := held
			seen.Version = version
			c.wants(fmt.Sprintf("acquire of a led group from version %d", version), errOf(c.store.Acquire(c.ctx, id, seen)), store.ErrConflict)
		}
	}
	c.wants("release by another", errOf(release(c.ctx, c.store, other, held, "", "")), store.ErrConflict)
	c.wants("transfer by another", errOf(release(c.ctx, c.store, other, held, other, "")), store.ErrConflict)
	c.unchanged("after all that", held, tenure.Led)
}

// Grants by acquire and by transfer each have a larger token than all before,
// and a token belongs to one session; a release keeps the last one.
func tokensIncrease(c *check) {
	group := c.group("g")
	a, b := c.session("a"), c.session("b")
	var tokens []fence.Token
	granted := func(r store.Record) {
		if n := len(tokens); n > 0 && r.Token <= tokens[n-1] {
			c.Errorf("token %d was granted after token %d", r.Token, tokens[n-1])
		}
		tokens = append(tokens, r.Token)
	}
	for range 5 {
		held := c.take(a, group)
		granted(held)
		moved := c.give(a, held, b)
		granted(moved)
		free := c.give(b, moved, "")
		if free.Token != moved.Token {
			c.Errorf("a release took token %d to %d", moved.Token, free.Token)
		}
	}
	owner := make(map[fence.Token]store.SessionID)
	history, err := c.store.History(c.ctx, group, store.Page{})
	c.Must("history", err)
	for _, term := range history {
		if id, ok := owner[term.Token]; ok {
			c.Errorf("token %d belongs to %s and to %s", term.Token, id, term.Session)
		}
		owner[term.Token] = term.Session
	}
	for i, token := range tokens {
		if want := []store.SessionID{a, b}[i%2]; owner[token] != want {
			c.Errorf("token %d belongs to %q in the history, it was granted to %q", token, owner[token], want)
		}
	}
}

// However a term ends, the next grant has a larger token.
func tokensSurvive(c *check) {
	group := c.group("g")
	var last fence.Token
	next := func(after string, r store.Record) {
		if r.Token <= last {
			c.Errorf("after %s token %d follows %d", after, r.Token, last)
		}
		last = r.Token
	}
	a := c.session("a")
	held := c.take(a, group)
	next("nothing", held)
	c.give(a, held, "")
	next("a release", c.take(a, group))
	c.close(a)
	_, void := c.expiring("e", group)
	next("a close", void)
	c.vacant(group)
	c.store = c.engine.Open(c.t)
	next("an expiry, with another client", c.take(c.session("b"), group))
}

// The record says who led, with which token, since when, and why no longer:
// the newest terms, oldest first.
func recordsTellTerms(c *check) {
	group := c.group("g")
	a := c.session("a")
	var tokens []fence.Token
	for i := range store.TermsKept + 3 {
		held := c.take(a, group)
		tokens = append(tokens, held.Token)
		if n := len(held.Terms); n != min(i+1, store.TermsKept) {
			c.Fatalf("after %d terms the record tells %d", i+1, n)
		}
		now := held.Terms[len(held.Terms)-1]
		if now.Token != held.Token || now.Session != a || now.Candidate != "a" || now.Begin.IsZero() || !now.End.IsZero() {
			c.Errorf("the present term is told as %+v; the token is %d, the session %q", now, held.Token, a)
		}
		free, err := release(c.ctx, c.store, a, held, "", store.SteppedDown)
		c.Must("release", err)
		ended := free.Terms[len(free.Terms)-1]
		if ended.Token != held.Token || ended.End.IsZero() || ended.Reason != store.SteppedDown {
			c.Errorf("the ended term is told as %+v; the reason was %q", ended, store.SteppedDown)
		}
		if !now.End.IsZero() || !held.Terms[len(held.Terms)-1].End.IsZero() {
			c.Errorf("a record that was handed out changed afterwards")
		}
		if free.Candidate.ID != "a" || free.Holder != "" {
			c.Errorf("released, the record names holder %q and candidate %q", free.Holder, free.Candidate.ID)
		}
	}
	var told []fence.Token
	for _, term := range c.read(group).Terms {
		told = append(told, term.Token)
	}
	if want := tokens[len(tokens)-store.TermsKept:]; !slices.Equal(told, want) {
		c.Errorf("the record tells tokens %v, the newest are %v", told, want)
	}
}

// A batch with one record that is led or was seen in another version grants
// none of the others; one above the limit or with a group twice is refused.
func batchAllOrNothing(c *check) {
	a, b := c.session("a"), c.session("b")
	limit := c.store.Caps().Batch
	batch := func(n int, name string) []store.Record {
		records := make([]store.Record, n)
		for i := range records {
			records[i].Group = c.group(fmt.Sprint(name, i))
		}
		return records
	}
	whole, err := c.store.Acquire(c.ctx, a, batch(limit, "whole")...)
	c.Must("acquire of the largest batch", err)
	if len(whole) != limit {
		c.Errorf("a batch of %d answered %d records", limit, len(whole))
	}
	for i, r := range whole {
		if r.Group != c.group(fmt.Sprint("whole", i)) || r.Holder != a || r.Version == 0 {
			c.Errorf("record %d of the batch is %+v", i, r)
		}
	}
	c.wants("a batch above the limit", errOf(c.store.Acquire(c.ctx, a, batch(limit+1, "over")...)), store.ErrInvalid)
	c.unchanged("in a batch above the limit", store.Record{Group: c.group("over0")}, tenure.Vacant)

	if limit < 2 {
		return
	}
	n := min(limit, 5)
	twice := batch(n, "twice")
	twice[n-1] = twice[0]
	c.wants("a batch with a group twice", errOf(c.store.Acquire(c.ctx, a, twice...)), store.ErrInvalid)
	c.unchanged("in a batch with a group twice", store.Record{Group: c.group("twice0")}, tenure.Vacant)

	for i := range n { // the one in the way is first, in the middle, last
		led, moved := batch(n, fmt.Sprint("led", i, "-")), batch(n, fmt.Sprint("moved", i, "-"))
		c.take(a, led[i].Group)
		c.give(a, c.take(a, moved[i].Group), "")
		for what, records := range map[string][]store.Record{"led": led, "moved": moved} {
			c.wants("a batch with a record that is "+what, errOf(c.store.Acquire(c.ctx, b, records...)), store.ErrConflict)
			for j, r := range records {
				if j != i {
					c.unchanged(fmt.Sprintf("in a batch with record %d %s", i, what), r, tenure.Vacant)
				}
			}
		}
	}
}

// A conflict carries the present views of the groups in the way, and of no
// others.
func conflictShows(c *check) {
	a, b := c.session("a"), c.session("b")
	shows := func(what string, err error, want ...store.View) {
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			c.Errorf("%s: answered %v, want a ConflictError", what, err)
			return
		}
		if len(conflict.Current) != len(want) {
			c.Errorf("%s: the conflict shows %+v, want %d views", what, conflict.Current, len(want))
			return
		}
		for _, w := range want {
			i := slices.IndexFunc(conflict.Current, func(v store.View) bool { return v.Group == w.Group })
			if i < 0 {
				c.Errorf("%s: the conflict does not show %q", what, w.Group)
				continue
			}
			if v := conflict.Current[i]; v.Version != w.Version || v.Token != w.Token || v.Holder != w.Holder || v.State != w.State {
				c.Errorf("%s: the conflict shows %+v, want %+v", what, v, w)
			}
		}
	}
	led := c.take(a, c.group("led"))
	free := c.give(a, c.take(a, c.group("moved")), "")
	_, err := c.store.Acquire(c.ctx, b, store.Record{Group: led.Group})
	shows("acquire of a led group", err, store.View{Record: led, State: tenure.Led})
	_, err = release(c.ctx, c.store, b, led, "", "")
	shows("release by another", err, store.View{Record: led, State: tenure.Led})
	_, err = release(c.ctx, c.store, a, free, "", "")
	shows("release of a vacant group", err, store.View{Record: free, State: tenure.Vacant})
	if c.store.Caps().Batch >= 3 {
		_, err = c.store.Acquire(c.ctx, b, led, store.Record{Group: c.group("never")}, store.Record{Group: free.Group})
		shows("acquire of a batch", err, store.View{Record: led, State: tenure.Led}, store.View{Record: free, State: tenure.Vacant})
	}
}

// A transfer to a living session that stands for the group takes one step, with
// the next token; to one that is dead, unknown, the holder itself or does not
// stand for it, none.
func transferChecked(c *check) {
	group := c.group("g")
	a, b := c.session("a"), c.session("b")
	closed := c.session("closed")
	c.close(closed)
	expired, witness := c.expiring("expired", c.group("witness"))
	foreign := c.openAs(tenure.Candidate{ID: "foreign"}, lasting, store.Scope{c.group("other")}).ID
	c.vacant(witness.Group)

	held := c.take(a, group)
	for what, to := range map[string]store.SessionID{
		"closed": closed, "expired": expired, "unknown": "never-was", "the holder itself": a, "not standing for the group": foreign,
	} {
		c.wants("transfer to a session that is "+what, errOf(release(c.ctx, c.store, a, held, to, "")), store.ErrSuccessor)
		c.unchanged("after a transfer to a session that is "+what, held, tenure.Led)
	}
	moved := c.give(a, held, b)
	if want, _ := held.Token.Next(held.Token.Epoch()); moved.Token != want {
		c.Errorf("a transfer took token %d to %d, want %d", held.Token, moved.Token, want)
	}
	if moved.Candidate.ID != "b" {
		c.Errorf("after the transfer the candidate is %q", moved.Candidate.ID)
	}
	c.unchanged("after the transfer", moved, tenure.Led)
	c.wants("the same transfer again", errOf(release(c.ctx, c.store, a, held, b, "")), store.ErrConflict)
	c.close(a) // the end of the old holder's session does not affect the group
	c.unchanged("after the giver's end", moved, tenure.Led)
}

// A late copy of a call changes nothing that came after the call.
func lateCopiesHarmless(c *check) {
	group := c.group("g")
	a, b := c.session("a"), c.session("b")
	seen := c.read(group).Record
	late := func(what string, f func() error) {
		before := c.read(group)
		if err := f(); err != nil && !store.Definite(err) {
			c.Errorf("late %s: answered %v, want a definite answer", what, err)
		}
		c.unchanged("late "+what, before.Record, before.State)
	}
	acquire := func(id store.SessionID, seen store.Record) func() error {
		return func() error { _, err := c.store.Acquire(c.ctx, id, seen); return err }
	}
	release := func(id store.SessionID, held store.Record, to store.SessionID) func() error {
		return func() error { _, err := release(c.ctx, c.store, id, held, to, ""); return err }
	}

	first := c.take(a, group)
	late("acquire, while it is held", acquire(a, seen))
	c.give(a, first, "")
	late("acquire, after the release", acquire(a, seen))
	late("release, after the release", release(a, first, ""))
	second := c.take(a, group)
	late("release of the first term in the second", release(a, first, ""))
	late("transfer of the first term in the second", release(a, first, b))
	late("acquire of the first term in the second", acquire(a, seen))
	third := c.give(a, second, b)
	late("release of the second term in another's", release(a, second, ""))
	late("transfer of the second term in another's", release(a, second, b))
	fourth := c.give(b, third, a)
	late("release of the second term in the fourth", release(a, second, ""))
	late("transfer of the third term in the fourth", release(b, third, a))
	c.close(a)
	late("release after the close", release(a, second, ""))
	late("acquire after the close", acquire(a, fourth))

	again := c.session("a") // the same candidate, another session
	fifth := c.take(again, group)
	late("keep-alive of the old session", func() error { _, err := c.store.KeepAlive(c.ctx, a); return err })
	late("close of the old session", func() error { return c.store.End(c.ctx, a, "") })
	late("release by the old session", release(a, fourth, ""))
	late("acquire by the old session", acquire(a, fourth))
	c.wants("keep-alive of the new session", errOf(c.store.KeepAlive(c.ctx, again)), nil)
	c.unchanged("at the end", fifth, tenure.Led)
}

// A client reads what was acknowledged to another client.
func readsLinearizable(c *check) {
	group := c.group("g")
	stores := []store.Store{c.store, c.engine.Open(c.t)}
	sessions := []store.SessionID{c.session("a"), c.session("b")}
	for i := range 40 {
		writer, reader, id := stores[i%2], stores[1-i%2], sessions[i/2%2]
		c.store = reader
		seen := c.read(group)
		granted, err := writer.Acquire(c.ctx, id, seen.Record)
		c.Must("acquire", err)
		c.unchanged("read by the other client after a grant", granted[0], tenure.Led)
		free, err := release(c.ctx, writer, id, granted[0], "", "")
		c.Must("release", err)
		c.unchanged("read by the other client after a release", free, tenure.Vacant)
	}
	dead := c.session("d")
	held := c.take(dead, group)
	c.Must("close", stores[0].End(c.ctx, dead, ""))
	c.store = stores[1]
	c.unchanged("read by the other client after a close", held, tenure.Vacant)
}

// A group that was never granted is vacant in version 0. A read that fails returns an error
// and the state Unknown.
func unknownNotVacant(c *check) {
	group := c.group("g")
	c.unchanged("never granted", store.Record{Group: group}, tenure.Vacant)
	held := c.take(c.session("a"), group)
	read := func(ctx context.Context) (store.View, error) { return c.store.Read(ctx, group) }
	for i := range 50 {
		v, err := interrupted(c, i, read)
		switch {
		case err != nil && v.State != tenure.Unknown:
			c.Errorf("a read that failed (%v) shows the group as %v", err, v.State)
		case err == nil && (v.State != tenure.Led || v.Version != held.Version):
			c.Errorf("an interrupted read shows %v in version %d", v.State, v.Version)
		}
	}
}
