package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Of a thousand contenders for ten groups, who all saw the same versions, one
// wins each; it holds the group until it gives it up, and tokens rise with the
// versions.
func oneWinner(c *check) {
	const contenders, groups, rounds = 1000, 10, 2
	var sessions []store.SessionID
	for i := range 20 {
		sessions = append(sessions, c.session(fmt.Sprint("c", i)))
	}
	last := make([]store.Record, groups)
	for i := range last {
		last[i].Group = c.group(fmt.Sprint("g", i))
	}
	for range rounds {
		var all sync.WaitGroup
		won := make(chan store.Record, contenders)
		start := make(chan struct{})
		for i := range contenders {
			id, seen := sessions[i%len(sessions)], last[i%groups]
			all.Go(func() {
				<-start
				granted, err := c.store.Acquire(c.ctx, id, seen)
				switch {
				case err == nil:
					won <- granted[0]
				case !errors.Is(err, store.ErrConflict):
					c.Errorf("contender %d: %w", i, err)
				}
			})
		}
		close(start)
		all.Wait()
		close(won)
		winners := make(map[string]store.SessionID)
		for held := range won {
			if other, ok := winners[held.Group]; ok {
				c.Fatalf("%q was granted to %s and to %s, from one version", held.Group, other, held.Holder)
			}
			winners[held.Group] = held.Holder
			c.unchanged("after it was won", held, tenure.Led)
			i := slices.IndexFunc(last, func(r store.Record) bool { return r.Group == held.Group })
			if held.Token <= last[i].Token || held.Version <= last[i].Version {
				c.Errorf("%q went from version %d, token %d to %d, %d", held.Group, last[i].Version, last[i].Token, held.Version, held.Token)
			}
			last[i] = c.give(held.Holder, held, "")
		}
		if len(winners) != groups {
			c.Fatalf("%d of %d groups were won", len(winners), groups)
		}
	}
}

// One close vacates all that a session holds; a watch shows each, and another
// session takes them all with larger tokens.
func oneCloseVacatesAll(c *check) {
	n := 10_000
	if testing.Short() {
		n = 1_000
	}
	n = cmp.Or(c.engine.Groups, n)
	a, b := c.session("a"), c.session("b")
	var batches [][]store.Record
	var all []store.Record
	for i := range n {
		all = append(all, store.Record{Group: c.group(fmt.Sprintf("g%05d", i))})
	}
	w := c.watch(c.engine.Open(c.t), c.scope("g"))
	w.snapshot()
	for batch := range slices.Chunk(all, c.store.Caps().Batch) {
		granted, err := c.store.Acquire(c.ctx, a, batch...)
		c.Must("acquire", err)
		batches = append(batches, granted)
	}
	c.close(a)
	vacant := make(map[string]store.Record, n)
	for len(vacant) < n {
		u := w.update(fmt.Sprintf("%d of %d groups are vacant", len(vacant), n))
		v := u.View
		if u.Kind == store.GroupChanged && v.State == tenure.Vacant && v.Version > 0 {
			vacant[v.Group] = v.Record
		}
	}
	for _, batch := range batches {
		var seen []store.Record
		for _, r := range batch {
			seen = append(seen, vacant[r.Group])
		}
		granted, err := c.store.Acquire(c.ctx, b, seen...)
		c.Must("acquire by another, from what the watch showed", err)
		for i, r := range granted {
			if r.Holder != b || r.Token <= batch[i].Token {
				c.Errorf("%q went from token %d to token %d of %s", r.Group, batch[i].Token, r.Token, r.Holder)
			}
		}
	}
}
