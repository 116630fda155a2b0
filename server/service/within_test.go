package service

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
)

// A campaign within a session wins only if that session leads. Another session of the same
// node is an obstacle like any other leader.
func TestCampaignWithin(t *testing.T) {
	in := serve(t, memStore(t))
	open := func() string {
		return want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"*"}, TTLMS: 60_000}).Handle
	}
	x, y := open(), open()
	const path = "/v1/groups/billing/campaign"
	within := func(handle string) CampaignRequest { return CampaignRequest{NodeID: "a", Session: handle} }
	want[Leading](in, 200, "POST", path, within(y))
	if l := want[Leading](in, 200, "POST", path, within(y)); l.Term != 1 || l.Handle != y {
		t.Errorf("again: %+v", l)
	}
	refused(in, 409, "node_id_in_use", "POST", path, CampaignRequest{NodeID: "a"})
	refused(in, 409, "not_leader", "POST", path, within(x))
	refused(in, 409, "not_leader", "POST", path+"?wait=300ms", within(x))
	came := make(chan reply, 1)
	go func() {
		r, _ := in.try("POST", path+"?wait=30s", within(x))
		came <- r
	}()
	eventually(t, "it waits", func() bool { return in.waiting("billing") == 1 })
	want[Closed](in, 200, "DELETE", "/v1/sessions/"+y, nil)
	if r := <-came; r.status != 200 || decode[Leading](t, r).Term != 2 || decode[Leading](t, r).Handle != x {
		t.Errorf("%v", r)
	}
}

// Forcing a leader out needs the right to every group whose term that ends, even groups that
// this instance has not seen. A caller without it changes nothing and does not learn their
// names.
func TestForceNeedsEveryRight(t *testing.T) {
	steps := func(prefix string) []rule {
		return []rule{{prefix, []auth.Verb{auth.StepDown, auth.Observe}}}
	}
	node := &caller{name: "a", rules: []rule{{"", []auth.Verb{auth.Campaign}}}}
	some, all := &caller{name: "some", rules: steps("g")}, &caller{name: "all", rules: steps("")}
	store := newLagging(memStore(t))
	in, _ := gated(t, []*caller{node, some, all}, func(c *Config) { c.Store = store })
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"*"}, TTLMS: 60_000}, node.auth())
	want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"g1", "g2"}}, node.auth())
	store.hold()
	seize(t, store, sessionOf(t, in, s.Handle), "secret")

	const path = "/v1/groups/g1/step-down?force=true"
	match := header{"If-Match": `"1"`}
	r := refused(in, http.StatusForbidden, "denied", "POST", path, StepDownRequest{CoolDownMS: 60_000}, match, some.auth())
	if strings.Contains(string(r.body), "secret") {
		t.Errorf("it is told %v", r)
	}
	if pol, err := in.svc.policy(t.Context(), "g1"); err != nil || !pol.Cooling("a").IsZero() {
		t.Errorf("a cool-down was left behind: %+v, %v", pol, err)
	}
	want[Beat](in, 200, "POST", "/v1/sessions/"+s.Handle+"/keepalive", nil, node.auth())
	if out := want[SteppedDown](in, 200, "POST", path, nil, match, all.auth()); strings.Join(out.AlsoEnded, ",") != "g2,secret" {
		t.Errorf("%+v", out)
	}
}

// A request applies only to the term it was made for: a later term of the same session does
// not get it and does not end because of it.
func TestRequestOfAnEarlierTerm(t *testing.T) {
	st := memStore(t)
	in := serve(t, st)
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"*"}, TTLMS: 60_000})
	id := sessionOf(t, in, s.Handle)
	again := func() Leading {
		t.Helper()
		return want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a", Session: s.Handle})
	}
	asked := func(l Leading) int {
		t.Helper()
		return len(want[Renewed](in, 200, "POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}).Requests)
	}
	l := again()
	if err := st.Ask(t.Context(), id, store.Request{ID: "r", Verb: store.StepDown, Group: "billing", Token: l.Term, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if n := asked(l); n != 1 {
		t.Errorf("asked %d times", n)
	}
	release(t, st, id, "billing")
	next := again()
	if n := asked(next); n != 0 || next.Term != l.Term+1 {
		t.Errorf("term %d is asked %d times", next.Term, n)
	}
	resign(in, next)
	if h := want[History](in, 200, "GET", "/v1/groups/billing/history", nil); h.Terms[0].Reason != string(store.Resigned) {
		t.Errorf("it ended because of %q", h.Terms[0].Reason)
	}
}
