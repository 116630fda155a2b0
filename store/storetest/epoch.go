package storetest

import (
	"fmt"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

func (c *check) meta() store.Meta {
	m, err := c.store.Meta(c.ctx)
	c.Must("meta", err)
	return m
}

// An epoch rises and never falls; every grant after it has a token above all of
// the older epochs, for old groups and new ones, and nobody loses what it holds.
func epochRaised(c *check) {
	a, b := c.session("a"), c.session("b")
	old, kept := c.take(a, c.group("old")), c.take(a, c.group("kept"))
	before := c.meta()
	after, err := c.store.RaiseEpoch(c.ctx, before.Epoch+1)
	c.Must("raise", err)
	if after.Epoch != before.Epoch+1 || after.Rewound || after.Deployment != before.Deployment || after.Index < before.Index {
		c.Errorf("the raise took %+v to %+v", before, after)
	}
	if m := c.meta(); m.Epoch != after.Epoch || m.Deployment != before.Deployment {
		c.Errorf("the raise answered %+v, then meta answered %+v", after, m)
	}
	for _, to := range []uint64{0, before.Epoch, after.Epoch, fence.MaxEpoch + 1} {
		c.wants(fmt.Sprintf("raise from %d to %d", after.Epoch, to), errOf(c.store.RaiseEpoch(c.ctx, to)), store.ErrInvalid)
	}
	c.unchanged("held through the raise", kept, tenure.Led)
	floor := fence.NewToken(after.Epoch, 0)
	for what, r := range map[string]store.Record{
		"transfer":           c.give(a, old, b),
		"first grant":        c.take(a, c.group("new")),
		"grant after a term": c.take(a, c.give(a, kept, "").Group),
	} {
		if r.Token <= floor || r.Token.Epoch() != after.Epoch {
			c.Errorf("%s: token %d is not above %d, the first of epoch %d", what, r.Token, floor, after.Epoch)
		}
	}
}

// After a restart the records are what they were, sessions live or are dead for
// good, and tokens go on.
func tokensSurviveRestart(c *check) {
	a, b := c.session("a"), c.session("b")
	held := c.take(a, c.group("held"))
	free := c.give(a, c.take(a, c.group("free")), "")
	void := c.take(b, c.group("void"))
	c.close(b)
	before := c.meta()
	c.engine.Restart(c.t)
	c.eventually("waiting for the engine after its restart", func() error {
		_, err := c.store.Read(c.ctx, held.Group)
		return err
	})
	c.unchanged("released before the restart", free, tenure.Vacant)
	c.unchanged("closed before the restart", void, tenure.Vacant)
	c.unchanged("held before the restart", held, tenure.Led)
	c.wants("keep-alive of the closed session", errOf(c.store.KeepAlive(c.ctx, b)), store.ErrSessionDead)
	c.wants("keep-alive of the living session", errOf(c.store.KeepAlive(c.ctx, a)), nil)
	if m := c.meta(); m.Epoch != before.Epoch || m.Deployment != before.Deployment || m.Rewound {
		c.Errorf("the restart took %+v to %+v", before, m)
	}
	next := c.session("next")
	for _, r := range []store.Record{free, void} {
		if got := c.take(next, r.Group); got.Token <= r.Token {
			c.Errorf("after the restart token %d follows %d", got.Token, r.Token)
		}
	}
	if n := c.session("c"); n == a || n == b {
		c.Errorf("session id %q was used again after the restart", n)
	}
}

// An engine that was put back to an older state says so and grants nothing, by
// acquire or by transfer, until the epoch is raised; then no token that was ever
// granted is granted again, and no session id either.
func rewindRefused(c *check) {
	a := c.session("a")
	old := c.group("old")
	first := c.take(a, old)
	before := c.meta()
	restore := c.engine.Rewind(c.t)

	highest := make(map[string]fence.Token)
	ids := make(map[store.SessionID]bool)
	b := c.session("b")
	ids[b] = true
	c.give(a, first, "") // not closed: the store could finish a close after the restore
	for _, g := range []string{old, c.group("new")} {
		for range 3 {
			held := c.take(b, g)
			highest[g] = held.Token
			c.give(b, held, "")
		}
	}
	restore()
	// A client that saw newer data notices; then all clients know.
	for _, who := range []string{"a client from before", "a new client"} {
		var m store.Meta
		c.eventually("waiting for the engine after the restore", func() (err error) {
			m, err = c.store.Meta(c.ctx)
			return err
		})
		if !m.Rewound {
			c.Errorf("after the restore Meta returns to %s %+v, want Rewound", who, m)
		}
		c.store = c.engine.Open(c.t)
	}
	c.wants("opening a session before the epoch is raised", errOf(c.store.Open(c.ctx, tenure.Candidate{ID: "d"}, c.engine.TTL, store.OpenOptions{Scope: c.scope("")})), store.ErrRewound)
	if v := c.shown(old); v.State == tenure.Led {
		c.wants("keep-alive before the epoch is raised", errOf(c.store.KeepAlive(c.ctx, v.Holder)), store.ErrRewound)
		c.wants("acquire before the epoch is raised", errOf(c.store.Acquire(c.ctx, v.Holder, c.read(c.group("new")).Record)), store.ErrRewound)
		c.wants("transfer before the epoch is raised", errOf(release(c.ctx, c.store, v.Holder, v.Record, b, "")), store.ErrRewound)
		c.wants("plain release before the epoch is raised", errOf(release(c.ctx, c.store, v.Holder, c.shown(old).Record, "", "")), nil)
	}

	m := c.meta()
	m, err := c.store.RaiseEpoch(c.ctx, max(before.Epoch, m.Epoch)+1)
	c.Must("raise", err)
	if m.Rewound {
		c.Errorf("after the raise meta still says rewound: %+v", m)
	}
	d := c.session("d")
	if ids[d] {
		c.Errorf("session id %q was used again after the restore", d)
	}
	for g, token := range highest {
		if got := c.take(d, g); got.Token <= token {
			c.Errorf("after the raise token %d of %q follows %d", got.Token, g, token)
		}
	}
}

// A holder whose sink has seen a token that the engine has not granted reports it.
// From then on nothing is granted to anybody; a report that comes after the epoch was
// raised, or after a later grant, changes nothing.
func suspectStops(c *check) {
	a, b := c.session("a"), c.session("b")
	held := c.take(a, c.group("g"))
	for what, err := range map[string]error{
		"a report without a group": c.store.Suspect(c.ctx, "", held.Token),
		"a report without a token": c.store.Suspect(c.ctx, held.Group, 0),
	} {
		c.wants(what, err, store.ErrInvalid)
	}
	next := c.give(a, held, b)
	c.Must("a report that a later grant has overtaken", c.store.Suspect(c.ctx, held.Group, held.Token))
	if m := c.meta(); m.Rewound {
		c.Errorf("a report that a later grant has overtaken: meta answers %+v", m)
	}

	seen := next.Token + 7
	c.Must("report", c.store.Suspect(c.ctx, next.Group, seen))
	c.Must("report again", c.store.Suspect(c.ctx, next.Group, seen))
	other := c.engine.Open(c.t)
	for who, st := range map[string]store.Store{"this client": c.store, "another client": other} {
		if m, err := st.Meta(c.ctx); err != nil || !m.Rewound {
			c.Errorf("%s: after the report meta answers %+v, %v", who, m, err)
		}
		c.wants(who+": opening a session after the report", errOf(st.Open(c.ctx, tenure.Candidate{ID: "d"}, c.engine.TTL, store.OpenOptions{Scope: c.scope("")})), store.ErrRewound)
		c.wants(who+": keep-alive after the report", errOf(st.KeepAlive(c.ctx, b)), store.ErrRewound)
		c.wants(who+": acquire after the report", errOf(st.Acquire(c.ctx, a, c.read(c.group("new")).Record)), store.ErrRewound)
	}
	c.wants("transfer after the report", errOf(c.store.Release(c.ctx, b, a, "", next)), store.ErrRewound)
	c.wants("plain release after the report", errOf(c.store.Release(c.ctx, b, "", "", next)), nil)

	m, err := c.store.RaiseEpoch(c.ctx, c.meta().Epoch+1)
	c.Must("raise", err)
	if m.Rewound {
		c.Errorf("after the raise meta still says rewound: %+v", m)
	}
	c.Must("a late report", c.store.Suspect(c.ctx, next.Group, seen))
	if m := c.meta(); m.Rewound {
		c.Errorf("a report from before the raise stops the engine again: %+v", m)
	}
	if got := c.take(c.session("e"), next.Group); got.Token <= seen {
		c.Errorf("after the raise token %d follows %d", got.Token, seen)
	}
}
