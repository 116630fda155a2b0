package storetest

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// watch is a watch that the check reads only when it needs the next update, so it is the
// slowest possible reader.
type watch struct {
	c         *check
	store     store.Store
	scope     store.Scope
	next      func() (store.Update, error, bool)
	interrupt context.CancelFunc
	stop      func()
	restarts  int
}

func (c *check) watch(s store.Store, scope store.Scope) *watch {
	w := &watch{c: c, store: s, scope: scope}
	w.start()
	c.ends = append(c.ends, func() { w.interrupt(); w.stop() })
	return w
}

func (w *watch) start() {
	var ctx context.Context
	ctx, w.interrupt = context.WithCancel(w.c.ctx)
	w.next, w.stop = iter.Pull2(w.store.Watch(ctx, w.scope))
}

// update returns the next update. It restarts a watch that ends, as users must.
func (w *watch) update(what string) store.Update {
	for {
		impatient := time.AfterFunc(w.c.engine.Patience, w.interrupt)
		u, err, ok := w.next()
		switch inTime := impatient.Stop(); {
		case ok && err == nil:
			if u.Kind == store.GroupChanged && !w.scope.Covers(u.View.Group) {
				w.c.Errorf("a watch of %v shows %q", w.scope, u.View.Group)
			}
			return u
		case !inTime:
			w.c.Fatalf("%s: the watch was silent for %v", what, w.c.engine.Patience)
		case w.restarts == 10:
			w.c.Fatalf("%s: the watch ended again and again, now with: %v", what, err)
		}
		w.restarts++
		w.interrupt()
		w.stop()
		w.start()
	}
}

// snapshot returns the views before Synced.
func (w *watch) snapshot() map[string]store.View {
	views := make(map[string]store.View)
	for {
		u := w.update("waiting for the end of the snapshot")
		switch u.Kind {
		case store.Synced:
			return views
		case store.GroupChanged:
			views[u.View.Group] = u.View
		}
	}
}

// until returns the first view of the group that is as wanted. Views without a
// group are those of watches that began again.
func (w *watch) until(group, what string, wanted func(store.View) bool) store.View {
	for {
		u := w.update(fmt.Sprintf("waiting until %q is %s", group, what))
		if u.Kind == store.GroupChanged && u.View.Group == group && wanted(u.View) {
			return u.View
		}
	}
}

func isVacant(v store.View) bool { return v.State == tenure.Vacant }

// The snapshot holds every group in scope that has a record and no other, ends
// with one view without a group, and is followed by what changes.
func watchSnapshot(c *check) {
	a, b := c.session("a"), c.session("b")
	led := c.take(a, c.group("in-led"))
	freed := c.give(a, c.take(a, c.group("in-free")), "")
	dead := c.take(b, c.group("in-dead"))
	c.close(b)
	out := c.take(a, c.group("out"))
	c.read(c.group("in-never")) // a read makes no record

	w := c.watch(c.engine.Open(c.t), c.scope("in-"))
	views := w.snapshot()
	for group, want := range map[string]struct {
		version uint64
		state   tenure.State
	}{
		led.Group:   {led.Version, tenure.Led},
		freed.Group: {freed.Version, tenure.Vacant},
		dead.Group:  {dead.Version, tenure.Vacant},
	} {
		v, ok := views[group]
		if !ok || v.Version != want.version || v.State != want.state {
			c.Errorf("in the snapshot %q is at version %d, %v (there: %v); want version %d, %v", group, v.Version, v.State, ok, want.version, want.state)
		}
		delete(views, group)
	}
	for group := range views {
		c.Errorf("the snapshot has %q, which is out of scope or has no record", group)
	}

	c.give(a, out, "") // not to be seen
	next := c.take(a, c.group("in-new"))
	w.until(next.Group, "led after the snapshot", func(v store.View) bool {
		return v.Version == next.Version && v.State == tenure.Led && v.Holder == a
	})
	given := c.give(a, led, "")
	v := w.until(given.Group, "vacant after the snapshot", isVacant)
	if v.Version != given.Version || v.Token != given.Token {
		c.Errorf("watched version %d, token %d of %q; released was version %d, token %d", v.Version, v.Token, v.Group, given.Version, given.Token)
	}
}

// Between two views a reader may miss states but no term: as long as no more
// terms pass than a record carries, the record tells them all, each with its
// session; the history tells the others.
func watchMissesNoTerm(c *check) {
	group := c.group("g")
	sessions := []store.SessionID{c.session("a"), c.session("b"), c.session("d")}
	owner := make(map[fence.Token]store.SessionID)
	var last store.Record
	terms := func(n int) {
		for i := range n {
			id := sessions[i%len(sessions)]
			held := c.take(id, group)
			owner[held.Token] = id
			last = c.give(id, held, "")
		}
	}
	told := make(map[fence.Token]store.SessionID)
	note := func(terms []store.Term) {
		for _, term := range terms {
			told[term.Token] = term.Session
		}
	}
	compare := func(by string) {
		for token, id := range owner {
			if told[token] != id {
				c.Errorf("the term with token %d of session %s was missed by %s: it told of %q", token, id, by, told[token])
			}
		}
	}

	w := c.watch(c.store, store.Scope{group})
	w.snapshot()
	for range 4 {
		terms(store.TermsKept - 1)
		w.until(group, "at its newest version", func(v store.View) bool {
			note(v.Terms)
			return v.Version == last.Version
		})
	}
	compare("the records watched")

	terms(3 * store.TermsKept)
	w.until(group, "at its newest version", func(v store.View) bool { return v.Version == last.Version })
	history, err := c.store.History(c.ctx, group, store.Page{})
	c.Must("history", err)
	clear(told)
	note(history)
	compare("the history")
}

// A release, a close and an expiry each show as a vacancy, without anybody
// asking for it.
func watchVacancy(c *check) {
	released, closed, expired := c.group("released"), c.group("closed"), c.group("expired")
	a, b := c.session("a"), c.session("b")
	// A separate watch for each, so that no vacancy hides behind another.
	watches := make(map[string]*watch)
	for _, g := range []string{released, closed, expired} {
		watches[g] = c.watch(c.engine.Open(c.t), store.Scope{g})
		watches[g].snapshot()
	}
	led := func(id store.SessionID, g string) store.Record {
		r := c.take(id, g)
		watches[g].until(g, "led", func(v store.View) bool { return v.State == tenure.Led && v.Version == r.Version })
		return r
	}
	held := led(a, released)
	c.give(a, held, "")
	watches[released].until(released, "vacant after a release", isVacant)

	held = led(b, closed)
	c.close(b)
	v := watches[closed].until(closed, "vacant after a close", isVacant)
	if v.Version != held.Version || v.Token != held.Token {
		c.Errorf("after a close the record is at version %d, token %d; granted was version %d, token %d", v.Version, v.Token, held.Version, held.Token)
	}

	_, held = c.expiring("e", expired)
	watches[expired].until(expired, "vacant after an expiry", func(v store.View) bool {
		return isVacant(v) && v.Version == held.Version
	})
}

// A group that goes from hand to hand is never shown as vacant, though each
// giver's session ends right after.
func watchTransfer(c *check) {
	const hands = 20
	group := c.group("g")
	holder := c.session("h0")
	held := c.take(holder, group)
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	ready, done := make(chan struct{}), make(chan struct{})
	last := make(chan uint64, 1)
	other := c.engine.Open(c.t)
	readers.Go(func() {
		defer close(done)
		var newest, want uint64
		for u, err := range other.Watch(ctx, store.Scope{group}) {
			v := u.View
			switch {
			case err != nil:
				if ctx.Err() == nil {
					c.Errorf("watch: %w", err)
				}
				return
			case u.Kind == store.Synced:
				close(ready)
				continue
			case u.Kind != store.GroupChanged:
				continue
			case v.State != tenure.Led:
				c.Errorf("the watch showed %q as %v at version %d, held by %q", group, v.State, v.Version, v.Holder)
			}
			newest = max(newest, v.Version)
			select {
			case want = <-last:
			default:
			}
			if want != 0 && newest >= want {
				return
			}
		}
	})
	select {
	case <-ready:
	case <-done:
		c.Fatalf("the watch ended before its snapshot")
	case <-time.After(c.engine.Patience):
		c.Fatalf("no snapshot in %v", c.engine.Patience)
	}
	for i := range hands {
		next := c.session(fmt.Sprintf("h%d", i+1))
		if i == hands-1 {
			last <- held.Version + 1
		}
		held = c.give(holder, held, next)
		c.close(holder)
		holder = next
	}
	select {
	case <-done:
	case <-time.After(c.engine.Patience):
		c.Errorf("the last transfer was not shown in %v", c.engine.Patience)
	}
}
