package service

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/store"
)

func candidate(id string) tenure.Candidate { return tenure.Candidate{ID: id} }

func (in *instance) gauge(name string) string {
	in.t.Helper()
	for line := range strings.Lines(string(in.ask("GET", "/metrics", nil).body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// A leader learns of a step-down from its next renewal, and answers it by resigning. It is
// not elected again during the cool-down.
func TestStepDown(t *testing.T) {
	store := memStore(t)
	in, other := serve(t, store), serve(t, store)
	l := lead(in, "billing", "a")
	const path = "/v1/groups/billing/step-down"
	refused(in, 428, "term_required", "POST", path, nil)
	refused(in, 412, "stale_term", "POST", path, nil, header{"If-Match": `"9"`})
	refused(in, 400, "bad_precondition", "POST", path, nil, header{"If-Match": "x"})
	refused(in, 409, "no_leader", "POST", "/v1/groups/nobody/transfer?to=a", nil)

	outcome := make(chan reply, 1)
	go func() {
		r, _ := in.try("POST", path+"?wait=30s", StepDownRequest{Reason: "upgrade", CoolDownMS: 60_000}, header{"If-Match": `"1"`})
		outcome <- r
	}()
	var asked []Request
	eventually(t, "the leader is told", func() bool {
		asked = want[Renewed](other, 200, "POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}).Requests
		return len(asked) > 0
	})
	if len(asked) != 1 || asked[0].Verb != "step-down" || asked[0].Reason != "upgrade" || asked[0].CoolDown != 60_000 || asked[0].Term != 1 {
		t.Errorf("asked: %+v", asked)
	}
	resign(other, l)
	if r := <-outcome; r.status != 200 || decode[SteppedDown](t, r).Outcome != "done" {
		t.Errorf("outcome: %v", r)
	}
	refused(other, 409, "cooling_down", "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a"})
	lead(in, "billing", "b")
	if h := want[History](in, 200, "GET", "/v1/groups/billing/history", nil); h.Terms[1].Reason != "stepped-down" {
		t.Errorf("history: %+v", h.Terms)
	}
}

// A step-down of a leader that does not answer is reported as unanswered. Force closes its
// session and reports which other terms that ended.
func TestForce(t *testing.T) {
	in := serve(t, memStore(t))
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"*"}})
	want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"g1", "g2", "g3"}})
	eventually(t, "the feed knows", func() bool { return len(in.svc.feed.Held(sessionOf(t, in, s.Handle))) == 3 })
	if r := want[SteppedDown](in, 202, "POST", "/v1/groups/g1/step-down?wait=200ms", nil, header{"If-Match": `"1"`}); r.Outcome != "waiting" {
		t.Errorf("%+v", r)
	}
	if b := want[Beat](in, 200, "POST", "/v1/sessions/"+s.Handle+"/keepalive", nil); len(b.Requests) != 1 || b.Requests[0].Group != "g1" {
		t.Errorf("the session is told %+v", b)
	}
	r := want[SteppedDown](in, 200, "POST", "/v1/groups/g2/step-down?force=true", nil, header{"If-Match": `"1"`})
	if r.Outcome != "forced" || strings.Join(r.AlsoEnded, ",") != "g1,g3" {
		t.Errorf("%+v", r)
	}
	refused(in, 404, "no_leader", "GET", "/v1/groups/g3/leader", nil)
	refused(in, 409, "session_dead", "POST", "/v1/sessions/"+s.Handle+"/keepalive", nil)
	if h := want[History](in, 200, "GET", "/v1/groups/g2/history", nil); h.Terms[0].Reason != "forced" {
		t.Errorf("history: %+v", h.Terms)
	}
}

// A transfer asks the leader and names the successor, which must be a candidate. By force,
// the session is closed and the successor gets the group.
func TestTransfer(t *testing.T) {
	store := memStore(t)
	in := serve(t, store)
	l := lead(in, "billing", "a")
	refused(in, 409, "no_successor", "POST", "/v1/groups/billing/transfer?to=b", nil)
	refused(in, 409, "no_successor", "POST", "/v1/groups/billing/transfer?to=a", nil)
	refused(in, 400, "bad_argument", "POST", "/v1/groups/billing/transfer", nil)
	b := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "b", Groups: []string{"*"}})
	outcome := make(chan reply, 1)
	go func() {
		r, _ := in.try("POST", "/v1/groups/billing/transfer?to=b&wait=30s", nil)
		outcome <- r
	}()
	eventually(t, "the leader is told", func() bool {
		asked := want[Renewed](in, 200, "POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}).Requests
		return len(asked) == 1 && asked[0].To == "b"
	})
	want[Resigned](in, 200, "POST", "/v1/groups/billing/resign", ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle, Successor: "b"})
	if r := <-outcome; decode[SteppedDown](t, r).LeaderNodeID != "b" {
		t.Errorf("%v", r)
	}
	again := want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "b", Session: b.Handle})
	if again.Term != 2 {
		t.Errorf("%+v", again)
	}
	want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "c", Groups: []string{"billing"}})
	if r := want[SteppedDown](in, 200, "POST", "/v1/groups/billing/transfer?to=c&force=true", nil, header{"If-Match": `"2"`}); r.LeaderNodeID != "c" {
		t.Errorf("%+v", r)
	}
}

// A policy bounds the TTL, the members and the back-off of candidates. It has a version, and
// deleting it keeps the token.
func TestPolicy(t *testing.T) {
	in := serve(t, memStore(t))
	unfenced := false
	g := want[Group](in, 201, "PUT", "/v1/groups/billing", GroupPolicy{MinTTLMS: 2000, MaxTTLMS: 6000, BackoffMS: 777, Members: []string{"a", "b"}, Fenced: &unfenced})
	if g.Policy.BackoffMS != 777 || *g.Policy.Fenced || g.Term != 0 || !g.Declared {
		t.Errorf("%+v", g)
	}
	const path = "/v1/groups/billing/campaign"
	refused(in, 403, "not_a_member", "POST", path, CampaignRequest{NodeID: "c"})
	refused(in, 400, "ttl_out_of_bounds", "POST", path, CampaignRequest{NodeID: "a", TTLMS: 1999})
	refused(in, 400, "ttl_out_of_bounds", "POST", path, CampaignRequest{NodeID: "a", TTLMS: 6001})
	refused(in, 400, "ttl_out_of_bounds", "POST", path, CampaignRequest{NodeID: "a", TTLMS: 1 << 60})
	l := lead(in, "billing", "a")
	if l.Fenced {
		t.Error("it says that it is fenced")
	}
	var p struct {
		RetryAfterMS int64 `json:"retry_after_ms"`
	}
	_ = json.Unmarshal(refused(in, 409, "not_leader", "POST", path, CampaignRequest{NodeID: "b"}).body, &p)
	if p.RetryAfterMS < 777 || p.RetryAfterMS > 777*3/2+1 {
		t.Errorf("retry after %d", p.RetryAfterMS)
	}
	refused(in, 412, "version_conflict", "PUT", "/v1/groups/billing", GroupPolicy{}, header{"If-Match": `"999"`})
	want[Group](in, 200, "PUT", "/v1/groups/billing", GroupPolicy{}, header{"If-Match": etag(g.Version)})
	refused(in, 400, "bad_policy", "PUT", "/v1/groups/billing", GroupPolicy{MinTTLMS: 5, MaxTTLMS: 4})
	refused(in, 400, "bad_argument", "PUT", "/v1/groups/billing", GroupPolicy{Members: longMembers()})

	refused(in, 409, "group_is_led", "DELETE", "/v1/groups/billing", nil)
	resign(in, l)
	if d := want[Group](in, 200, "DELETE", "/v1/groups/billing", nil); !d.Deleted || d.Term != 1 {
		t.Errorf("deleted: %+v", d)
	}
	refused(in, 404, "unknown_group", "POST", path, CampaignRequest{NodeID: "a"})
	want[Group](in, 201, "PUT", "/v1/groups/billing", nil)
	if l := lead(in, "billing", "a"); l.Term != 2 {
		t.Errorf("the token was not kept: %+v", l)
	}
	refused(in, 404, "unknown_group", "GET", "/v1/groups/never", nil)
	refused(in, 404, "unknown_group", "DELETE", "/v1/groups/never", nil)
}

func longMembers() []string {
	var all []string
	for i := range 100 {
		all = append(all, strings.Repeat("x", 50)+string(rune('a'+i%26))+string(rune('a'+i/26)))
	}
	return all
}

// With Declared, a group must be created before it can be led.
func TestDeclared(t *testing.T) {
	in := serve(t, memStore(t), func(c *Config) { c.Declared = true })
	refused(in, 404, "unknown_group", "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a"})
	want[Group](in, 201, "PUT", "/v1/groups/billing", nil)
	lead(in, "billing", "a")
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "b", Groups: []string{"*"}})
	if b := want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"x"}}); len(b.Led) != 0 || b.Refused[0].Code != "unknown_group" {
		t.Errorf("%+v", b)
	}
}

// A cordoned node begins no new term, and keeps the terms that it has.
func TestCordon(t *testing.T) {
	in := serve(t, memStore(t))
	l := lead(in, "g1", "a")
	if n := want[Node](in, 200, "PUT", "/v1/nodes/a/cordon", CordonRequest{Reason: "disk"}); !n.Cordoned || n.Reason != "disk" {
		t.Errorf("%+v", n)
	}
	refused(in, 409, "cordoned", "POST", "/v1/groups/g2/campaign", CampaignRequest{NodeID: "a"})
	refused(in, 409, "cordoned", "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"g2"}})
	want[Renewed](in, 200, "POST", "/v1/groups/g1/renew", RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle})
	if n := want[Node](in, 200, "GET", "/v1/nodes/a", nil); !n.Cordoned {
		t.Errorf("%+v", n)
	}
	if c := want[Candidates](in, 200, "GET", "/v1/groups/g1/candidates", nil).Candidates; len(c) != 1 || c[0].Barred != "cordoned" || !c[0].Leads {
		t.Errorf("%+v", c)
	}
	want[Node](in, 200, "DELETE", "/v1/nodes/a/cordon", nil)
	lead(in, "g2", "a")
}

// Groups and terms are listed page by page.
func TestListing(t *testing.T) {
	in := serve(t, memStore(t))
	for _, g := range []string{"a1", "a2", "a3", "b1"} {
		lead(in, g, "n")
	}
	page := want[Groups](in, 200, "GET", "/v1/groups?prefix=a&limit=2", nil)
	if len(page.Groups) != 2 || page.Next != "a2" || page.Groups[0].LeaderNodeID != "n" {
		t.Errorf("%+v", page)
	}
	if rest := want[Groups](in, 200, "GET", "/v1/groups?prefix=a&limit=2&after="+page.Next, nil); len(rest.Groups) != 1 || rest.Next != "" {
		t.Errorf("%+v", rest)
	}
	for range 3 {
		resign(in, lead(in, "h", "n"))
	}
	h := want[History](in, 200, "GET", "/v1/groups/h/history?limit=2", nil)
	if len(h.Terms) != 2 || h.Terms[0].Term != 3 || h.Next != "2" {
		t.Errorf("%+v", h)
	}
	if rest := want[History](in, 200, "GET", "/v1/groups/h/history?limit=2&after="+h.Next, nil); len(rest.Terms) != 1 {
		t.Errorf("%+v", rest)
	}
	want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "m", Groups: []string{"a*"}})
	c := want[Candidates](in, 200, "GET", "/v1/groups/a1/candidates?limit=1", nil)
	if rest := want[Candidates](in, 200, "GET", "/v1/groups/a1/candidates?after="+c.Next, nil); len(rest.Candidates) != 1 || rest.Candidates[0].NodeID != "m" {
		t.Errorf("%+v, %+v", c, rest)
	}
}

// After the engine was rewound, nobody leads until the epoch is raised, the lower token is
// counted, and observers get a reset.
func TestRewound(t *testing.T) {
	store := memStore(t)
	in := serve(t, store)
	restore := backup(store)
	l := lead(in, "billing", "a")
	resign(in, l)
	l = lead(in, "billing", "a")
	w := in.listen("/v1/groups/billing/watch", "")
	w.expect("billing", "led", 2)
	eventually(t, "the feed has seen term 2", func() bool {
		v, synced := in.svc.feed.View("billing")
		return synced && v.Token == l.Term
	})
	restore()
	refused(in, 409, "not_leader", "POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle})
	refused(in, 503, "rewound", "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "b"})
	if _, err := store.RaiseEpoch(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	// The feed has no watch for 50 ms. A stream that does not run in that time misses it, because
	// a stream only sends the newest state.
	e := w.next()
	if e.kind == string(feed.Changed) && e.State == "unknown" {
		e = w.next()
	}
	if e.kind != "reset" {
		t.Errorf("%+v, want a reset", e)
	}
	w.expect("billing", "vacant", 0)
	if m := in.gauge("tenure_split_brain_detected_total"); m != "1" {
		t.Errorf("split brain: %s", m)
	}
	n := lead(in, "billing", "b")
	if n.Term <= l.Term {
		t.Errorf("term %d after %d", n.Term, l.Term)
	}
	w.expect("billing", "led", uint64(n.Term))
}

// unwritable is a store whose grants get no answer once it is broken, as with an engine whose
// disk fails.
type unwritable struct {
	store.Store
	broken atomic.Bool
}

func (s *unwritable) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	if s.broken.Load() {
		return nil, errors.New("input/output error")
	}
	return s.Store.Acquire(ctx, id, seen...)
}

// A forced transfer that the engine did not confirm is not reported as done, although the
// leader's session is closed.
func TestForcedTransferUnconfirmed(t *testing.T) {
	store := &unwritable{Store: memStore(t)}
	in := serve(t, store)
	lead(in, "billing", "a")
	want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "b", Groups: []string{"*"}})
	store.broken.Store(true)
	refused(in, 503, "no_quorum", "POST", "/v1/groups/billing/transfer?to=b&force=true", nil, header{"If-Match": `"1"`})
}
