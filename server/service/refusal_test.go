package service

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/auth/limit"
	"github.com/tenurehq/tenure/server/httpapi"
)

// explained are the codes of docs/api.md.
func explained(t *testing.T) (codes []string) {
	t.Helper()
	text, err := os.ReadFile(apiDoc)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(between(t, string(text), "codes")) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				codes = append(codes, m[1])
			}
		}
	}
	return codes
}

// Every refusal is a problem with a status, a stable code that docs/api.md explains, and a
// detail. If another node leads, it names the leader and the term; if a retry can help, it
// says when. This test provokes each code that a caller can provoke.
func TestRefusals(t *testing.T) {
	all := &caller{name: "a", rules: everything()}
	b := &caller{name: "b", rules: []rule{{"", []auth.Verb{auth.Campaign, auth.Observe}}}}
	store := &countingStore{Store: memStore(t)}
	in, _ := limited(t, limit.Config{StreamsEach: 3, GroupsEach: 3, Candidates: 3, BodyBytes: 64 << 10, Rate: 10_000}, []*caller{all, b},
		func(c *Config) { c.Store, c.CallTimeout, c.Ledger = store, 300*time.Millisecond, "http://127.0.0.1:1" })
	group := func(name, rest string) string { return "/v1/groups/" + name + rest }
	campaign := func(node string) CampaignRequest { return CampaignRequest{NodeID: node} }
	l := want[Leading](in, 200, "POST", group("led", "/campaign"), CampaignRequest{NodeID: "a", Instance: instanceA}, all.auth())
	claim := RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}
	wide := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"led"}}, all.auth())
	want[Group](in, 201, "PUT", group("closed", ""), GroupPolicy{Members: []string{"x"}, MaxTTLMS: 5000}, all.auth())
	want[Group](in, 201, "PUT", group("gone", ""), nil, all.auth())
	want[Group](in, 200, "DELETE", group("gone", ""), nil, all.auth())
	if _, err := in.svc.operations().Cool(bound(t), "cooling", "a", time.Minute); err != nil {
		t.Fatal(err)
	}
	foreign := handle{"elsewhere", "s1", "led"}.String()
	dead := handle{"here", "s999", "led"}.String()

	seen := map[string]bool{}
	judge := func(path string, r reply) {
		t.Helper()
		var p struct {
			Title, Code, Detail, State string
			Leader                     string `json:"leader_node_id"`
			Status                     int
			Retryable                  *bool
			Term                       *uint64 `json:"term"`
		}
		if err := json.Unmarshal(r.body, &p); err != nil || r.header.Get("Content-Type") != httpapi.ContentTypeProblem {
			t.Errorf("%s: %v is no problem", path, r)
			return
		}
		seen[p.Code] = true
		if p.Status != r.status || p.Title == "" || p.Retryable == nil || len(p.Detail) < 15 || !slices.Contains(explained(t), p.Code) {
			t.Errorf("%s: %v", path, r)
		}
		if slices.Contains([]string{"not_leader", "node_id_in_use", "stale_term", "group_is_led"}, p.Code) && (p.Leader != "a" || p.Term == nil) {
			t.Errorf("%s: it does not say who leads: %v", path, r)
		}
		if (r.status == 429 || r.status == 503) && r.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After: %v", path, r)
		}
	}
	ask := func(c *caller, status int, code, method, path string, body any, headers ...header) {
		t.Helper()
		judge(path, refused(in, status, code, method, path, body, append(headers, c.auth())...))
	}
	ask(b, 409, "not_leader", "POST", group("led", "/campaign"), campaign("b"))
	ask(all, 409, "node_id_in_use", "POST", group("led", "/campaign"), campaign("a"))
	ask(all, 409, "instance_reused", "POST", group("led", "/campaign"), CampaignRequest{NodeID: "a", Instance: instanceA, Priority: 7})
	ask(all, 409, "not_leader", "POST", group("led", "/renew"), RenewRequest{NodeID: "a", Term: 99, Handle: l.Handle})
	ask(all, 404, "no_leader", "GET", group("empty", "/leader"), nil)
	ask(all, 409, "no_leader", "POST", group("empty", "/transfer?to=x"), nil)
	ask(all, 409, "session_dead", "POST", "/v1/sessions/"+dead+"/keepalive", nil)
	ask(all, 404, "unknown_group", "POST", group("gone", "/campaign"), campaign("a"))
	ask(all, 403, "not_a_member", "POST", group("closed", "/campaign"), campaign("a"))
	ask(all, 409, "cooling_down", "POST", group("cooling", "/campaign"), campaign("a"))
	want[Node](in, 200, "PUT", "/v1/nodes/b/cordon", nil, all.auth())
	ask(b, 409, "cordoned", "POST", group("empty", "/campaign"), campaign("b"))
	ask(all, 400, "ttl_out_of_bounds", "POST", group("empty", "/campaign"), CampaignRequest{NodeID: "a", TTLMS: 1 << 50})
	ask(all, 409, "no_successor", "POST", group("led", "/transfer?to=x"), nil)
	ask(all, 409, "out_of_scope", "POST", group("empty", "/campaign"), CampaignRequest{NodeID: "a", Session: wide.Handle})
	ask(all, 412, "stale_term", "POST", group("led", "/step-down"), nil, header{"If-Match": `"77"`})
	ask(all, 428, "term_required", "POST", group("led", "/step-down"), nil)
	ask(all, 412, "version_conflict", "PUT", group("closed", ""), nil, header{"If-Match": `"77"`})
	ask(all, 409, "group_is_led", "DELETE", group("led", ""), nil)
	ask(&caller{}, 401, "unauthenticated", "GET", group("led", "/leader"), nil)
	ask(b, 403, "denied", "DELETE", group("led", ""), nil)
	ask(b, 403, "not_your_node", "POST", group("led", "/renew"), claim)
	ask(b, 403, "not_your_session", "POST", group("led", "/renew"), RenewRequest{NodeID: "b", Term: l.Term, Handle: l.Handle})
	ask(all, 409, "other_deployment", "POST", group("led", "/renew"), RenewRequest{NodeID: "a", Term: l.Term, Handle: foreign})
	ask(all, 421, "other_deployment", "POST", "/v1/store/meta", "{}", header{"Tenure-Deployment": "elsewhere"})
	ask(all, 400, "bad_argument", "POST", group("led", "/renew"), RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle, ExtendByMS: -1})
	ask(all, 400, "missing_field", "POST", group("led", "/resign"), ResignRequest{NodeID: "a", Term: l.Term})
	ask(all, 400, "invalid_argument", "POST", "/v1/store/read", `{"group":"X"}`)
	ask(all, 409, "conflict", "POST", "/v1/store/set-attributes", `{"name":"group/led","version":99,"values":{"a":"b"}}`)
	ask(all, 404, "not_found", "POST", "/v1/store/answered", `{"session":"`+string(sessionOf(t, in, l.Handle))+`","request":"never"}`)
	ask(all, 400, "bad_name", "GET", group("X", "/leader"), nil)
	ask(all, 400, "no_group", "GET", "/v1/watch", nil)
	ask(all, 400, "bad_body", "POST", group("led", "/renew"), `{"x":1}`)
	ask(all, 413, "body_too_large", "POST", group("led", "/renew"), `{"node_id":"`+strings.Repeat("a", 70<<10)+`"}`)
	ask(all, 400, "bad_query", "GET", group("led", "/leader?x=1"), nil)
	ask(all, 400, "bad_wait", "POST", group("led", "/campaign?wait=soon"), campaign("a"))
	ask(all, 400, "bad_stale", "GET", group("led", "/leader?stale=x"), nil)
	ask(all, 400, "bad_page", "GET", "/v1/groups?limit=0", nil)
	ask(all, 400, "bad_cursor", "GET", group("led", "/watch?after=x"), nil)
	ask(all, 400, "bad_handle", "POST", "/v1/sessions/x/keepalive", nil)
	ask(all, 400, "bad_precondition", "PUT", group("closed", ""), nil, header{"If-Match": "x"})
	ask(all, 400, "bad_policy", "PUT", group("closed", ""), GroupPolicy{MinTTLMS: 9, MaxTTLMS: 8})
	ask(all, 404, "no_such_path", "GET", "/v1/x", nil)
	ask(all, 405, "no_such_method", "PATCH", group("led", ""), nil)
	for _, g := range []string{"led-2", "led-3"} {
		want[Leading](in, 200, "POST", group(g, "/campaign"), campaign("a"), all.auth())
	}
	eventually(t, "they are counted", func() bool { return in.svc.feed.Leads("a") == 3 })
	ask(all, 429, "quota_groups", "POST", group("empty", "/campaign"), campaign("a"))
	want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"led"}}, all.auth())
	ask(all, 429, "quota_candidates", "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"led"}})
	for range 3 {
		in.listen(group("led", "/watch"), "", all.auth())
	}
	ask(all, 429, "too_many_streams", "GET", group("led", "/watch"), nil)
	ask(all, 503, "ledger_unreachable", "GET", "/v1/rejections", nil)
	store.down.Store(true)
	ask(all, 503, "no_quorum", "POST", group("led", "/renew"), claim)
	ask(all, 503, "unavailable", "POST", "/v1/store/keepalive", `{"session":"`+string(sessionOf(t, in, l.Handle))+`"}`, header{"Tenure-Timeout-Ms": "300"})
	store.down.Store(false)
	store.newer.Store(true)
	ask(all, 503, "newer_format", "POST", group("led", "/renew"), claim)
	store.newer.Store(false)

	// Other tests check these, or a test cannot provoke them.
	elsewhere := []string{
		"rewound", "cursor_too_old", "busy", "too_many_requests", "too_many_failures",
		"stopping", "body_incomplete", "internal", "outcome_unknown", "not_registered", "no_ledger",
	}
	for _, code := range explained(t) {
		if !seen[code] && !slices.Contains(elsewhere, code) {
			t.Errorf("%s is explained, and was not brought about", code)
		}
	}
}
