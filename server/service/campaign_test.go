package service

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
)

// A campaign for a vacant group wins, with a larger term each time. Other candidates learn who leads and when to retry.
func TestCampaign(t *testing.T) {
	in := serve(t, memStore(t))
	first := want[Leading](in, 200, "POST", "/v1/groups/billing/campaign",
		CampaignRequest{NodeID: "a", TTLMS: 4000, Metadata: map[string]string{"zone": "1"}, Address: "http://a"})
	if first.Term != 1 || first.LeaderNodeID != "a" || first.TTLMS != 4000 || first.Metadata["zone"] != "1" || first.Deployment != "here" || !first.Fenced {
		t.Errorf("the first campaign: %+v", first)
	}
	type lost struct {
		Leader       string `json:"leader_node_id"`
		Term         uint64 `json:"term"`
		RetryAfterMS int64  `json:"retry_after_ms"`
	}
	if l := want[lost](in, 409, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "b"}); l.Leader != "a" || l.Term != 1 || l.RetryAfterMS <= 0 {
		t.Errorf("who loses is told %+v", l)
	}
	resign(in, first)
	if second := lead(in, "billing", "b"); second.Term != 2 {
		t.Errorf("the second term: %+v", second)
	}
}

// One of many concurrent campaigns wins.
func TestCampaignsAtOnce(t *testing.T) {
	in := serve(t, memStore(t))
	for round := range 10 {
		var mu sync.Mutex
		var all sync.WaitGroup
		leaders := map[string]uint64{}
		for _, node := range []string{"a", "a", "b", "b", "c", "c"} {
			all.Go(func() {
				r, err := in.try("POST", "/v1/groups/g"+string(rune('a'+round))+"/campaign", CampaignRequest{NodeID: node})
				if err != nil || r.status != 200 && r.status != 409 {
					t.Errorf("%v, %v", r, err)
				}
				if r.status == 200 {
					mu.Lock()
					leaders[node]++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if len(leaders) != 1 || leaders["a"]+leaders["b"]+leaders["c"] != 1 {
			t.Errorf("leaders: %v", leaders)
		}
	}
}

// If the same call arrives at two instances at the same time, it wins once, and both answers
// have the same term.
func TestSameCallAtTwoInstances(t *testing.T) {
	store := memStore(t)
	other := serve(t, store)
	var twin Leading
	call := CampaignRequest{NodeID: "a", Instance: instanceA}
	late := &lateStore{Store: store, before: func() { twin = want[Leading](other, 200, "POST", "/v1/groups/billing/campaign", call) }}
	l := want[Leading](serve(t, late), 200, "POST", "/v1/groups/billing/campaign", call)
	if l.Term != 1 || l.Term != twin.Term || l.Handle != twin.Handle {
		t.Errorf("%+v and %+v", l, twin)
	}
}

// A batch that loses one group to another candidate still leads the others.
func TestBatchConflict(t *testing.T) {
	store := memStore(t)
	other := serve(t, store)
	in := serve(t, &lateStore{Store: store, before: func() { lead(other, "g2", "b") }})
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"g*"}})
	b := want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"g1", "g2", "g3"}})
	if len(b.Led) != 2 || len(b.Refused) != 1 || b.Refused[0].Group != "g2" {
		t.Errorf("%+v", b)
	}
}

// A renewal extends the leader's lease. Any other caller, and a leader whose session has
// ended, learns that it does not lead.
func TestRenew(t *testing.T) {
	st := memStore(t)
	in := serve(t, st)
	l := lead(in, "billing", "a")
	const path = "/v1/groups/billing/renew"
	ok := RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}
	if r := want[Renewed](in, 200, "POST", path, ok); r.Term != l.Term || r.TTLMS != 5000 {
		t.Errorf("renewed: %+v", r)
	}
	wrong := ok
	wrong.Term = 7
	refused(in, 409, "not_leader", "POST", path, wrong)
	wrong = ok
	wrong.NodeID = "b"
	refused(in, 403, "not_your_session", "POST", path, wrong)
	wrong = ok
	wrong.Handle = "x"
	refused(in, 400, "bad_handle", "POST", path, wrong)
	wrong.Handle = handle{"elsewhere", "s1", "billing"}.String()
	refused(in, 409, "other_deployment", "POST", path, wrong)
	wrong.Handle = handle{"here", "s99", "billing"}.String()
	refused(in, 409, "not_leader", "POST", path, wrong)

	other := serve(t, st) // has not seen the session
	wrong = ok
	wrong.NodeID = "b"
	refused(other, 403, "not_your_session", "POST", path, wrong)
	want[Renewed](other, 200, "POST", path, ok)

	v, err := st.Read(t.Context(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	if err := st.End(t.Context(), v.Holder, store.Closed); err != nil {
		t.Fatal(err)
	}
	refused(in, 409, "not_leader", "POST", path, ok)
	refused(other, 409, "not_leader", "POST", path, ok)
}

// A handle alone does not keep another node's session alive: a renewal with the wrong node id
// does not reach the engine.
func TestRenewTouchesNothingForeign(t *testing.T) {
	store := &countingStore{Store: memStore(t)}
	in := serve(t, store)
	l := lead(in, "billing", "a")
	for _, svc := range []*instance{in, serve(t, store)} {
		before := store.beats.Load()
		svc.ask("POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "b", Term: l.Term, Handle: l.Handle})
		svc.ask("POST", "/v1/groups/other/renew", RenewRequest{NodeID: "b", Term: l.Term, Handle: l.Handle})
		if now := store.beats.Load(); now != before {
			t.Errorf("%d keep-alives were sent for a stranger", now-before)
		}
	}
}

// Resigning frees the group. A repeated call has the same answer, even if another node leads
// by then, and does not affect that node.
func TestResign(t *testing.T) {
	in := serve(t, memStore(t))
	a := lead(in, "billing", "a")
	resign(in, a)
	resign(in, a)
	b := lead(in, "billing", "b")
	resign(in, a)
	want[Renewed](in, 200, "POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "b", Term: b.Term, Handle: b.Handle})
	refused(in, 409, "not_leader", "POST", "/v1/groups/billing/resign", ResignRequest{NodeID: "a", Term: b.Term, Handle: b.Handle})
	refused(in, 409, "not_leader", "POST", "/v1/groups/billing/resign", ResignRequest{NodeID: "a", Term: 99, Handle: a.Handle})
	refused(in, 409, "no_successor", "POST", "/v1/groups/billing/resign", ResignRequest{NodeID: "b", Term: b.Term, Handle: b.Handle, Successor: "nobody"})
	if h := want[History](in, 200, "GET", "/v1/groups/billing/history", nil); len(h.Terms) != 2 || h.Terms[0].NodeID != "b" || h.Terms[1].Reason != "resigned" || h.Terms[1].EndMS == 0 {
		t.Errorf("history: %+v", h)
	}
}

// A waiting candidate leads when the group becomes vacant: after a resignation, after the
// leader's session expired, and as the named successor.
func TestWait(t *testing.T) {
	store := memStore(t)
	in := serve(t, store)
	waiting := func(node string, priority int) chan Leading {
		won := make(chan Leading, 1)
		go func() {
			defer close(won)
			r, err := in.try("POST", "/v1/groups/billing/campaign?wait=30s", CampaignRequest{NodeID: node, TTLMS: 2000, Priority: priority})
			if err != nil || r.status != 200 {
				t.Errorf("%s: %v, %v", node, r, err)
				return
			}
			won <- decode[Leading](t, r)
		}()
		eventually(t, node+" stands in line", func() bool { return slices.Contains(strings.Fields(nodesOf(in, "billing")), node) })
		return won
	}
	a := want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a", TTLMS: 1000})
	late, first := waiting("late", 0), waiting("first", 5)
	renewed := RenewRequest{NodeID: "a", Term: a.Term, Handle: a.Handle}
	want[Renewed](in, 200, "POST", "/v1/groups/billing/renew", renewed)
	// a sends no more renewals and expires; both waiting sessions outlive it.
	l := <-first
	if l.Term != 2 || l.LeaderNodeID != "first" {
		t.Fatalf("after the expiry: %+v", l)
	}
	next := waiting("next", 0)
	if r := want[Resigned](in, 200, "POST", "/v1/groups/billing/resign", ResignRequest{NodeID: "first", Term: l.Term, Handle: l.Handle, Successor: "next"}); r.LeaderNodeID != "next" || r.Term != 3 {
		t.Fatalf("handed over: %+v", r)
	}
	n := <-next
	if n.Term != 3 || n.TTLMS != 2000 {
		t.Fatalf("the successor: %+v", n)
	}
	resign(in, n)
	if l := <-late; l.Term != 4 || l.HeldMS <= 0 {
		t.Fatalf("the last in line: %+v", l)
	}
}

// When a wait ends, the answer names the leader, and the caller is no longer a candidate.
func TestWaitEnds(t *testing.T) {
	store := memStore(t)
	in := serve(t, store)
	lead(in, "billing", "a")
	r := in.ask("POST", "/v1/groups/billing/campaign?wait=200ms", CampaignRequest{NodeID: "b", TTLMS: 1000})
	if r.status != 409 || r.code() != "not_leader" {
		t.Fatalf("%v", r)
	}
	if c := want[Candidates](in, 200, "GET", "/v1/groups/billing/candidates", nil); len(c.Candidates) != 1 || !c.Candidates[0].Leads {
		t.Errorf("candidates: %+v", c)
	}
	refused(in, 400, "bad_wait", "POST", "/v1/groups/billing/campaign?wait=1h", CampaignRequest{NodeID: "b"})
}

// One keep-alive renews all groups that a session leads; all these terms end with the session.
func TestSessions(t *testing.T) {
	store := memStore(t)
	in := serve(t, store)
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"shard-*", "extra"}, TTLMS: 3000})
	l := want[Leading](in, 200, "POST", "/v1/groups/extra/campaign", CampaignRequest{NodeID: "a", Session: s.Handle})
	if l.Handle != s.Handle || l.TTLMS != 3000 {
		t.Errorf("within the session: %+v", l)
	}
	refused(in, 409, "out_of_scope", "POST", "/v1/groups/foreign/campaign", CampaignRequest{NodeID: "a", Session: s.Handle})
	refused(in, 403, "not_your_session", "POST", "/v1/groups/extra2/campaign", CampaignRequest{NodeID: "b", Session: s.Handle})
	var groups []string
	for i := range 300 {
		groups = append(groups, "shard-"+string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	lead(in, groups[7], "other")
	b := want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: groups})
	if len(b.Led) != 299 || len(b.Refused) != 1 || b.Refused[0].LeaderNodeID != "other" {
		t.Errorf("led %d, refused %+v", len(b.Led), b.Refused)
	}
	other := serve(t, store)
	for _, i := range []*instance{in, other} {
		if beat := want[Beat](i, 200, "POST", "/v1/sessions/"+s.Handle+"/keepalive", nil); beat.TTLMS != 3000 {
			t.Errorf("beat: %+v", beat)
		}
	}
	eventually(t, "the feed knows all", func() bool { return len(other.svc.feed.Held(sessionOf(t, other, s.Handle))) == 300 })
	if c := want[Closed](other, 200, "DELETE", "/v1/sessions/"+s.Handle, nil); len(c.Groups) != 300 {
		t.Errorf("closed: %d groups", len(c.Groups))
	}
	refused(in, 409, "session_dead", "POST", "/v1/sessions/"+s.Handle+"/keepalive", nil)
	want[Closed](other, 200, "DELETE", "/v1/sessions/"+s.Handle, nil)
	refused(in, 404, "no_leader", "GET", "/v1/groups/extra/leader", nil)
}

// A batch that waits is answered as soon as it leads one of its groups.
func TestBatchWaits(t *testing.T) {
	in := serve(t, memStore(t))
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"g*"}, TTLMS: 10_000})
	one, two := lead(in, "g1", "b"), lead(in, "g2", "b")
	answer := make(chan Batch, 1)
	go func() {
		defer close(answer)
		r, err := in.try("POST", "/v1/sessions/"+s.Handle+"/campaign?wait=30s", BatchRequest{Groups: []string{"g1", "g2"}})
		if err != nil || r.status != 200 {
			t.Errorf("%v, %v", r, err)
			return
		}
		answer <- decode[Batch](t, r)
	}()
	eventually(t, "it stands in line", func() bool { return in.waiting("g2") == 1 })
	resign(in, two)
	if b := <-answer; len(b.Led) != 1 || b.Led[0].Group != "g2" || b.Led[0].Term != 2 || len(b.Refused) != 1 || b.Refused[0].Term != one.Term {
		t.Errorf("answer: %+v", b)
	}
}

// While the engine does not answer, no renewal is confirmed, and a read is answered from the
// cache only within the staleness that the caller allowed.
func TestNoQuorum(t *testing.T) {
	store := &countingStore{Store: memStore(t)}
	in := serve(t, store, func(c *Config) { c.CallTimeout = 200 * time.Millisecond })
	l := lead(in, "billing", "a")
	want[Leader](in, 200, "GET", "/v1/groups/billing/leader", nil)
	store.down.Store(true)
	for _, q := range []struct {
		method, path string
		body         any
	}{
		{"POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}},
		{"POST", "/v1/groups/billing/resign", ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}},
		{"POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "b"}},
		{"GET", "/v1/groups/billing/leader", nil},
	} {
		if r := refused(in, 503, "no_quorum", q.method, q.path, q.body); r.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", q.path)
		}
	}
	eventually(t, "the instance says that it is not well", func() bool { return in.ask("GET", "/healthz", nil).status == 503 })
	store.down.Store(false)
	eventually(t, "the instance is well again", func() bool { return in.ask("GET", "/healthz", nil).status == 200 })
	if m := string(in.ask("GET", "/metrics", nil).body); !contains(m, `tenure_renew_failures_total{reason="BACKEND_DOWN"} 1`) {
		t.Errorf("the failed renewal was not counted: %s", grep(m, "renew"))
	}
}

// Stale answers carry their age, are at most a quarter of the TTL old, and until then do not
// need the engine.
func TestStale(t *testing.T) {
	store := &countingStore{Store: memStore(t)}
	in := serve(t, store, func(c *Config) { c.TTL = 4 * time.Second; c.CallTimeout = 200 * time.Millisecond })
	lead(in, "billing", "a")
	fresh := want[Leader](in, 200, "GET", "/v1/groups/billing/leader", nil)
	if fresh.AgeMS != nil || fresh.LeaseRemainingMS == nil || *fresh.LeaseRemainingMS <= 0 || *fresh.LeaseRemainingMS > 4000 {
		t.Errorf("fresh: %+v", fresh)
	}
	store.down.Store(true)
	reads := store.reads.Load()
	if l := want[Leader](in, 200, "GET", "/v1/groups/billing/leader?stale=1h", nil); l.AgeMS == nil || *l.AgeMS > 1000 || l.LeaderNodeID != "a" {
		t.Errorf("stale: %+v", l)
	}
	if store.reads.Load() != reads {
		t.Error("a stale read asked the engine")
	}
	eventually(t, "it is too old", func() bool {
		return in.ask("GET", "/v1/groups/billing/leader?stale=1h", nil).status == 503
	})
	refused(in, 400, "bad_stale", "GET", "/v1/groups/billing/leader?stale=soon", nil)
}

// The leader's term is its ETag.
func TestETag(t *testing.T) {
	in := serve(t, memStore(t))
	lead(in, "billing", "a")
	if r := in.ask("GET", "/v1/groups/billing/leader", nil); r.header.Get("ETag") != `"1"` {
		t.Errorf("ETag: %v", r.header)
	}
	if r := in.ask("GET", "/v1/groups/billing/leader", nil, header{"If-None-Match": `"1"`}); r.status != 304 {
		t.Errorf("%v", r)
	}
}
