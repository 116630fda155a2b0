package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/tenuretest"
)

// begun is a term whose work has begun.
type begun struct {
	*tenure.Term
	by string
}

// leads runs Lead for the node, with work that only waits, and says when it begins.
func leads(ctx context.Context, k *tenuretest.Kit, n *tenuretest.Node, group string, begins chan<- begun) {
	go func() {
		_ = tenure.Lead(ctx, n.Elector(group), func(ctx context.Context, term *tenure.Term) error {
			begins <- begun{term, n.ID()}
			<-ctx.Done()
			return ctx.Err()
		}, tenure.WithLog(k.Log()))
	}()
}

// Transfers back and forth every second, for five minutes, take no time; and when the
// leader then dies, the other leads within a TTL and a second.
func TestHandovers(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		nodes := map[string]*tenuretest.Node{"a": k.Node("a"), "b": k.Node("b")}
		begins := make(chan begun, 1)
		for _, n := range nodes {
			leads(t.Context(), k, n, "g", begins)
		}
		now := <-begins
		other := map[string]string{"a": "b", "b": "a"}
		for range 300 {
			k.Advance(time.Second)
			start := time.Now()
			if err := now.TransferTo(t.Context(), other[now.by]); err != nil {
				t.Fatal(err)
			}
			next := <-begins
			if next.by != other[now.by] || time.Since(start) > 100*time.Millisecond {
				t.Fatalf("from %s to %s in %v", now.by, next.by, time.Since(start))
			}
			now = next
		}
		start := time.Now()
		nodes[now.by].Crash()
		next := <-begins
		if took := time.Since(start); next.by != other[now.by] || took > lease.Default().TTL+time.Second {
			t.Errorf("%s leads %v after %s died", next.by, took, now.by)
		}
	})
}

// A step-down that an operator asks for leaves the group without a leader for no time
// if there is another candidate, and only for the cool-down if there is none.
func TestStepDowns(t *testing.T) {
	const coolDown = 3 * time.Second
	for _, alone := range []bool{false, true} {
		tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
			begins := make(chan begun, 1)
			leads(t.Context(), k, k.Node("a"), "g", begins)
			now := <-begins
			if !alone {
				leads(t.Context(), k, k.Node("b"), "g", begins)
				k.Advance(time.Second)
			}
			for i := range 10 {
				v, err := k.Store().Read(t.Context(), "g")
				if err != nil {
					t.Fatal(err)
				}
				r := store.Request{ID: string(rune('a' + i)), Verb: store.StepDown, Group: "g", CoolDown: coolDown, TTL: time.Minute}
				if err := k.Store().Ask(t.Context(), v.Holder, r); err != nil {
					t.Fatal(err)
				}
				<-now.Context().Done()
				start := time.Now()
				next := <-begins
				took := time.Since(start)
				if !alone && (next.by == now.by || took > 100*time.Millisecond) || alone && (took < coolDown || took > coolDown+100*time.Millisecond) {
					t.Errorf("step-down %d of %s: %s leads after %v", i, now.by, next.by, took)
				}
				now = next
				k.Advance(coolDown)
			}
		})
	}
}

// A candidate that backs off after a failure is no successor: a transfer to it is
// refused, and the term goes on.
func TestBackingOffIsNoSuccessor(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		begins := make(chan begun, 1)
		fails := make(chan struct{}, 1)
		leads(t.Context(), k, k.Node("a"), "g", begins)
		now := <-begins
		go func() {
			_ = tenure.Lead(t.Context(), k.Node("b").Elector("g"), func(context.Context, *tenure.Term) error {
				fails <- struct{}{}
				return errors.New("no such table")
			}, tenure.WithBackoff(time.Hour, time.Hour), tenure.WithLog(k.Log()))
		}()
		k.Advance(time.Second)
		if err := now.TransferTo(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		<-fails
		now = <-begins // a again, because b gave up
		k.Advance(200 * time.Millisecond)
		if err := now.TransferTo(t.Context(), "b"); !errors.Is(err, tenure.ErrSuccessor) || now.Check() != nil {
			t.Errorf("a transfer to a candidate that backs off: %v; the term: %v", err, now.Check())
		}
		v, err := k.Store().Read(t.Context(), "g")
		if err != nil {
			t.Fatal(err)
		}
		// An operator's request is refused as well, before the term ends for it.
		r := store.Request{ID: "r", Verb: store.Transfer, To: "b", Group: "g", TTL: time.Minute}
		if err := k.Store().Ask(t.Context(), v.Holder, r); err != nil {
			t.Fatal(err)
		}
		k.Advance(5 * time.Second)
		if a, err := k.Store().Answered(t.Context(), v.Holder, "r"); err != nil || a.Outcome != store.Refused || now.Check() != nil {
			t.Errorf("answered %+v, %v; the term: %v", a, err, now.Check())
		}
	})
}

// A node that leads one group and backs off in another keeps its session, so a transfer
// of the other group to it is made. It gives the group back at once.
func TestBackingOffInOneGroup(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a, b := k.Node("a"), k.Node("b")
		begins, elsewhere := make(chan begun, 1), make(chan begun, 1)
		leads(t.Context(), k, b, "other", elsewhere)
		<-elsewhere
		leads(t.Context(), k, a, "g", begins)
		now := <-begins
		start := time.Now()
		if err := now.TransferTo(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		next := <-begins
		if took := time.Since(start); next.by != "a" || took > 100*time.Millisecond {
			t.Errorf("%s leads after %v", next.by, took)
		}
	})
}
