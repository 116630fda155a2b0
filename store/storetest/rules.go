package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/store"
)

// set replaces attributes and returns once the store has acknowledged them.
func (c *check) set(name string, values map[string]string) {
	a, err := c.store.Attributes(c.ctx, name)
	c.Must("attributes", err)
	a.Values = values
	_, err = c.store.SetAttributes(c.ctx, a)
	c.Must("set attributes", err)
}

// Under the version of rules that have changed nothing is opened, granted or handed over;
// under the present version it is. A release to nobody needs no rules.
func rulesCompared(c *check) {
	s, ok := c.store.(store.Ruled)
	if !ok {
		return // what is behind it enforces the rules
	}
	name := "node/" + c.group("a")
	version := func() uint64 {
		version, laid, err := s.Rules(c.ctx, "group/"+c.group("g"), name)
		c.Must("rules", err)
		if len(laid) != 2 || laid[0].Version != 0 || laid[1].Name != name {
			c.Fatalf("the rules are %+v", laid)
		}
		return version
	}
	old := version()
	c.set(name, map[string]string{"cordon": "x"})
	if _, laid, err := s.Rules(c.ctx, name); err != nil || laid[0].Values["cordon"] != "x" {
		c.Errorf("the rule reads as %+v, %v", laid, err)
	}
	a, b := c.session("a"), c.session("b")
	for _, id := range []store.SessionID{a, b} {
		living, err := s.Session(c.ctx, id)
		c.Must("session", err)
		if d, err := s.Describe(c.ctx, id); err != nil || d.ID != id || d.Candidate.ID != living.Candidate.ID || d.TTL != living.TTL {
			c.Errorf("the session %+v is described as %+v, %v", living, d, err)
		}
	}
	c.wants("describe a session that never was", errOf(s.Describe(c.ctx, "0123456789abcdef")), store.ErrSessionDead)
	held := c.take(a, c.group("held"))
	free := c.read(c.group("g")).Record
	open := func(version uint64) error {
		n, err := s.Under(version).Open(c.ctx, tenure.Candidate{ID: "c"}, min(lasting, s.Caps().MaxTTL), store.OpenOptions{Scope: c.scope("")})
		if err == nil {
			c.close(n.ID)
		}
		return err
	}
	acquire := func(version uint64) error {
		_, err := s.Under(version).Acquire(c.ctx, b, free)
		return err
	}
	hand := func(version uint64) error {
		_, err := s.Under(version).Release(c.ctx, a, b, "", held)
		return err
	}
	for what, call := range map[string]func(uint64) error{"open": open, "acquire": acquire, "release to a successor": hand} {
		c.wants(what+" under old rules", call(old), store.ErrRules)
	}
	c.unchanged("after an acquire under old rules", free, tenure.Vacant)
	c.unchanged("after a release under old rules", held, tenure.Led)
	for what, call := range map[string]func(uint64) error{"open": open, "acquire": acquire, "release to a successor": hand} {
		// Other checks change rules at the same time.
		c.eventually(what+" under the present rules", func() error { return call(version()) })
	}
	if now := c.read(held.Group); now.Holder != b {
		c.Errorf("the group was not handed over: %+v", now)
	}
	c.wants("release to nobody under old rules", errOf(s.Under(old).Release(c.ctx, b, "", "", c.read(held.Group).Record)), nil)
}

// Nothing is granted to a node from when its cordon is acknowledged until it is lifted,
// whatever campaigns, handovers and changes of rules go on at the same time.
func noGrantAgainstRules(c *check) {
	if _, ok := c.store.(store.Ruled); !ok {
		return
	}
	const rounds = 10
	type grant struct {
		node    int
		version uint64
	}
	var (
		group    = c.group("g")
		sessions [3]store.SessionID
		answers  [3]atomic.Int64 // of calls for the node
		work     sync.WaitGroup
		mu       sync.Mutex
		grants   []grant
	)
	name := func(i int) string { return c.group(fmt.Sprint("n", i)) }
	won := func(node int, r store.Record) {
		mu.Lock()
		defer mu.Unlock()
		grants = append(grants, grant{node, r.Version})
	}
	for i := range sessions {
		sessions[i] = c.session(name(i))
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer work.Wait()
	defer cancel()
	for i := range 2 * len(sessions) {
		node, next := i%len(sessions), (i+1)%len(sessions)
		s := guard.Guard(c.engine.Open(c.t), guard.Config{})
		work.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(time.Millisecond)
				v, err := s.Read(ctx, group)
				if err != nil || v.State == tenure.Led {
					continue
				}
				held, err := s.Acquire(ctx, sessions[node], v.Record)
				answers[node].Add(1)
				if err != nil {
					continue
				}
				won(node, held[0])
				id := sessions[node]
				if moved, err := s.Release(ctx, id, sessions[next], "", held...); err == nil {
					won(next, moved[0])
					id, held = sessions[next], moved
				}
				if _, err := s.Release(ctx, id, "", "", held...); err != nil && !errors.Is(err, store.ErrConflict) && ctx.Err() == nil {
					c.Errorf("release: %w", err)
					return
				}
			}
		})
	}
	type span struct{ from, to uint64 }
	var barred [len(sessions)][]span
	for round := range rounds * len(sessions) {
		node := round % len(sessions)
		before := answers[node].Load()
		c.eventually("waiting for a campaign of "+name(node), func() error {
			if answers[node].Load() == before {
				return errors.New("none was answered")
			}
			return nil
		})
		c.set("node/"+name(node), map[string]string{"cordon": "test"})
		from := c.read(group).Version
		before = answers[node].Load()
		c.eventually("waiting for campaigns of a cordoned node", func() error {
			if answers[node].Load() < before+3 {
				return errors.New("too few were answered")
			}
			return nil
		})
		barred[node] = append(barred[node], span{from, c.read(group).Version})
		c.set("node/"+name(node), nil)
	}
	cancel()
	work.Wait()
	if len(grants) == 0 {
		c.Errorf("nothing was granted at all")
	}
	for _, g := range grants {
		for _, b := range barred[g.node] {
			if g.version > b.from && g.version <= b.to {
				c.Errorf("%s was granted the group at version %d: it was cordoned from version %d to %d", name(g.node), g.version, b.from, b.to)
			}
		}
	}
}
