package service

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/auth/limit"
)

type rule struct {
	Prefix string      `json:"prefix"`
	Verbs  []auth.Verb `json:"verbs"`
}

// caller is a client with a credential and one role.
type caller struct {
	name  string
	rules []rule
	token string
}

// gated starts an instance that knows the callers, and sets their credentials.
func gated(t *testing.T, callers []*caller, change ...func(*Config)) (*instance, string) {
	t.Helper()
	return limited(t, limit.Config{Rate: 100_000, RenewRate: 100_000, FailRate: 100_000}, callers, change...)
}

// limited is gated with other quotas.
func limited(t *testing.T, limits limit.Config, callers []*caller, change ...func(*Config)) (*instance, string) {
	t.Helper()
	dir := t.TempDir()
	type line struct {
		Name   string `json:"name"`
		SHA256 string `json:"sha256"`
	}
	var lines []line
	roles, names := map[string][]rule{}, map[string][]string{}
	for _, c := range callers {
		token, sum := bearer.NewCredential()
		c.token = token
		lines = append(lines, line{c.name, sum})
		roles["role-"+c.name], names[c.name] = c.rules, []string{"role-" + c.name}
		if c.rules == nil {
			roles["role-"+c.name] = []rule{}
		}
	}
	write := func(name string, v any) string {
		t.Helper()
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	auditPath := filepath.Join(dir, "audit.jsonl")
	gate, err := auth.New(auth.Config{
		Listen:      "127.0.0.1:0",
		Credentials: write("credentials.json", map[string]any{"credentials": lines}),
		Policy:      write("policy.json", map[string]any{"roles": roles, "names": names}),
		Audit:       audit.File{Path: auditPath},
		Limits:      limits,
	})
	if err != nil {
		t.Fatal(err)
	}
	in := serve(t, memStore(t), append([]func(*Config){func(c *Config) { c.Gate = gate }}, change...)...)
	t.Cleanup(func() { in.stop(); gate.Close() })
	return in, auditPath
}

func (c *caller) auth() header {
	if c.token == "" {
		return header{}
	}
	return header{"Authorization": "Bearer " + c.token}
}

func (c *caller) has(verb auth.Verb, group string) bool {
	for _, r := range c.rules {
		fits := group == auth.SomeGroup || strings.HasPrefix(group, r.Prefix)
		if group == auth.AllGroups {
			fits = r.Prefix == ""
		}
		if fits && slices.Contains(r.Verbs, verb) {
			return true
		}
	}
	return false
}

// requiredVerb returns what a route requires for a group. It repeats the table of routes, so that a
// mistake in the table is found.
func requiredVerb(r Route, group string) (auth.Verb, string) {
	switch {
	case r.Path == "/healthz" || r.Path == "/openapi.json":
		return auth.Open, ""
	case r.Path == "/metrics":
		return auth.Observe, auth.AllGroups
	case strings.HasPrefix(r.Path, "/nodes/"):
		if r.Method == "GET" {
			return auth.Observe, auth.AllGroups
		}
		return auth.Admin, auth.AllGroups
	case strings.HasPrefix(r.Path, "/sessions"):
		return auth.Campaign, auth.SomeGroup
	case slices.Contains([]string{"/groups", "/overview", "/leases", "/whoami", "/rejections"}, r.Path):
		return auth.Observe, auth.SomeGroup
	case r.Path == "/groups/{group}" && r.Method != "GET":
		return auth.Admin, group
	case slices.Contains([]string{"/groups/{group}/campaign", "/groups/{group}/renew", "/groups/{group}/resign"}, r.Path):
		return auth.Campaign, group
	case r.Path == "/groups/{group}/step-down" || r.Path == "/groups/{group}/transfer":
		return auth.StepDown, group
	case r.Path == "/store/raise-epoch":
		return auth.Admin, auth.AllGroups
	case strings.HasPrefix(r.Path, "/store/"):
		verb, ok := map[string]auth.Verb{
			"open": auth.Campaign, "keepalive": auth.Campaign, "close": auth.Campaign, "acquire": auth.Campaign, "release": auth.Campaign, "answer": auth.Campaign, "suspect": auth.Campaign,
			"ask": auth.StepDown, "answered": auth.StepDown, "set-attributes": auth.Admin,
		}[strings.TrimPrefix(r.Path, "/store/")]
		if !ok {
			verb = auth.Observe
		}
		return verb, auth.SomeGroup
	}
	return auth.Observe, group
}

// alternativeVerbs returns the verbs that a route accepts instead. It repeats the table too.
func alternativeVerbs(r Route) []auth.Verb {
	if r.Path == "/store/set-attributes" {
		return []auth.Verb{auth.Campaign}
	}
	if r.Path == "/whoami" {
		return []auth.Verb{auth.Campaign, auth.StepDown, auth.Admin}
	}
	return nil
}

// Every route serves callers whose role has its verb on the group, and nobody else. A caller
// without credentials gets only the open routes.
func TestRoutesAndRoles(t *testing.T) {
	callers := []*caller{{name: "stranger"}, {name: "nobody"}}
	for _, verb := range auth.Verbs() {
		callers = append(callers,
			&caller{name: "mine-" + string(verb), rules: []rule{{"mine-", []auth.Verb{verb}}}},
			&caller{name: "all-" + string(verb), rules: []rule{{"", []auth.Verb{verb}}}})
	}
	in, _ := gated(t, callers)
	callers[0].token = "" // sends no credential
	seen := 0
	for _, route := range in.svc.Routes() {
		if route.Verb == "" {
			t.Errorf("%s %s has no verb", route.Method, route.Path)
		}
		for _, group := range []string{"mine-1", "theirs"} {
			path := strings.NewReplacer("{group}", group, "{set}", group, "{handle}", handle{"here", "s1", "*"}.String(), "{node}", "n").Replace(route.Path)
			switch {
			case path == "/watch":
				path += "?wait=1ms&group=" + group
			case slices.ContainsFunc(route.Doc.Query, func(q parameter) bool { return q.Name == "wait" }):
				path += "?wait=1ms"
			}
			verb, on := requiredVerb(route, group)
			if verb != route.Verb || !slices.Equal(alternativeVerbs(route), route.Or) {
				t.Errorf("%s %s has the verb %s, want %s", route.Method, route.Path, route.Verb, verb)
			}
			for _, c := range callers {
				seen++
				var body any
				if route.Method == "POST" || route.Method == "PUT" {
					body = "{}"
				}
				r := in.ask(route.Method, "/v1"+path, body, c.auth())
				switch {
				case verb == auth.Open:
					if r.status != 200 {
						t.Errorf("%s %s for %s: %v", route.Method, path, c.name, r)
					}
				case c.token == "":
					if r.status != 401 {
						t.Errorf("%s %s for %s: %v, want 401", route.Method, path, c.name, r)
					}
				case c.has(verb, on), slices.ContainsFunc(route.Or, func(v auth.Verb) bool { return c.has(v, on) }):
					if r.status == 401 || r.code() == "denied" || r.status >= 500 {
						t.Errorf("%s %s for %s: %v, want it served", route.Method, path, c.name, r)
					}
				default:
					if r.status != 403 || r.code() != "denied" {
						t.Errorf("%s %s for %s: %v, want it denied", route.Method, path, c.name, r)
					}
				}
			}
		}
	}
	t.Logf("%d routes, %d requests", len(in.svc.Routes()), seen)
}

// No node can act for another: not with its node id, not with its handle, and not for groups
// outside its prefix through a session.
func TestNobodySpeaksForAnother(t *testing.T) {
	both := []auth.Verb{auth.Campaign, auth.Observe}
	a := &caller{name: "a", rules: []rule{{"mine-", both}}}
	b := &caller{name: "b", rules: []rule{{"mine-", both}}}
	in, auditPath := gated(t, []*caller{a, b})
	const path = "/v1/groups/mine-1/"
	l := want[Leading](in, 200, "POST", path+"campaign", CampaignRequest{NodeID: "a"}, a.auth())
	refused(in, 403, "not_your_node", "POST", path+"campaign", CampaignRequest{NodeID: "a"}, b.auth())
	refused(in, 403, "not_your_node", "POST", path+"renew", RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, b.auth())
	refused(in, 403, "not_your_node", "POST", path+"resign", ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, b.auth())
	refused(in, 403, "not_your_session", "POST", path+"renew", RenewRequest{NodeID: "b", Term: l.Term, Handle: l.Handle}, b.auth())
	refused(in, 409, "not_leader", "POST", path+"resign", ResignRequest{NodeID: "b", Term: l.Term, Handle: l.Handle}, b.auth())
	refused(in, 403, "not_your_node", "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"mine-*"}}, b.auth())
	refused(in, 403, "denied", "POST", "/v1/sessions", SessionRequest{NodeID: "b", Groups: []string{"*"}}, b.auth())
	refused(in, 403, "denied", "POST", "/v1/sessions", SessionRequest{NodeID: "b", Groups: []string{"min*"}}, b.auth())
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"mine-*"}}, a.auth())
	refused(in, 403, "not_your_session", "POST", "/v1/sessions/"+s.Handle+"/keepalive", nil, b.auth())
	refused(in, 403, "not_your_session", "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"mine-2"}}, b.auth())
	refused(in, 403, "not_your_session", "DELETE", "/v1/sessions/"+s.Handle, nil, b.auth())
	refused(in, 403, "not_your_session", "DELETE", "/v1/sessions/"+l.Handle, nil, b.auth())
	want[Renewed](in, 200, "POST", path+"renew", RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, a.auth())

	eventually(t, "the audit tells of it", func() bool {
		text, err := os.ReadFile(auditPath)
		count := func(part string) int { return strings.Count(string(text), part) }
		return err == nil && count(`"what":"campaign"`) == 1 && count(`"reason":"not_your_node"`) == 4 && count(`"reason":"not_your_session"`) == 5 &&
			count(`"result":"denied","reason":"denied"`) == 2
	})
	text, err := os.ReadFile(auditPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{a.token, b.token} {
		if strings.Contains(string(text), secret) {
			t.Error("a token stands in the audit")
		}
	}
}

// A step-down that the leader has not answered yet is audited as pending, and audit lines of
// callers without an identity have their node id.
func TestAuditPendingAndAnonymous(t *testing.T) {
	auditPath := filepath.Join(t.TempDir(), "audit.jsonl")
	gate, err := auth.New(auth.Config{Listen: "127.0.0.1:0", Audit: audit.File{Path: auditPath}})
	if err != nil {
		t.Fatal(err)
	}
	in := serve(t, memStore(t), func(c *Config) { c.Gate = gate })
	t.Cleanup(func() { in.stop(); gate.Close() })
	l := lead(in, "billing", "a")
	got := want[SteppedDown](in, 202, "POST", "/v1/groups/billing/step-down?wait=0s", StepDownRequest{Reason: "test"}, header{"If-Match": etag(uint64(l.Term))})
	if got.Outcome != "waiting" {
		t.Errorf("%+v", got)
	}
	resign(in, l)
	eventually(t, "the audit has the lines", func() bool {
		text, err := os.ReadFile(auditPath)
		return err == nil && strings.Contains(string(text), `"node":"a","what":"campaign","group":"billing","token":1,"result":"done"`) &&
			strings.Contains(string(text), `"what":"step-down","group":"billing","token":1,"result":"pending","reason":"test"`) &&
			strings.Contains(string(text), `"node":"a","what":"resign"`)
	})
}

// A listing shows only groups that its caller may observe.
func TestListingIsFiltered(t *testing.T) {
	a := &caller{name: "a", rules: []rule{{"", []auth.Verb{auth.Campaign, auth.Observe}}}}
	b := &caller{name: "b", rules: []rule{{"mine-", []auth.Verb{auth.Observe}}}}
	in, _ := gated(t, []*caller{a, b})
	for _, g := range []string{"aa", "mine-1", "mine-2", "zz"} {
		want[Leading](in, 200, "POST", "/v1/groups/"+g+"/campaign", CampaignRequest{NodeID: "a"}, a.auth())
	}
	if all := want[Groups](in, 200, "GET", "/v1/groups", nil, a.auth()); len(all.Groups) != 4 {
		t.Errorf("%+v", all)
	}
	if some := want[Groups](in, 200, "GET", "/v1/groups", nil, b.auth()); len(some.Groups) != 2 || some.Groups[0].Group != "mine-1" {
		t.Errorf("%+v", some)
	}
	refused(in, 403, "denied", "GET", "/v1/watch?group=mine-1&group=zz&wait=1ms", nil, b.auth())
}
