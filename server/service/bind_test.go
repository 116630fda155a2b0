package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// client is the Go client of an instance, with the credential of a caller.
func client(in *instance, c *caller) *remote.Store {
	in.t.Helper()
	cfg := remote.Config{URLs: []string{in.url}}
	if c != nil {
		cfg.Bearer = func(context.Context) (string, error) { return c.token, nil }
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := remote.Open(ctx, cfg)
	if err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(s.Close)
	return s
}

func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// Policies and cordons apply to the store's routes as to all others: a node that may not
// campaign for a group may not acquire it or be named as its successor either. A refusal is
// definite, so a Go program knows that nothing happened.
func TestPolicyBindsTheStore(t *testing.T) {
	in := serve(t, memStore(t), func(c *Config) { c.Declared = true; c.MaxTTL = time.Minute })
	s, ctx := client(in, nil), bound(t)
	if most := s.Caps().MaxTTL; most != time.Minute {
		t.Errorf("it says that it grants %v", most)
	}
	open := func(node string, ttl time.Duration) store.SessionID {
		t.Helper()
		l, err := s.Open(ctx, candidate(node), ttl, store.OpenOptions{Scope: store.Scope{"*"}})
		if err != nil {
			t.Fatal(err)
		}
		return l.ID
	}
	acquire := func(id store.SessionID, groups ...string) error {
		var seen []store.Record
		for _, g := range groups {
			v, err := s.Read(ctx, g)
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, v.Record)
		}
		_, err := s.Acquire(ctx, id, seen...)
		return err
	}
	for _, g := range []string{"free", "free-2", "free-3", "cooling"} {
		want[Group](in, 201, "PUT", "/v1/groups/"+g, nil)
	}
	want[Group](in, 201, "PUT", "/v1/groups/closed", GroupPolicy{Members: []string{"b"}})
	want[Group](in, 201, "PUT", "/v1/groups/quick", GroupPolicy{MaxTTLMS: 5000})
	want[Group](in, 201, "PUT", "/v1/groups/slow", GroupPolicy{MinTTLMS: 20_000})
	want[Group](in, 201, "PUT", "/v1/groups/gone", nil)
	want[Group](in, 200, "DELETE", "/v1/groups/gone", nil)
	if _, err := in.svc.operations().Cool(ctx, "cooling", "a", time.Minute); err != nil {
		t.Fatal(err)
	}
	a := open("a", 10*time.Second)
	for group, is := range map[string]error{
		"never": store.ErrBusy, "gone": store.ErrBusy, "cooling": store.ErrBusy, "closed": remote.ErrDenied, "quick": store.ErrInvalid, "slow": store.ErrInvalid,
	} {
		if err := acquire(a, group); !errors.Is(err, is) {
			t.Errorf("acquiring %s: %v, want %v", group, err, is)
		}
		if v, err := s.Read(ctx, group); err != nil || v.Version != 0 {
			t.Errorf("%s has been led: %+v, %v", group, v, err)
		}
	}
	if err := acquire(a, "free", "closed"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a batch of which one is not for it: %v, want a conflict, so that it tries them one by one", err)
	}
	if err := acquire(a, "free", "free-2"); err != nil {
		t.Errorf("what it may lead: %v", err)
	}

	b := open("b", 10*time.Second)
	want[Node](in, 200, "PUT", "/v1/nodes/b/cordon", CordonRequest{Reason: "disk"})
	if err := acquire(b, "free-3"); !errors.Is(err, store.ErrBusy) {
		t.Errorf("a cordoned node acquires: %v", err)
	}
	if _, err := s.Open(ctx, candidate("b"), 10*time.Second, store.OpenOptions{Scope: store.Scope{"*"}}); !errors.Is(err, store.ErrBusy) {
		t.Errorf("a cordoned node opens a session: %v", err)
	}
	held, err := s.Read(ctx, "free")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Release(ctx, a, b, store.Transferred, held.Record); !errors.Is(err, store.ErrSuccessor) {
		t.Errorf("a cordoned node is made the successor: %v", err)
	}
	if _, err := s.KeepAlive(ctx, b); err != nil {
		t.Errorf("a cordoned node keeps its session alive: %v", err)
	}
	want[Node](in, 200, "DELETE", "/v1/nodes/b/cordon", nil)
	if _, err := s.Release(ctx, a, b, store.Transferred, held.Record); err != nil {
		t.Errorf("the cordon is lifted: %v", err)
	}
	if _, err := s.Open(ctx, candidate("b"), 2*time.Minute, store.OpenOptions{Scope: store.Scope{"*"}}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a TTL above the deployment's: %v", err)
	}
}

// A Go program cannot bypass a policy: its elector does not lead a group that a rule forbids,
// and leads it once the rule is gone.
func TestPolicyBindsElectors(t *testing.T) {
	in := serve(t, memStore(t))
	want[Group](in, 201, "PUT", "/v1/groups/billing", GroupPolicy{Members: []string{"b"}})
	node, err := lease.New(client(in, nil), lease.Config{Candidate: tenure.Candidate{ID: "a"}, Scope: store.Scope{"*"}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = node.Close(bound(t)) }()
	led := make(chan *tenure.Term, 2)
	for _, group := range []string{"billing", "shipping"} {
		e, err := node.Elector(group)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			term, err := e.Campaign(bound(t))
			if err != nil {
				t.Errorf("%s: %v", group, err)
			}
			led <- term
		}()
	}
	term := <-led
	if term == nil || term.Group() != "shipping" {
		t.Fatalf("it leads %v", term)
	}
	defer func() { _ = term.Resign(bound(t)) }()
	select {
	case term := <-led:
		t.Fatalf("it leads %v, of which it is no member", term.Group())
	case <-time.After(300 * time.Millisecond):
	}
	want[Group](in, 200, "PUT", "/v1/groups/billing", GroupPolicy{Members: []string{"a"}})
	billing := <-led
	if billing == nil || billing.Group() != "billing" {
		t.Fatalf("it leads %v", billing)
	}
	if err := billing.Resign(bound(t)); err != nil {
		t.Error(err)
	}
}

// A session's TTL must be within the policy of every group that it leads, whether it acquires
// the group or is its successor.
func TestPolicyBindsSessions(t *testing.T) {
	in := serve(t, memStore(t))
	want[Group](in, 201, "PUT", "/v1/groups/quick", GroupPolicy{MaxTTLMS: 5000})
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"*"}, TTLMS: 30_000})
	refused(in, 400, "ttl_out_of_bounds", "POST", "/v1/groups/quick/campaign", CampaignRequest{NodeID: "a", Session: s.Handle})
	if b := want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"quick", "other"}}); len(b.Led) != 1 || b.Refused[0].Code != "ttl_out_of_bounds" {
		t.Errorf("%+v", b)
	}
	l := lead(in, "quick", "b")
	refused(in, 409, "no_successor", "POST", "/v1/groups/quick/resign", ResignRequest{NodeID: "b", Term: l.Term, Handle: l.Handle, Successor: "a"})
	refused(in, 409, "no_successor", "POST", "/v1/groups/quick/transfer?to=a&force=true", nil)
}

// The policy at the moment when the group becomes vacant applies to waiting candidates, not
// the policy when they began to wait.
func TestPolicyBindsWaiters(t *testing.T) {
	in := serve(t, memStore(t))
	for name, wait := range map[string]func() reply{
		"campaign": func() reply {
			r, _ := in.try("POST", "/v1/groups/billing/campaign?wait=30s", CampaignRequest{NodeID: "b"})
			return r
		},
		"batch": func() reply {
			s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "b", Groups: []string{"*"}})
			r, _ := in.try("POST", "/v1/sessions/"+s.Handle+"/campaign?wait=30s", BatchRequest{Groups: []string{"billing"}})
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := lead(in, "billing", "a")
			came := make(chan reply, 1)
			go func() { came <- wait() }()
			eventually(t, "it waits", func() bool { return in.waiting("billing") == 1 })
			want[Node](in, 200, "PUT", "/v1/nodes/b/cordon", nil)
			resign(in, l)
			if r := <-came; !strings.Contains(string(r.body), `"cordoned"`) {
				t.Errorf("%v", r)
			}
			refused(in, 404, "no_leader", "GET", "/v1/groups/billing/leader", nil)
			want[Node](in, 200, "DELETE", "/v1/nodes/b/cordon", nil)
		})
	}
}

func (in *instance) waiting(group string) int {
	return in.svc.feed.Followers(group)
}

// If a step-down is refused, by the leader or because it could not be asked, its cool-down is
// removed.
func TestCoolDownOfARefusal(t *testing.T) {
	st := memStore(t)
	in, ctx := serve(t, st), bound(t)
	l := lead(in, "billing", "a")
	session := sessionOf(t, in, l.Handle)
	again := func() {
		t.Helper()
		resign(in, l)
		l = lead(in, "billing", "a")
		session = sessionOf(t, in, l.Handle)
	}
	outcome := make(chan reply, 1)
	go func() {
		r, _ := in.try("POST", "/v1/groups/billing/step-down?wait=30s", StepDownRequest{CoolDownMS: 60_000}, header{"If-Match": etag(uint64(l.Term))})
		outcome <- r
	}()
	eventually(t, "the leader refuses", func() bool {
		beat, err := st.KeepAlive(ctx, session)
		if err != nil || len(beat.Requests) == 0 {
			return false
		}
		return st.Answer(ctx, session, beat.Requests[0].ID, store.Answer{Outcome: store.Refused, Detail: "not now"}) == nil
	})
	if r := <-outcome; decode[SteppedDown](t, r).Outcome != "refused" {
		t.Errorf("%v", r)
	}
	again()
	for i := range store.MaxRequests {
		if err := st.Ask(ctx, session, store.Request{ID: fmt.Sprint("r", i), Verb: store.StepDown, Group: "other", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	refused(in, 429, "busy", "POST", "/v1/groups/billing/step-down", StepDownRequest{CoolDownMS: 60_000}, header{"If-Match": etag(uint64(l.Term))})
	again()
}

// Groups that were created and never led are listed by name, page by page, to callers that
// may observe them. Deleted groups are not listed.
func TestCreatedAreListed(t *testing.T) {
	admin := &caller{name: "admin", rules: []rule{{"", []auth.Verb{auth.Admin, auth.Observe, auth.Campaign}}}}
	some := &caller{name: "some", rules: []rule{{"g-1", []auth.Verb{auth.Observe}}}}
	in, _ := gated(t, []*caller{admin, some})
	var names []string
	for i := range 130 { // more than fits on one page
		names = append(names, fmt.Sprintf("g-%03d-%s", i, strings.Repeat("x", 50)))
	}
	for _, i := range []int{7, 8, 129} {
		want[Leading](in, 200, "POST", "/v1/groups/"+names[i]+"/campaign", CampaignRequest{NodeID: "admin"}, admin.auth())
	}
	for i, g := range names {
		if i != 8 { // led, and never created
			want[Group](in, 201, "PUT", "/v1/groups/"+g, nil, admin.auth())
		}
	}
	want[Group](in, 200, "DELETE", "/v1/groups/"+names[5], nil, admin.auth())
	list := func(c *caller, query string) (all []string) {
		t.Helper()
		for after, pages := "", 0; pages < 100; pages++ {
			page := want[Groups](in, 200, "GET", "/v1/groups?limit=9"+query+after, nil, c.auth())
			for _, g := range page.Groups {
				all = append(all, g.Group)
			}
			if len(page.Groups) > 9 {
				t.Errorf("a page of %d", len(page.Groups))
			}
			if page.Next == "" {
				break
			}
			after = "&after=" + page.Next
		}
		return all
	}
	left := slices.Delete(slices.Clone(names), 5, 6)
	if got := list(admin, ""); !slices.Equal(got, left) {
		t.Errorf("listed %d: %v", len(got), got)
	}
	if got := list(admin, "&prefix=g-00"); !slices.Equal(got, left[:9]) {
		t.Errorf("with a prefix: %v", got)
	}
	if got := list(some, ""); !slices.Equal(got, left[99:]) {
		t.Errorf("to somebody who may see some: %v", got)
	}
	want[Group](in, 201, "PUT", "/v1/groups/"+names[5], nil, admin.auth())
	if got := list(admin, ""); !slices.Equal(got, names) {
		t.Errorf("created again: %d", len(got))
	}
}
