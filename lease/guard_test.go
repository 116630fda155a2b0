package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

// lay writes a rule for a name.
func (w *world) lay(name string, values map[string]string) {
	w.Helper()
	a, err := w.mem.Attributes(w.Context(), name)
	if err == nil {
		a.Values = values
		_, err = w.mem.SetAttributes(w.Context(), a)
	}
	if err != nil {
		w.Fatal(err)
	}
}

// waits requires that a campaign has not returned after a while.
func (w *world) waits(c <-chan result) {
	w.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	select {
	case r := <-c:
		w.Fatalf("the campaign returned %v, %v", r.term, r.err)
	default:
	}
}

// A node that is cordoned, not a member or cooling down waits, and leads once nothing keeps
// it from leading. Whether it was cordoned before its first campaign or with a session open
// makes no difference.
func TestGuardedNodeWaits(t *testing.T) {
	for name, rule := range map[string]struct {
		name   string
		values map[string]string
	}{
		"cordoned":     {"node/a", map[string]string{"cordon": "disk"}},
		"not a member": {"group/g", map[string]string{"members": "b,c"}},
		"deleted":      {"group/g", map[string]string{"deleted": "yes"}},
	} {
		for _, open := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(w *world) {
					n := w.node(w.mem, "a")
					if open {
						w.resign(w.win(n, "g"))
					}
					w.lay(rule.name, rule.values)
					c := w.campaign(w.Context(), n, "g")
					w.waits(c)
					w.vacant("g")
					if sessions := w.sessions(); name == "cordoned" && !open && len(sessions) > 0 {
						t.Errorf("a cordoned node has sessions %+v", sessions)
					}
					w.lay(rule.name, nil)
					obedient(w.won(c).term)
				})
			})
		}
	}
}

// What a node leads when it is cordoned it leads on.
func TestGuardedTermGoesOn(t *testing.T) {
	bubble(t, func(w *world) {
		term := w.win(w.node(w.mem, "a"), "g")
		w.lay("node/a", map[string]string{"cordon": "disk"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := context.Cause(term.Context()); err != nil {
			t.Errorf("the term ended: %v", err)
		}
		w.resign(term)
	})
}

// A group that a node may not lead keeps it from no other of the same batch: these are
// acquired at once, in one call.
func TestGuardedBatch(t *testing.T) {
	bubble(t, func(w *world) {
		w.lay("group/b", map[string]string{"members": "another"})
		hung := newHungStore(w, guard.Guard(w.mem, guard.Config{}))
		store := newCountingStore(hung)
		n := w.node(store, "a")
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		hung.hang(open)
		campaigns := map[string]<-chan result{}
		for _, group := range []string{"a", "b", "c", "d"} {
			campaigns[group] = w.campaign(ctx, n, group)
		}
		synctest.Wait()
		hung.letGo()
		for _, group := range []string{"a", "c", "d"} {
			obedient(w.won(campaigns[group]).term)
		}
		if calls := store.counted(acquire); calls != 2 {
			t.Errorf("%d acquires, want one of four groups and one of three", calls)
		}
		w.waits(campaigns["b"])
	})
}

// A TTL out of the bounds of the group ends the campaign: waiting would not help.
func TestGuardedTTL(t *testing.T) {
	bubble(t, func(w *world) {
		w.lay("group/g", map[string]string{"max_ttl_ms": "1000"})
		var bar *store.BarError
		r := w.get(w.campaign(w.Context(), w.node(w.mem, "a"), "g"))
		if !errors.As(r.err, &bar) || bar.Code != "ttl_out_of_bounds" || bar.MaxTTL != time.Second || !store.Permanent(r.err) {
			t.Errorf("%v", r.err)
		}
	})
}

// A group is not handed to a node that may not lead it; it is released to nobody instead.
func TestGuardedTransfer(t *testing.T) {
	bubble(t, func(w *world) {
		term := w.win(w.node(w.mem, "a"), "g")
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		b := w.campaign(ctx, w.node(w.mem, "b"), "g")
		w.lay("node/b", map[string]string{"cordon": "disk"})
		if err := term.TransferTo(w.soon(), "b"); !errors.Is(err, tenure.ErrSuccessor) {
			t.Errorf("%v", err)
		}
		w.waits(b)
		w.vacant("g")
	})
}

// A node that opts out ignores the rules.
func TestGuardedNot(t *testing.T) {
	bubble(t, func(w *world) {
		w.lay("node/a", map[string]string{"cordon": "disk"})
		n := w.node(w.mem, "a", func(c *lease.Config) { c.Unguarded = true })
		obedient(w.win(n, "g"))
	})
}
