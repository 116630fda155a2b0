package kv_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/kv/kvtest"
	"github.com/tenurehq/tenure/store/mem"
)

// A third of all requests and replies are lost. Whoever retries opens one session per
// attempt; whoever reads after an unknown outcome learns what became of it; and each grant
// has a larger token than the one before.
func TestLostReplies(t *testing.T) {
	for name, o := range map[string]mem.Options{"native": {}, "observed": {Observed: true}, "one key": {Observed: true, Keys: 1}} {
		t.Run(name, func(t *testing.T) {
			d := newBent(t, o).Driver
			h := kvtest.NewHostile(d, 1)
			witness, s := client(t, d), client(t, h)
			h.Lost = 0.3
			retry := func(what string, f func() error) {
				t.Helper()
				var err error
				for range 200 {
					if err = f(); err == nil || store.Definite(err) {
						break
					}
				}
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			var ids []store.SessionID
			for i := range 4 {
				retry("open", func() error {
					n, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{
						Scope: store.Scope{"*"}, Instance: "an-instance-of-the-candidate", Attempt: fmt.Sprint(i),
					})
					if err == nil {
						ids = append(ids, n.ID)
					}
					return err
				})
			}
			if all, err := witness.Sessions(t.Context(), store.Scope{"*"}, store.Page{}); err != nil || len(all) != len(ids) {
				t.Fatalf("%d sessions of %d attempts, %v", len(all), len(ids), err)
			}
			var last store.Record
			step := func(what string, f func() ([]store.Record, error)) {
				t.Helper()
				got, err := f()
				v, failed := witness.Read(t.Context(), "g")
				must(t, failed)
				switch granted := v.Holder != "" && v.Holder != last.Holder || v.Token != last.Token; {
				case err == nil && (got[0].Version != v.Version || got[0].Token != v.Token || got[0].Holder != v.Holder):
					t.Fatalf("%s answered %+v, the record is %+v", what, got[0], v.Record)
				case store.Definite(err) && v.Version != last.Version:
					t.Fatalf("%s answered %v, and the record went from %+v to %+v", what, err, last, v.Record)
				case granted && v.Token <= last.Token:
					t.Fatalf("%s: token %d after %d", what, v.Token, last.Token)
				}
				last = v.Record
			}
			for i := range 200 {
				id, next := ids[i%len(ids)], ids[(i+1)%len(ids)]
				switch {
				case last.Holder == "":
					step("acquire", func() ([]store.Record, error) { return s.Acquire(t.Context(), id, last) })
				case last.Holder == next || i%3 == 0:
					step("release", func() ([]store.Record, error) { return s.Release(t.Context(), last.Holder, "", store.Resigned, last) })
				default:
					step("transfer", func() ([]store.Record, error) { return s.Release(t.Context(), last.Holder, next, "", last) })
				}
			}
			if last.Token < 20 {
				t.Errorf("only token %d after 200 calls", last.Token)
			}
			for _, id := range ids {
				retry("close", func() error { return s.End(t.Context(), id, store.Closed) })
			}
			if all, err := witness.Sessions(t.Context(), store.Scope{"*"}, store.Page{}); err != nil || len(all) != 0 {
				t.Errorf("%d sessions after all were closed, %v", len(all), err)
			}
			if m, err := witness.Meta(t.Context()); err != nil || m.Rewound {
				t.Errorf("lost replies are taken for lost data: %+v, %v", m, err)
			}
		})
	}
}

// unindexed is an engine whose answers to reads have no index.
type unindexed struct{ *mem.Driver }

func (u unindexed) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	r, err := u.Driver.Commit(ctx, t)
	if len(t.Then) == 0 {
		r.Index = 0
	}
	return r, err
}

// An engine that was restored from a backup is noticed by its incarnation's index too.
func TestRestoredWithoutIndex(t *testing.T) {
	d := newBent(t, mem.Options{}).Driver
	s := client(t, unindexed{d})
	var backup *mem.Snapshot
	d.Do(func(_ clock.Instant, e *mem.Engine) { backup = e.Snapshot() })
	session(t, s, "a")
	d.Do(func(now clock.Instant, e *mem.Engine) { e.Restore(now, backup) })
	if m, err := s.Meta(t.Context()); err != nil || !m.Rewound {
		t.Errorf("%+v, %v", m, err)
	}
}
