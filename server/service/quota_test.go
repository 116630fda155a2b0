package service

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/auth/limit"
	"github.com/tenurehq/tenure/store"
)

func everything() []rule {
	return []rule{{"", auth.Verbs()}}
}

// The quota of candidates holds for every way to join: a campaign with or without a wait, a
// session, or the Go client. A retry is not counted again, and a resignation makes room.
func TestCandidateQuota(t *testing.T) {
	a, b, c := &caller{name: "a", rules: everything()}, &caller{name: "b", rules: everything()}, &caller{name: "c", rules: everything()}
	in, _ := limited(t, limit.Config{Candidates: 2}, []*caller{a, b, c})
	const path = "/v1/groups/billing/campaign"
	call := CampaignRequest{NodeID: "a", Instance: instanceA}
	l := want[Leading](in, 200, "POST", path, call, a.auth())
	open := SessionRequest{NodeID: "b", Groups: []string{"bill*"}, Instance: instanceB}
	want[Session](in, 201, "POST", "/v1/sessions", open, b.auth())
	want[Session](in, 201, "POST", "/v1/sessions", open, b.auth())
	want[Leading](in, 200, "POST", path, call, a.auth())
	refused(in, 429, "quota_candidates", "POST", path+"?wait=1s", CampaignRequest{NodeID: "c"}, c.auth())
	refused(in, 429, "quota_candidates", "POST", "/v1/sessions", SessionRequest{NodeID: "c", Groups: []string{"other", "billing"}}, c.auth())
	if _, err := client(in, c).Open(bound(t), candidate("c"), 5*time.Second, store.OpenOptions{Scope: store.Scope{"billing"}}); !errors.Is(err, store.ErrBusy) {
		t.Errorf("by the Go client: %v", err)
	}
	want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "c", Groups: []string{"other"}}, c.auth())
	want[Resigned](in, 200, "POST", "/v1/groups/billing/resign", ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, a.auth())
	want[Leading](in, 200, "POST", path, CampaignRequest{NodeID: "c"}, c.auth())
	r := refused(in, 429, "quota_candidates", "POST", path+"?wait=1s", CampaignRequest{NodeID: "a"}, a.auth())
	if s, err := strconv.Atoi(r.header.Get("Retry-After")); err != nil || s < 1 {
		t.Errorf("Retry-After: %q", r.header.Get("Retry-After"))
	}
}

// An identity cannot hold more groups than its quota, by campaign, batch or the Go client. It
// may campaign again for a group that it leads.
func TestGroupQuota(t *testing.T) {
	a := &caller{name: "a", rules: everything()}
	in, _ := limited(t, limit.Config{GroupsEach: 2}, []*caller{a})
	campaign := func(group string) reply {
		return in.ask("POST", "/v1/groups/"+group+"/campaign", CampaignRequest{NodeID: "a", Instance: instanceA}, a.auth())
	}
	held := func(n int) {
		t.Helper()
		eventually(t, "it is counted", func() bool { return in.svc.feed.Leads("a") == n })
	}
	if r := campaign("g1"); r.status != 200 {
		t.Fatal(r)
	}
	held(1)
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"*"}}, a.auth())
	refused(in, 429, "quota_groups", "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"g2", "g3"}}, a.auth())
	if b := want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"g2"}}, a.auth()); len(b.Led) != 1 {
		t.Errorf("%+v", b)
	}
	held(2)
	if r := campaign("g3"); r.status != 429 || r.code() != "quota_groups" || r.header.Get("Retry-After") == "" {
		t.Errorf("one too many: %v", r)
	}
	if r := campaign("g1"); r.status != 200 {
		t.Errorf("what it leads: %v", r)
	}
	st, ctx := client(in, a), bound(t)
	l, err := st.Open(ctx, candidate("a"), 5*time.Second, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Acquire(ctx, l.ID, store.Record{Group: "g3"}); !errors.Is(err, store.ErrBusy) {
		t.Errorf("by the Go client: %v", err)
	}
}

// An identity cannot have more open streams and waits than its quota. This does not affect
// other identities, and closing one makes room.
func TestStreamQuota(t *testing.T) {
	a, b := &caller{name: "a", rules: everything()}, &caller{name: "b", rules: everything()}
	in, _ := limited(t, limit.Config{StreamsEach: 2}, []*caller{a, b})
	const path = "/v1/groups/billing/watch"
	first := in.listen(path, "", a.auth())
	in.listen(path, "", a.auth())
	if r := refused(in, 429, "too_many_streams", "GET", path, nil, a.auth()); r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	refused(in, 429, "too_many_streams", "POST", "/v1/groups/billing/campaign?wait=1s", CampaignRequest{NodeID: "a"}, a.auth())
	refused(in, 429, "too_many_streams", "POST", "/v1/store/watch", `{"scope":["*"]}`, a.auth())
	in.listen(path, "", b.auth())
	want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a"}, a.auth())
	first.close()
	eventually(t, "there is room", func() bool {
		r, err := in.try("GET", path+"?wait=1ms", nil, a.auth())
		return err == nil && r.status == 200
	})
}

// stoppedStore can block every listing.
type stoppedStore struct {
	store.Store
	stopped atomic.Bool
	resume  chan struct{}
}

func (s *stoppedStore) Groups(ctx context.Context, scope store.Scope, p store.Page) ([]store.View, error) {
	if s.stopped.Load() {
		<-s.resume
	}
	return s.Store.Groups(ctx, scope, p)
}

// A caller above its rate is told when to retry. Its renewals have a rate of their own, and
// when all slots are in use, slots of their own.
func TestRateAndReservedSlots(t *testing.T) {
	a, b := &caller{name: "a", rules: everything()}, &caller{name: "b", rules: everything()}
	slow := &stoppedStore{Store: memStore(t), resume: make(chan struct{})}
	in, _ := limited(t, limit.Config{Rate: 1, Burst: 5, RenewRate: 1000, InFlight: 2, Line: 1, Patience: 50 * time.Millisecond}, []*caller{a, b},
		func(c *Config) { c.Store, c.CallTimeout = slow, 30*time.Second })
	l := want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a"}, a.auth())
	renewal := RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}
	var limit reply
	eventually(t, "it is told to wait", func() bool {
		limit = in.ask("GET", "/v1/groups/billing/leader", nil, a.auth())
		return limit.status == 429
	})
	if s, err := strconv.Atoi(limit.header.Get("Retry-After")); limit.code() != "too_many_requests" || err != nil || s < 1 {
		t.Errorf("%v, Retry-After %q", limit, limit.header.Get("Retry-After"))
	}
	for range 20 {
		want[Renewed](in, 200, "POST", "/v1/groups/billing/renew", renewal, a.auth())
	}
	if r := in.ask("GET", "/v1/groups/billing/leader", nil, b.auth()); r.status != 200 {
		t.Errorf("somebody else: %v", r)
	}

	// Two listings block in the engine and use every slot.
	slow.stopped.Store(true)
	done := make(chan struct{}, 2)
	for range 2 {
		go func() {
			_, _ = in.try("GET", "/v1/groups", nil, b.auth())
			done <- struct{}{}
		}()
	}
	eventually(t, "the places are taken", func() bool { return in.svc.gate.Stats().InFlight == 2 })
	r := refused(in, 503, "busy", "GET", "/v1/groups/billing/leader", nil, b.auth())
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	want[Renewed](in, 200, "POST", "/v1/groups/billing/renew", renewal, a.auth())
	close(slow.resume)
	<-done
	<-done
}
