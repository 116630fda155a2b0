package service

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/tenurehq/tenure/store"
)

// confirmingStore counts reads and keep-alives.
type confirmingStore struct {
	store.Store
	reads, beats atomic.Int64
}

func (s *confirmingStore) Read(ctx context.Context, group string) (store.View, error) {
	s.reads.Add(1)
	return s.Store.Read(ctx, group)
}

func (s *confirmingStore) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	s.beats.Add(1)
	return s.Store.KeepAlive(ctx, id, groups...)
}

// A renewal costs one keep-alive and no read. A caller that resigned, or whose session has
// ended, is told so.
func TestRenewalIsOneCall(t *testing.T) {
	st := &confirmingStore{Store: memStore(t)}
	in := serve(t, st)
	renew := func(l Leading) RenewRequest {
		return RenewRequest{NodeID: l.LeaderNodeID, Term: l.Term, Handle: l.Handle}
	}
	a := lead(in, "a", "one")
	before, beaten := st.reads.Load(), st.beats.Load()
	if got := want[Renewed](in, 200, "POST", "/groups/a/renew", renew(a)); got.Term != a.Term || got.TTLMS != a.TTLMS {
		t.Errorf("%+v", got)
	}
	if reads, beats := st.reads.Load()-before, st.beats.Load()-beaten; reads != 0 || beats != 1 {
		t.Errorf("%d reads and %d keep-alives", reads, beats)
	}
	resign(in, a)
	refused(in, 409, "not_leader", "POST", "/groups/a/renew", renew(a))
	again := lead(in, "a", "one")
	refused(in, 409, "not_leader", "POST", "/groups/a/renew", renew(a))
	h, err := in.svc.parseHandle(again.Handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.End(t.Context(), h.session, store.Closed); err != nil {
		t.Fatal(err)
	}
	refused(in, 409, "not_leader", "POST", "/groups/a/renew", renew(again))
}
