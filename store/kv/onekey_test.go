package kv_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// oneKey is an engine whose steps have one key each.
var oneKey = mem.Options{Observed: true, Keys: 1}

// A group that changes hands with every read is still read: each time it is held by one of
// two sessions that live.
func TestReadWhileHandedToAndFro(t *testing.T) {
	d := newBent(t, oneKey)
	s, other := client(t, d), client(t, d.Driver)
	a, b := session(t, other, "a"), session(t, other, "b")
	held := take(t, other, a)
	d.set(func() {
		d.commits = func(txn kv.Txn, _ kv.Result) {
			if len(txn.Read) != 1 || !strings.HasPrefix(txn.Read[0], "session/") {
				return
			}
			// The record is read next.
			to := a
			if held.Holder == a {
				to = b
			}
			given, err := other.Release(t.Context(), held.Holder, to, "", held)
			if err != nil {
				t.Error(err)
				return
			}
			held = given[0]
		}
	})
	v, err := s.Read(t.Context(), "g")
	if err != nil || v.Holder != a && v.Holder != b {
		t.Errorf("%+v, %v", v, err)
	}
}

// Whoever finds a session dead finds why, also before its end is written down.
func TestReasonComesWithTheDeath(t *testing.T) {
	d := newBent(t, oneKey)
	closer, other := client(t, d), client(t, d.Driver)
	id := session(t, closer, "a")
	told := make(chan store.Reason, 1)
	synced := make(chan struct{})
	go func() {
		for u, err := range other.Watch(t.Context(), store.Scope{"*"}) {
			switch {
			case err != nil:
				return
			case u.Kind == store.Synced:
				close(synced)
			case u.Kind == store.SessionEnded:
				told <- u.Reason
				return
			}
		}
	}()
	<-synced
	var why store.Reason
	d.set(func() {
		d.commits = func(txn kv.Txn, _ kv.Result) {
			if len(txn.Then) == 1 && strings.HasPrefix(txn.Then[0].Key, "beat/") && txn.Then[0].Value == nil {
				select {
				case why = <-told:
				case <-time.After(30 * time.Second):
				}
			}
		}
	})
	must(t, closer.End(t.Context(), id, store.SteppedDown))
	if why != store.SteppedDown {
		t.Errorf("the watch says that it ended because it was %q", why)
	}
}
