package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// Of a thousand contenders for ten groups one wins each version; the winner
// holds the group until it gives it up, and tokens rise with the versions.
func oneWinner(c *check) {
	const contenders, groups, tries = 1000, 10, 2
	var sessions []lease.SessionID
	for i := range 20 {
		sessions = append(sessions, c.session(fmt.Sprint("c", i)))
	}
	type win struct {
		version uint64
		token   fence.Token
	}
	var mu sync.Mutex
	wins := make(map[string][]win)
	contend := func(id lease.SessionID, group string) error {
		v, err := c.store.Read(c.ctx, group)
		if err != nil {
			return err
		}
		granted, err := c.store.Acquire(c.ctx, id, v.Record)
		if errors.Is(err, lease.ErrConflict) {
			return nil
		}
		if err != nil {
			return err
		}
		held := granted[0]
		mu.Lock()
		wins[group] = append(wins[group], win{held.Version, held.Token})
		mu.Unlock()
		if v, err = c.store.Read(c.ctx, group); err != nil {
			return err
		}
		if v.Version != held.Version || v.Holder != id || v.State != tenure.Led {
			return fmt.Errorf("version %d of %q was granted to %s; a read shows version %d, held by %s", held.Version, group, id, v.Version, v.Holder)
		}
		_, err = c.store.Release(c.ctx, id, held, "", "")
		return err
	}
	var all sync.WaitGroup
	for i := range contenders {
		all.Go(func() {
			for try := range tries {
				if err := contend(sessions[i%len(sessions)], c.group(fmt.Sprint("g", (i+try)%groups))); err != nil {
					c.errorf("contender %d: %w", i, err)
				}
			}
		})
	}
	all.Wait()
	for i := range groups {
		group := c.group(fmt.Sprint("g", i))
		won := wins[group]
		slices.SortFunc(won, func(a, b win) int { return cmp.Compare(a.version, b.version) })
		for j := 1; j < len(won); j++ {
			if won[j].version == won[j-1].version || won[j].token <= won[j-1].token {
				c.errorf("%q: version %d was granted with token %d, and version %d with token %d", group, won[j-1].version, won[j-1].token, won[j].version, won[j].token)
			}
		}
		if v := c.read(group); len(won) == 0 || v.Version != 2*uint64(len(won)) || v.State != tenure.Vacant {
			c.errorf("%q was won and given up %d times and is %v at version %d", group, len(won), v.State, v.Version)
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
	a, b := c.session("a"), c.session("b")
	var batches [][]lease.Record
	var all []lease.Record
	for i := range n {
		all = append(all, lease.Record{Group: c.group(fmt.Sprintf("g%05d", i))})
	}
	w := c.watch(c.engine.Open(c.t), c.scope("g"))
	w.snapshot()
	for batch := range slices.Chunk(all, c.store.Limits().Batch) {
		granted, err := c.store.Acquire(c.ctx, a, batch...)
		c.must("acquire", err)
		batches = append(batches, granted)
	}
	c.close(a)
	vacant := make(map[string]lease.Record, n)
	for len(vacant) < n {
		v := w.view(fmt.Sprintf("%d of %d groups are vacant", len(vacant), n))
		if v.Group == "" {
			continue
		}
		if v.State == tenure.Vacant && v.Version > 0 {
			vacant[v.Group] = v.Record
		}
	}
	for _, batch := range batches {
		var seen []lease.Record
		for _, r := range batch {
			seen = append(seen, vacant[r.Group])
		}
		granted, err := c.store.Acquire(c.ctx, b, seen...)
		c.must("acquire by another, from what the watch showed", err)
		for i, r := range granted {
			if r.Holder != b || r.Token <= batch[i].Token {
				c.errorf("%q went from token %d to token %d of %s", r.Group, batch[i].Token, r.Token, r.Holder)
			}
		}
	}
}
