package shard_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/shard"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// The placements of a coordinator are fenced, page by page: those of an older token are refused and
// change nothing. A newer one replaces them, an operator's pin is stronger, and a placed candidate
// that does not live leaves no shard without an owner.
func TestPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		st := mem.New(mem.Options{Clock: bubble{}})
		defer st.Close()
		o := newOwners(t)
		cfg := shard.Config{Set: "orders", Count: 70, Settle: time.Second} // three attributes
		all := []*process{begin(t, st, o, "a", cfg), begin(t, st, o, "b", cfg)}
		time.Sleep(time.Minute)
		stamp := func(token fence.Token) fence.Stamp {
			return fence.Stamp{Deployment: "d", Group: "orders-coordinator", Token: token, Session: fmt.Sprint("session-", token)}
		}
		everywhere := func(id string) map[int]string {
			placed := map[int]string{}
			for i := range cfg.Count {
				placed[i] = id
			}
			return placed
		}
		place := func(token fence.Token, placed map[int]string) error {
			return shard.Place(ctx, st, "orders", stamp(token), placed)
		}
		if err := place(1, everywhere("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := o.counts(); n["a"] != 70 {
			t.Errorf("all are placed on a: %v", n)
		}
		look := func() shard.Overview {
			t.Helper()
			l, err := shard.Look(ctx, st, "orders")
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		if l := look(); l.Count != 70 || len(l.Vacant) != 0 || l.Moving != 0 || l.Imbalance != 1 || len(l.Owners) != 1 || l.Owners[0].Pinned != 70 {
			t.Errorf("all are placed on a: %+v", l)
		}
		if err := place(2, map[int]string{69: "b", 3: "absent"}); err != nil {
			t.Fatal(err)
		}
		if l := look(); l.Moving == 0 || l.Owners[0].Moving != l.Moving {
			t.Errorf("the placement of 68 shards has ended: %+v", l)
		}
		before, err := shard.ReadRules(ctx, st, "orders")
		if err != nil {
			t.Fatal(err)
		}
		var stale *fence.StaleError
		if err := place(1, everywhere("a")); !errors.As(err, &stale) {
			t.Errorf("a placement of token 1 after token 2: %v", err)
		}
		if after, err := shard.ReadRules(ctx, st, "orders"); err != nil || !maps.Equal(before.Pins, after.Pins) {
			t.Errorf("it has changed the placements: %v, %v, %v", before.Pins, after.Pins, err)
		}
		if err := shard.Pin(ctx, st, "orders", 69, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		o.mu.Lock()
		if o.of[69] != "a" || o.of[3] == "" {
			t.Errorf("shard 69 is pinned to a and owned by %q, shard 3 by %q", o.of[69], o.of[3])
		}
		o.mu.Unlock()
		for _, placed := range []map[int]string{{70: "a"}, {-1: "a"}, {0: "A!"}, {0: ""}} {
			var bad *store.ArgumentError
			if err := place(3, placed); !errors.As(err, &bad) {
				t.Errorf("%v: %v", placed, err)
			}
		}
		for _, p := range all {
			p.end(t)
		}
	})
}
