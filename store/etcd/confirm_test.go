package etcd_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
)

// A keep-alive with a group says what the record is, and nothing for a session that ended.
func TestKeepAliveIn(t *testing.T) {
	s, ctx := open(t, enginetest.Cluster(t, 1).Endpoints()), t.Context()
	session, err := s.Open(ctx, tenure.Candidate{ID: "a"}, 30*time.Second, lease.OpenOptions{Scope: lease.Scope{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	is := func(holder lease.SessionID, token uint64) lease.Record {
		t.Helper()
		beat, rec, err := s.KeepAliveIn(ctx, session.ID, "g")
		if err != nil || beat.TTL != session.TTL || rec.Group != "g" || rec.Holder != holder || uint64(rec.Token) != token {
			t.Fatalf("%+v, %+v, %v, want holder %q with token %d", beat, rec, err, holder, token)
		}
		return rec
	}
	vacant := is("", 0)
	if _, err := s.Acquire(ctx, session.ID, vacant); err != nil {
		t.Fatal(err)
	}
	held := is(session.ID, 1)
	if _, err := s.Release(ctx, session.ID, held, "", lease.Resigned); err != nil {
		t.Fatal(err)
	}
	is("", 1)
	if err := s.Close(ctx, session.ID, lease.Closed); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.KeepAliveIn(ctx, session.ID, "g"); !errors.Is(err, lease.ErrSessionDead) {
		t.Errorf("a session that ended: %v", err)
	}
}
