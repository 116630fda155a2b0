package service

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// The short forms of a campaign and a renewal work, with a TTL as a Go duration, as seconds
// or as milliseconds, under /v1 and without it.
func TestShortForms(t *testing.T) {
	in := serve(t, memStore(t))
	for i, ttl := range []string{`"ttl":"4s"`, `"ttl":4`, `"ttl":4.0`, `"ttl_ms":4000`, `"ttl":"4000ms","ttl_ms":4000`} {
		group := fmt.Sprintf("/groups/g%d", i)
		l := want[Leading](in, 200, "POST", group+"/campaign", `{"node_id":"a",`+ttl+`}`)
		if l.TTLMS != 4000 {
			t.Errorf("%s: a TTL of %d ms", ttl, l.TTLMS)
		}
		r := want[Renewed](in, 200, "POST", "/v1"+group+"/renew", fmt.Sprintf(`{"node_id":"a","term":%d,"extend_by":"4s"}`, l.Term))
		if r.Term != l.Term || r.ExtendedByMS != 4000 || r.GroupsExtended != 1 {
			t.Errorf("renewed: %+v", r)
		}
	}
	s := want[Session](in, 201, "POST", "/sessions", `{"node_id":"a","groups":["x"],"ttl":"4s"}`)
	if s.TTLMS != 4000 {
		t.Errorf("%+v", s)
	}
	for body, said := range map[string]string{
		`{"node_id":"a","ttl":"4"}`:                `ttl: want a duration such as "15s", or a number of seconds`,
		`{"node_id":"a","ttl":true}`:               `ttl: want a duration such as "15s", or a number of seconds`,
		`{"node_id":"a","ttl":1e300}`:              `ttl: want a duration such as "15s", or a number of seconds`,
		`{"node_id":"a","ttl":"500us"}`:            `whole milliseconds`,
		`{"node_id":"a","ttl":"4s","ttl_ms":5000}`: `ttl and ttl_ms differ`,
		`{"node_id":"a","tll":"4s"}`:               `did you mean "ttl"?`,
		`{"node_id":"a","node_id":"b"}`:            `field "node_id" is there twice`,
		`{"ttl":"4s"}`:                             `node_id: missing`,
	} {
		r := in.ask("POST", "/groups/other/campaign", body)
		if r.status != 400 || !strings.Contains(detail(r), said) {
			t.Errorf("%s: %v, want %s", body, r, said)
		}
	}
	refused(in, 400, "ttl_out_of_bounds", "POST", "/groups/other/campaign", `{"node_id":"a","ttl":"-4s"}`)
	refused(in, 400, "ttl_out_of_bounds", "POST", "/groups/other/campaign", `{"node_id":"a","ttl":"90m"}`)
}

func detail(r reply) string {
	var p struct{ Detail string }
	_ = json.Unmarshal(r.body, &p)
	return p.Detail
}

// A renewal without a handle applies only to the term that it names, and only if that node leads in it. Resigning needs
// the handle, because a mistake would let another node lead at once.
func TestWithoutHandle(t *testing.T) {
	in := serve(t, memStore(t))
	l := lead(in, "billing", "a")
	want[Renewed](in, 200, "POST", "/groups/billing/renew", RenewRequest{NodeID: "a", Term: l.Term})
	refused(in, 409, "not_leader", "POST", "/groups/billing/renew", RenewRequest{NodeID: "a", Term: l.Term + 1})
	refused(in, 409, "not_leader", "POST", "/groups/billing/renew", RenewRequest{NodeID: "b", Term: l.Term})
	refused(in, 409, "not_leader", "POST", "/groups/empty/renew", RenewRequest{NodeID: "a", Term: l.Term})
	for name, path := range map[string]string{"handle": "resign", "term": "renew", "node_id": "renew"} {
		body := map[string]any{"node_id": "a", "term": l.Term, "handle": l.Handle}
		delete(body, name)
		if r := refused(in, 400, "missing_field", "POST", "/groups/billing/"+path, body); !strings.Contains(detail(r), name+": missing") {
			t.Errorf("without %s: %v", name, r)
		}
	}
	refused(in, 400, "bad_handle", "POST", "/groups/billing/resign", ResignRequest{NodeID: "a", Term: l.Term, Handle: "x"})
	if now := want[Leader](in, 200, "GET", "/groups/billing/leader", nil); now.Term != l.Term {
		t.Errorf("%+v", now)
	}
	resign(in, l)
	refused(in, 409, "not_leader", "POST", "/groups/billing/renew", RenewRequest{NodeID: "a", Term: l.Term})
}

// extend_by is granted as the TTL of the session, which is fixed when the session is opened, and the answer says so. It
// extends the whole session, and the answer has the number of groups.
func TestExtendBy(t *testing.T) {
	in := serve(t, memStore(t))
	s := want[Session](in, 201, "POST", "/sessions", SessionRequest{NodeID: "a", Groups: []string{"*"}, TTLMS: 60_000})
	b := want[Batch](in, 200, "POST", "/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"g1", "g2", "g3"}})
	eventually(t, "the feed has seen them", func() bool { return in.svc.feed.Leads("a") == 3 })
	const granted = 60_000
	for _, by := range []string{`"1m"`, `"1s"`, `"1h"`, `3600`} {
		r := want[Renewed](in, 200, "POST", "/groups/g1/renew", fmt.Sprintf(`{"node_id":"a","term":%d,"extend_by":%s}`, b.Led[0].Term, by))
		if r.ExtendedByMS != granted || r.TTLMS != granted || r.GroupsExtended != 3 {
			t.Errorf("extend_by %s: %+v", by, r)
		}
	}
	if r := want[Renewed](in, 200, "POST", "/groups/g1/renew", RenewRequest{NodeID: "a", Term: b.Led[0].Term, Handle: s.Handle}); r.ExtendedByMS != 0 || r.GroupsExtended != 0 {
		t.Errorf("without extend_by: %+v", r)
	}
	refused(in, 400, "bad_argument", "POST", "/groups/g1/renew", fmt.Sprintf(`{"node_id":"a","term":%d,"extend_by":"-1s"}`, b.Led[0].Term))
	refused(in, 400, "bad_argument", "POST", "/groups/g1/renew", fmt.Sprintf(`{"node_id":"a","term":%d,"extend_by":"1s","extend_by_ms":2}`, b.Led[0].Term))
}

// extend_by extends the lease only as far as the answer says: the next candidate leads after
// the TTL, and then the former leader cannot extend its term.
func TestExtendByEnds(t *testing.T) {
	t.Parallel()
	in := serve(t, memStore(t))
	l := want[Leading](in, 200, "POST", "/groups/billing/campaign", CampaignRequest{NodeID: "a", TTLMS: 3000})
	extend := fmt.Sprintf(`{"node_id":"a","term":%d,"extend_by":"1h"}`, l.Term)
	r := want[Renewed](in, 200, "POST", "/groups/billing/renew", extend)
	if end, err := time.Parse(time.RFC3339Nano, r.Expiry); err != nil || r.ExtendedByMS != 3000 || time.Until(end) > 3*time.Second {
		t.Errorf("%+v: %v", r, err)
	}
	next := want[Leading](in, 200, "POST", "/groups/billing/campaign?wait=30s", CampaignRequest{NodeID: "b", TTLMS: 60_000})
	if next.Term <= l.Term {
		t.Errorf("term %v after %v", next.Term, l.Term)
	}
	refused(in, 409, "not_leader", "POST", "/groups/billing/renew", extend)
	if now := want[Leader](in, 200, "GET", "/groups/billing/leader", nil); now.LeaderNodeID != "b" || now.Term != next.Term {
		t.Errorf("%+v", now)
	}
}

// Every answer to or about a leader has an expiry: a wall-clock time that moves with renewals
// and is never later than the TTL allows.
func TestExpiry(t *testing.T) {
	store := memStore(t)
	in, other := serve(t, store), serve(t, store)
	fits := func(what, expiry string, from time.Time, ttl time.Duration) {
		t.Helper()
		at, err := time.Parse(time.RFC3339, expiry)
		// The expiry is rounded to milliseconds.
		if err != nil || at.Before(from.Add(-time.Millisecond)) || at.After(time.Now().Add(ttl)) {
			t.Errorf("%s: %q (%v) is not within %v from %v", what, expiry, err, ttl, from)
		}
	}
	const ttl = 9 * time.Second
	from := time.Now().Add(ttl)
	l := want[Leading](in, 200, "POST", "/groups/billing/campaign", `{"node_id":"a","ttl":"9s"}`)
	fits("campaign", l.Expiry, from, ttl)
	fits("leader", want[Leader](in, 200, "GET", "/groups/billing/leader", nil).Expiry, from, ttl)
	fits("leader, stale", want[Leader](in, 200, "GET", "/groups/billing/leader?stale=1s", nil).Expiry, from, ttl)
	fits("leader elsewhere", want[Leader](other, 200, "GET", "/groups/billing/leader", nil).Expiry, from, ttl)
	from = time.Now().Add(ttl)
	fits("renew", want[Renewed](in, 200, "POST", "/groups/billing/renew", RenewRequest{NodeID: "a", Term: l.Term}).Expiry, from, ttl)
	s := want[Session](in, 201, "POST", "/sessions", `{"node_id":"a","groups":["*"],"ttl":"9s"}`)
	from = time.Now().Add(ttl)
	fits("keep-alive", want[Beat](in, 200, "POST", "/sessions/"+s.Handle+"/keepalive", nil).Expiry, from, ttl)
	fits("batch", want[Batch](in, 200, "POST", "/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"g1"}}).Expiry, from, ttl)
}

// Answers, events and refusals always use the same field names for the term and the leader.
func TestVocabulary(t *testing.T) {
	in := serve(t, memStore(t))
	schemas := in.doc["components"].(object)["schemas"].(object)
	for name, schema := range schemas {
		properties, _ := schema.(object)["properties"].(object)
		for p := range properties {
			if slices.Contains(otherNames, p) {
				t.Errorf("%s has a member %s", name, p)
			}
		}
	}
	l := lead(in, "billing", "a")
	for path, members := range map[string][]string{
		"/groups/billing/leader":        {`"term":1`, `"leader_node_id":"a"`},
		"/groups/billing/watch?wait=1s": {`"term":1`, `"leader_node_id":"a"`},
		"/groups/billing/history":       {`"term":1`, `"leader_node_id":"a"`},
		"/groups/billing":               {`"term":1`, `"leader_node_id":"a"`},
		"/groups":                       {`"term":1`, `"leader_node_id":"a"`},
	} {
		text := string(in.ask("GET", path, nil).body)
		for _, m := range members {
			if !strings.Contains(text, m) {
				t.Errorf("%s: %s has no %s", path, text, m)
			}
		}
	}
	r := refused(in, 409, "node_id_in_use", "POST", "/groups/billing/campaign", CampaignRequest{NodeID: "a"})
	if !strings.Contains(string(r.body), `"term":1`) || !strings.Contains(string(r.body), `"leader_node_id":"a"`) {
		t.Errorf("%v", r)
	}
	resign(in, l)
}

// otherNames are field names for a term and a leader that the API does not use.
var otherNames = []string{"token", "holder", "leader", "leader_id", "current_token"}

// goWords matches errors that were written for Go programmers.
var goWords = regexp.MustCompile(`(^|: )(json|lease|service|steer|access|feed|fence|http|context|tenure|strconv|time|mem|etcd|kv): |\bGo (value|struct)|\b[a-z]+\.[A-Z]\w+|\bu?int(8|16|32|64)\b|context deadline|<nil>`)

// checkWording checks the wording of a refusal. It checks every refusal in these tests except those
// of the store's routes, which are for Go programs.
func checkWording(t testing.TB, what string, r reply) {
	t.Helper()
	var p object
	if r.status < 400 || strings.Contains(what, "/store/") || json.Unmarshal(r.body, &p) != nil {
		return
	}
	for name := range p {
		if slices.Contains(otherNames, name) {
			t.Errorf("%s: %v has a member %s", what, r, name)
		}
	}
	if d, _ := p["detail"].(string); goWords.MatchString(d) {
		t.Errorf("%s: %q is not for users of HTTP: %q", what, d, goWords.FindString(d))
	}
}

// A field with a value of the wrong type is refused in plain words, for each field of each body.
func TestWrongTypes(t *testing.T) {
	in := serve(t, memStore(t))
	schemas := in.doc["components"].(object)["schemas"].(object)
	tried := 0
	for _, r := range in.svc.Routes() {
		if r.Doc.In == nil || strings.HasPrefix(r.Path, "/store/") {
			continue
		}
		name := fmt.Sprintf("%T", r.Doc.In)
		schema, _ := schemas[name[strings.LastIndexByte(name, '.')+1:]].(object)
		path := strings.NewReplacer("{group}", "g", "{node}", "n", "{handle}", handle{"here", "s1", "g"}.String()).Replace(r.Path)
		for field := range schema["properties"].(object) {
			for _, value := range []string{`"x\u0000"`, `[{}]`, `{"a":[1]}`, `-1.5`, `1e99`, `true`} {
				tried++
				body := `{"` + field + `":` + value + `}`
				if got := in.ask(r.Method, path, body); got.status >= 500 {
					t.Errorf("%s %s %s: %v", r.Method, path, body, got)
				}
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d were tried", tried)
	}
}

// Candidates that lose at the same time get different retry times, none earlier than the
// policy says.
func TestRetryIsJittered(t *testing.T) {
	in := serve(t, memStore(t))
	want[Group](in, 201, "PUT", "/groups/billing", GroupPolicy{BackoffMS: 10_000})
	lead(in, "billing", "a")
	seen := map[int64]bool{}
	for range 20 {
		l := want[struct {
			RetryAfterMS int64 `json:"retry_after_ms"`
		}](in, 409, "POST", "/groups/billing/campaign", CampaignRequest{NodeID: "b"})
		if l.RetryAfterMS < 10_000 || l.RetryAfterMS > 15_000 {
			t.Errorf("%d ms", l.RetryAfterMS)
		}
		seen[l.RetryAfterMS] = true
	}
	if len(seen) < 5 {
		t.Errorf("20 candidates got %v", seen)
	}
}

// ahead is a clock that can be advanced.
type ahead struct{ by atomic.Int64 }

func (c *ahead) Now() clock.Instant {
	return clock.System().Now().Add(time.Duration(c.by.Load()))
}
func (c *ahead) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }

// A client adds held_ms to a time of its own clock, so held_ms is the elapsed time of the
// service's clock, reduced by the allowed drift.
func TestHeldIsReducedByDrift(t *testing.T) {
	c := &ahead{}
	store := &countingStore{Store: memStore(t)}
	in := serve(t, store, func(cfg *Config) { cfg.Clock, cfg.Drift, cfg.TTL = c, 0.4, time.Minute })
	l := lead(in, "billing", "a")
	begin := c.Now()
	won := make(chan reply, 1)
	go func() {
		r, err := in.try("POST", "/groups/billing/campaign?wait=20s", CampaignRequest{NodeID: "b", TTLMS: 4000})
		if err != nil {
			t.Error(err)
		}
		won <- r
	}()
	eventually(t, "b waits", func() bool {
		return strings.Contains(string(in.ask("GET", "/groups/billing/candidates", nil).body), `"b"`)
	})
	c.by.Add(int64(2 * time.Second))
	before := store.beats.Load()
	// The first keep-alive may have been sent earlier.
	eventually(t, "b is kept alive", func() bool { return store.beats.Load() >= before+2 })
	want[Resigned](in, 200, "POST", "/groups/billing/resign", ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle, Successor: "b"})
	r := <-won
	var b Leading
	if err := json.Unmarshal(r.body, &b); err != nil || r.status != 200 {
		t.Fatalf("%v, %v", r, err)
	}
	passed := c.Now().Sub(begin).Milliseconds()
	if b.HeldMS > passed*6/10 || b.HeldMS < 2000*6/10 {
		t.Errorf("held for %d ms of %d", b.HeldMS, passed)
	}
}

// A long poll without a cursor returns the current state and a cursor at once. A poll with
// that cursor returns the next change and nothing older.
func TestFirstCursor(t *testing.T) {
	in := serve(t, memStore(t))
	l := lead(in, "billing", "a")
	eventually(t, "the feed has seen it", func() bool { v, synced := in.svc.feed.View("billing"); return synced && v.Token == l.Term })
	first := want[Poll](in, 200, "GET", "/groups/billing/watch?wait=0s", nil)
	if len(first.Events) != 1 || !first.Events[0].Snapshot || first.Events[0].Token != l.Term || first.Cursor == "" {
		t.Fatalf("%+v", first)
	}
	resign(in, l)
	next := want[Poll](in, 200, "GET", "/groups/billing/watch?wait=20s&after="+url.QueryEscape(first.Cursor), nil)
	if len(next.Events) != 1 || next.Events[0].State != "vacant" || next.Events[0].Snapshot {
		t.Errorf("%+v", next)
	}
}
