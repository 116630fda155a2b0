package storetest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// However often names come and go, in turn or at the same time, each grant of a name has a larger
// token than those before, a removed name is in no listing, and nobody takes a removal for lost data.
func tokensOutliveNames(c *check) {
	s, ok := c.store.(store.Retirer)
	if !ok {
		return
	}
	a, other := c.session("a"), c.engine.Open(c.t)
	highest := map[string]fence.Token{}
	for round := range 3 {
		for i := range 4 {
			name := c.group(fmt.Sprintf("set--%d", i))
			held := c.take(a, name)
			if held.Token <= highest[name] {
				c.Errorf("round %d: %q was granted with token %d after %d", round, name, held.Token, highest[name])
			}
			highest[name] = held.Token
			c.Must("read", errOf(other.Read(c.ctx, name))) // this client does not see the removal
			c.Must("retire", s.Retire(c.ctx, c.give(a, held, "")))
		}
	}
	if views, err := c.store.Groups(c.ctx, c.scope("set--"), store.Page{}); err != nil || len(views) != 0 {
		c.Errorf("%d removed names are listed, %v", len(views), err)
	}

	var mu sync.Mutex
	var workers sync.WaitGroup
	for w := range 4 {
		id := c.session(fmt.Sprintf("w%d", w))
		workers.Go(func() {
			for i := range 10 {
				name := c.group(fmt.Sprintf("set--%d", i%2))
				var held []store.Record
				if v, err := c.store.Read(c.ctx, name); err != nil {
					c.Errorf("read: %w", err)
				} else if v.State == tenure.Led {
					continue
				} else if held, err = c.store.Acquire(c.ctx, id, v.Record); err != nil {
					if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrBusy) {
						c.Errorf("acquire: %w", err)
					}
					continue
				}
				mu.Lock()
				if len(held) == 1 && held[0].Token <= highest[name] {
					c.Errorf("%q was granted with token %d after %d", name, held[0].Token, highest[name])
				}
				if len(held) == 1 {
					highest[name] = held[0].Token
				}
				mu.Unlock()
				free, err := c.store.Release(c.ctx, id, "", "", held...)
				if err != nil {
					c.Errorf("release: %w", err)
					continue
				}
				if err := s.Retire(c.ctx, free[0]); err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrBusy) {
					c.Errorf("retire: %w", err)
				}
			}
		})
	}
	workers.Wait()
	if m, err := other.Meta(c.ctx); err != nil || m.Rewound {
		c.Errorf("removals are taken for lost data: %+v, %v", m, err)
	}
	for name, before := range highest {
		c.Must("read", errOf(other.Read(c.ctx, name)))
		if held := c.take(a, name); held.Token <= before {
			c.Errorf("%q was granted with token %d after %d", name, held.Token, before)
		}
	}
}

// A record is removed only if it is vacant and in the version seen, and if its name has a prefix.
// Repeating the call is harmless, also when the name is used again.
func retireCompares(c *check) {
	s, ok := c.store.(store.Retirer)
	if !ok {
		return
	}
	a := c.session("a")
	plain := c.give(a, c.take(a, c.group("plain")), "")
	for _, group := range []string{"", plain.Group, plain.Group + "--", "--x", "UPPER--x", "a_--b"} {
		c.wants("retire "+group, s.Retire(c.ctx, store.Record{Group: group, Version: plain.Version}), store.ErrInvalid)
	}
	c.unchanged("a group without a prefix", plain, tenure.Vacant)

	held := c.take(a, c.group("set--x"))
	c.wants("retire what is held", s.Retire(c.ctx, held), store.ErrConflict)
	c.unchanged("held", held, tenure.Led)
	free := c.give(a, held, "")
	c.wants("retire from an older version", s.Retire(c.ctx, held), store.ErrConflict)
	c.unchanged("released", free, tenure.Vacant)
	c.Must("retire", s.Retire(c.ctx, free))
	if v := c.read(free.Group); v.Version != 0 || v.State != tenure.Vacant {
		c.Errorf("a removed record reads as %+v", v)
	}
	c.wants("acquire from the removed version", errOf(c.store.Acquire(c.ctx, a, free)), store.ErrConflict)
	next := c.give(a, c.take(a, free.Group), "")
	if next.Token <= free.Token {
		c.Errorf("token %d follows %d", next.Token, free.Token)
	}
	c.wants("a late copy of the retire", s.Retire(c.ctx, free), store.ErrConflict)
	c.unchanged("used again", next, tenure.Vacant)
}
