package service

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/openapi"
	"github.com/tenurehq/tenure/server/service/metrics"
)

type parameter = openapi.Parameter

// The served OpenAPI document describes exactly the routes of the table, with parameters,
// verbs and schemas that exist.
func TestDocument(t *testing.T) {
	in := serve(t, memStore(t))
	doc := want[object](in, 200, "GET", "/openapi.json", nil)
	if doc["openapi"] != "3.1.0" {
		t.Errorf("openapi: %v", doc["openapi"])
	}
	described := map[string]object{}
	ids := map[string]bool{}
	for path, ops := range doc["paths"].(object) {
		for method, op := range ops.(object) {
			o := op.(object)
			described[strings.ToUpper(method)+" "+path] = o
			if id := o["operationId"].(string); ids[id] {
				t.Errorf("operation id %s is there twice", id)
			} else {
				ids[id] = true
			}
		}
	}
	for _, r := range in.svc.Routes() {
		key := r.Method + " /v1" + r.Path
		op := described[key]
		if op == nil {
			t.Errorf("%s is not described", key)
			continue
		}
		delete(described, key)
		if op["x-tenure-verb"] != string(r.Verb) {
			t.Errorf("%s: verb %v, want %s", key, op["x-tenure-verb"], r.Verb)
		}
		if n := strings.Count(r.Path, "{"); n > 0 && len(op["parameters"].([]any)) < n {
			t.Errorf("%s: its path has %d parameters", key, n)
		}
	}
	for key := range described {
		t.Errorf("%s is described and not served", key)
	}
	schemas := doc["components"].(object)["schemas"].(object)
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(string(text), `"$ref":"#/components/schemas/`) {
		if name, _, ok := strings.Cut(part, `"`); ok && !strings.HasPrefix(part, "{") && schemas[name] == nil {
			t.Errorf("schema %s is not there", name)
		}
	}
}

// The conformity check that all tests use reports undescribed statuses and members that are
// missing, wrong or not described.
func TestConformityCheckFails(t *testing.T) {
	doc := document(t, serve(t, memStore(t)).svc)
	good := `{"handle":"h","node_id":"a","groups":[],"ttl_ms":1,"deployment":"d"}`
	schema := object{"$ref": "#/components/schemas/Session"}
	for body, ok := range map[string]bool{
		good: true,
		strings.Replace(good, `"ttl_ms":1`, `"ttl_ms":"1"`, 1):   false,
		strings.Replace(good, `"ttl_ms":1`, `"ttl_ms":1.5`, 1):   false,
		strings.Replace(good, `"groups":[]`, `"groups":null`, 1): false,
		strings.Replace(good, `"groups":[]`, `"groups":[1]`, 1):  false,
		strings.Replace(good, `"handle":"h",`, ``, 1):            false,
		strings.Replace(good, `{`, `{"more":1,`, 1):              false,
	} {
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		if wrong := check(doc, schema, v, "$"); (len(wrong) == 0) != ok {
			t.Errorf("%s: %v", body, wrong)
		}
	}
	if operation(doc, "POST", "/v1/groups/x/campaign")["responses"].(object)["410"] != nil {
		t.Error("campaign is said to answer 410")
	}
}

// A route that is not in the table is not served, and an unknown parameter is refused.
func TestStrict(t *testing.T) {
	in := serve(t, memStore(t))
	refused(in, 404, "no_such_path", "GET", "/v1/nothing", nil)
	refused(in, 405, "no_such_method", "PATCH", "/v1/groups/a", nil)
	refused(in, 400, "bad_query", "GET", "/v1/groups/a/leader?stael=1s", nil)
	refused(in, 400, "bad_query", "GET", "/v1/groups/a/leader?stale=1s&stale=2s", nil)
	refused(in, 400, "bad_body", "POST", "/v1/groups/a/campaign", `{"node_id":"a","tll_ms":1}`)
	refused(in, 400, "bad_name", "POST", "/v1/groups/A/campaign", CampaignRequest{NodeID: "a"})
	refused(in, 400, "bad_argument", "POST", "/v1/groups/a/campaign", CampaignRequest{NodeID: "../a"})
	refused(in, 413, "body_too_large", "POST", "/v1/groups/a/campaign", `{"node_id":"`+strings.Repeat("a", 200<<10)+`"}`)
	refused(in, 400, "bad_argument", "POST", "/v1/groups/a/campaign", CampaignRequest{NodeID: "a", Metadata: map[string]string{"k": strings.Repeat("v", 5000)}})
}

// The documented metrics exist, and their number does not grow with the number of groups.
func TestMetrics(t *testing.T) {
	in := serve(t, memStore(t))
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"*"}})
	var groups []string
	for i := range metrics.Labelled + 100 {
		groups = append(groups, "g"+strings.Repeat("x", i/26)+string(rune('a'+i%26)))
	}
	want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: groups})
	resign(in, lead(in, "billing", "a"))
	eventually(t, "the vacancy is seen", func() bool {
		v, _ := in.svc.feed.View("billing")
		return v.Token == 1 && v.State == tenure.Vacant
	})
	b := lead(in, "billing", "b")
	refused(in, 409, "not_leader", "POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "b", Term: 9, Handle: b.Handle})
	var text string
	eventually(t, "the change is counted", func() bool {
		text = string(in.ask("GET", "/metrics", nil).body)
		return contains(text, "tenure_time_to_elect_seconds_count 1")
	})
	for _, name := range []string{
		`tenure_leader_changes_total{group="other"}`, `tenure_renew_failures_total{reason="BACKEND_DOWN"} 0`, `tenure_renew_failures_total{reason="NOT_LEADER"} 1`, "tenure_split_brain_detected_total 0",
		"tenure_store_quorum_health 1", "tenure_groups_without_leader 0", "tenure_streams 0", `tenure_denials_total{reason="denied"} 0`,
		`tenure_request_seconds_count{code="200",route="POST /groups/{group}/campaign"}`,
	} {
		if !contains(text, name) {
			t.Errorf("%s is missing", name)
		}
	}
	if n := strings.Count(text, "tenure_leader_changes_total{"); n > metrics.Labelled+1 {
		t.Errorf("%d labels", n)
	}
}

// Each metric changes when the event that it counts happens.
func TestMetricsMove(t *testing.T) {
	a := &caller{name: "a", rules: everything()}
	nobody := &caller{name: "nobody"}
	store := &countingStore{Store: memStore(t)}
	in, _ := gated(t, []*caller{a, nobody}, func(c *Config) { c.Store, c.CallTimeout = store, 200*time.Millisecond })
	reads := func(name, value string) bool {
		text := string(in.ask("GET", "/metrics", nil, a.auth()).body)
		return strings.Contains("\n"+text, "\n"+name+" "+value+"\n")
	}
	becomes := func(name, value string) {
		t.Helper()
		eventually(t, name+" becomes "+value, func() bool { return reads(name, value) })
	}
	becomes("tenure_groups_without_leader", "0")
	l := want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a"}, a.auth())
	becomes(`tenure_leader_changes_total{group="billing"}`, "1")
	becomes("tenure_groups", "1")
	claim := RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}
	want[Renewed](in, 200, "POST", "/v1/groups/billing/renew", claim, a.auth())
	becomes(`tenure_request_seconds_count{code="200",route="POST /groups/{group}/renew"}`, "1")
	listener := in.listen("/v1/groups/billing/watch", "", a.auth())
	listener.expect("billing", "led", 1)
	becomes("tenure_streams", "1")
	listener.close()
	becomes("tenure_streams", "0")
	refused(in, 403, "denied", "GET", "/v1/groups/billing/leader", nil, nobody.auth())
	becomes(`tenure_denials_total{reason="denied"}`, "1")
	refused(in, 401, "unauthenticated", "GET", "/v1/groups/billing/leader", nil)
	becomes(`tenure_denials_total{reason="unauthenticated"}`, "1")
	refused(in, 409, "not_leader", "POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "a", Term: 9, Handle: l.Handle}, a.auth())
	becomes(`tenure_renew_failures_total{reason="NOT_LEADER"}`, "1")
	becomes("tenure_store_quorum_health", "1")
	store.down.Store(true)
	refused(in, 503, "no_quorum", "POST", "/v1/groups/billing/renew", claim, a.auth())
	becomes("tenure_store_quorum_health", "0")
	becomes(`tenure_renew_failures_total{reason="BACKEND_DOWN"}`, "1")
	store.down.Store(false)
	becomes("tenure_store_quorum_health", "1")
	want[Resigned](in, 200, "POST", "/v1/groups/billing/resign", ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, a.auth())
	becomes("tenure_groups_without_leader", "1")
	becomes("tenure_time_to_elect_seconds_count", "0")
	want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a"}, a.auth())
	becomes("tenure_groups_without_leader", "0")
	becomes("tenure_time_to_elect_seconds_count", "1")
	becomes(`tenure_leader_changes_total{group="billing"}`, "2")
}

// Without a tracer, handlers are not wrapped.
func TestNoTracer(t *testing.T) {
	in := serve(t, memStore(t))
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	if got := in.svc.spans.Request("GET", "/groups", handler); reflect.ValueOf(got).Pointer() != reflect.ValueOf(handler).Pointer() {
		t.Error("something is")
	}
}
