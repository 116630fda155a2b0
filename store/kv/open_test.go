package kv_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// deaf loses the reply to the next commit that writes a key with the prefix.
type deaf struct {
	*mem.Driver
	prefix string
}

var errLost = errors.New("the reply was lost")

func (d *deaf) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	r, err := d.Driver.Commit(ctx, t)
	if d.prefix != "" && slices.ContainsFunc(t.Then, func(w kv.Write) bool { return strings.HasPrefix(w.Key, d.prefix) }) {
		d.prefix = ""
		return kv.Result{}, errLost
	}
	return r, err
}

// A session whose Open got no reply is found by the retry, with its whole TTL. If it was
// closed meanwhile, the retry opens another one: an id is never used twice.
func TestOpenAfterClose(t *testing.T) {
	for name, o := range map[string]mem.Options{"native": {}, "observed": {Observed: true}, "one key": {Observed: true, Keys: 1}} {
		t.Run(name, func(t *testing.T) {
			d := &deaf{Driver: newBent(t, o).Driver}
			s, other := client(t, d), client(t, d.Driver)
			open := func(attempt string) (store.Session, error) {
				return s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{
					Scope: store.Scope{"*"}, Instance: "an-instance-of-the-candidate", Attempt: attempt,
				})
			}
			lost := func(attempt string) store.SessionID {
				t.Helper()
				d.prefix = "beat/"
				if n, err := open(attempt); !errors.Is(err, errLost) {
					t.Fatalf("%+v, %v", n, err)
				}
				all, err := other.Sessions(t.Context(), store.Scope{"*"}, store.Page{})
				if err != nil || len(all) != 1 {
					t.Fatalf("%+v, %v", all, err)
				}
				return all[0].ID
			}
			found := lost("found")
			again, err := open("found")
			if err != nil || again.ID != found || again.TTL != time.Hour {
				t.Errorf("%+v, %v, want %s", again, err, found)
			}
			must(t, s.End(t.Context(), found, store.Closed))
			closed := lost("closed")
			must(t, other.End(t.Context(), closed, store.Closed))
			again, err = open("closed")
			must(t, err)
			if again.ID == closed {
				t.Errorf("session %s ended and was opened again", closed)
			}
			if _, err := other.Session(t.Context(), closed); !errors.Is(err, store.ErrSessionDead) {
				t.Errorf("the closed session: %v", err)
			}
		})
	}
}

// meddler does something once, after the engine has refused to open a session and before the
// client learns of it. It notes the leases that are revoked.
type meddler struct {
	*mem.Driver
	before, after func()
	mu            sync.Mutex
	revoked       []string
}

func (d *meddler) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	before, after := d.before, d.after
	if before == nil || !slices.ContainsFunc(t.Then, func(w kv.Write) bool { return strings.HasPrefix(w.Key, "beat/") && w.Value != nil }) {
		return d.Driver.Commit(ctx, t)
	}
	d.before = nil
	before()
	r, err := d.Driver.Commit(ctx, t)
	after()
	return r, err
}

func (d *meddler) Revoke(ctx context.Context, id string) error {
	d.mu.Lock()
	d.revoked = append(d.revoked, id)
	d.mu.Unlock()
	return d.Driver.Revoke(ctx, id)
}

// Two calls open the session of one attempt. The one that fails does not revoke the lease
// that the other one has opened the session with.
func TestOpenTwiceAtOnce(t *testing.T) {
	d := &meddler{Driver: newBent(t, mem.Options{}).Driver}
	s, other := client(t, d), client(t, d.Driver)
	open := func(s *kv.Store) store.Session {
		n, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{
			Scope: store.Scope{"*"}, Instance: "an-instance-of-the-candidate", Attempt: "1",
		})
		must(t, err)
		return n
	}
	var in, second store.Session
	d.before = func() { in = open(other) } // it is in the way
	d.after = func() {
		must(t, other.End(t.Context(), in.ID, store.Closed))
		second = open(s)
	}
	first := open(s)
	s.Close() // waits for what it began
	if first.ID != second.ID || slices.Contains(d.revoked, string(second.ID)) {
		t.Errorf("the first call has session %s, the second %s, revoked %q", first.ID, second.ID, d.revoked)
	}
}

// History leaves the records that it read as they are.
func TestHistoryChangesNothing(t *testing.T) {
	s := client(t, newBent(t, mem.Options{}).Driver)
	for range 3 {
		n, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{Scope: store.Scope{"*"}})
		if err != nil {
			t.Fatal(err)
		}
		v, err := s.Read(t.Context(), "g")
		if err != nil {
			t.Fatal(err)
		}
		won, err := s.Acquire(t.Context(), n.ID, v.Record)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Release(t.Context(), n.ID, "", "", won...); err != nil {
			t.Fatal(err)
		}
	}
	for _, after := range []string{"", "3"} {
		if _, err := s.History(t.Context(), "g", store.Page{After: after}); err != nil {
			t.Fatal(err)
		}
		if v, err := s.Read(t.Context(), "g"); err != nil || len(v.Terms) != 3 || v.Terms[0].Token != 1 || v.Terms[2].Token != 3 {
			t.Errorf("after %q: %+v, %v", after, v, err)
		}
	}
}
