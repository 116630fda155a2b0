package auth

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Everything that the policy does not allow is denied: each name × verb × group, with
// AllGroups and SomeGroup.
func TestDefaultDeny(t *testing.T) {
	r := newRig(t)
	names := []string{"node-1", "node-7", "nodes", "alice", "rita", "stranger"}
	g, tokens := r.withTokens(Config{}, names...)
	groups := []string{"billing-eu", "billing-", "billing", "orders", AllGroups, SomeGroup}
	allowed := map[string]bool{}
	for _, s := range []string{
		"node-1 observe billing-eu", "node-1 observe billing-", "node-1 observe *",
		"node-1 campaign billing-eu", "node-1 campaign billing-", "node-1 campaign *",
		"alice step-down billing-eu", "alice step-down billing-", "alice step-down *",
	} {
		allowed[s] = true
	}
	for _, group := range groups {
		allowed["alice admin "+group] = true
		allowed["rita observe "+group] = true
	}
	seen := map[string]bool{}
	for _, name := range names {
		for _, verb := range Verbs() {
			for _, group := range groups {
				id, err := g.Check(ask(tokens[name]), verb, group)
				if err == nil {
					seen[fmt.Sprintf("%s %s %s", name, verb, group)] = true
					if id.Name != name || id.How != ByCredential || !g.May(id, verb, group) {
						t.Errorf("%s is taken for %v", name, id)
					}
				} else if status(err) != 403 {
					t.Errorf("%s %s %q: %v", name, verb, group, err)
				}
			}
		}
	}
	if !maps.Equal(seen, allowed) {
		t.Errorf("allowed:\n%s\nwant:\n%s", strings.Join(slices.Sorted(maps.Keys(seen)), "\n"), strings.Join(slices.Sorted(maps.Keys(allowed)), "\n"))
	}
	if _, err := g.Check(ask(tokens["rita"]), Observe, "../etc"); status(err) != 400 {
		t.Errorf("a name that is none: %v", err)
	}
}

// The name "*" matches every authenticated caller, and no others.
func TestEverybodyIsKnown(t *testing.T) {
	r := newRig(t)
	r.put("policy", `{"roles": {"reader": [{"prefix": "", "verbs": ["observe"]}]}, "names": {"*": ["reader"]}}`)
	g, tokens := r.withTokens(Config{Policy: r.path("policy")}, "anybody")
	if _, err := g.Check(ask(tokens["anybody"]), Observe, "orders"); err != nil {
		t.Error(err)
	}
	if _, err := g.Check(ask(""), Observe, "orders"); status(err) != 401 {
		t.Errorf("without credentials: %v", err)
	}
	for _, id := range []Identity{{}, {How: Loopback}, {How: Insecure}} {
		if g.May(id, Observe, "orders") {
			t.Errorf("%+v may observe", id)
		}
	}
}

// A caller may act only as the node of its credentials.
func TestIs(t *testing.T) {
	known := Identity{Name: "node-1", How: ByCert}
	for node, want := range map[string]int{"node-1": 200, "node-2": 403, "": 403, "NODE-1": 403, "node-1\x00": 403} {
		if got := status(known.Is(node)); got != want {
			t.Errorf("%q: %d, want %d", node, got, want)
		}
	}
	if (Identity{}).Is("") == nil || (Identity{}).Is("node-1") == nil {
		t.Error("nobody speaks for somebody")
	}
	if (Identity{How: Loopback}).Is("node-2") != nil {
		t.Error("on loopback a name is not taken as given")
	}
}

// An ambiguous or contradictory policy is refused as a whole.
func TestBadPolicy(t *testing.T) {
	for text, want := range map[string]string{
		``:                                      "JSON",
		`{}x`:                                   "after the value",
		`{}{}`:                                  "after the value",
		`[]`:                                    "JSON",
		`{"r":1}`:                               "unknown field",
		`{"roles":{"a":[{"verbs":["admin"]}]}}`: "without a prefix",
		`{"roles":{"a":[{"prefix":"","verbs":[]}]}}`:                     "without verbs",
		`{"roles":{"a":[{"prefix":"","verbs":["open"]}]}}`:               `verb "open"`,
		`{"roles":{"a":[{"prefix":"","verbs":["Admin"]}]}}`:              `verb "Admin"`,
		`{"roles":{"a":[{"prefix":"*","verbs":["admin"]}]}}`:             "begins with",
		`{"roles":{"a":[{"prefix":"-x","verbs":["admin"]}]}}`:            "begins with",
		`{"roles":{"A":[]}}`:                                             "not a name",
		`{"names":{"n":["a"]}}`:                                          "not defined",
		`{"roles":{"a":[]},"names":{"n*m":["a"]}}`:                       "neither a name",
		`{"roles":{"a":[]},"names":{"":["a"]}}`:                          "neither a name",
		`{"roles":{"a":[]},"names":{"**":["a"]}}`:                        "neither a name",
		`{"refused":["*"]}`:                                              "not a name",
		`{"roles":{"a":[{"prefix":"","verbs":["admin"],"groups":"x"}]}}`: "unknown field",
	} {
		if _, err := parsePolicy([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := parsePolicy([]byte(somePolicy)); err != nil {
		t.Error(err)
	}
}

// A page of another origin cannot use the credentials of its visitor, such as the client
// certificate that a browser sends by itself. Reading is left to the browser, which hides it.
func TestOtherOrigins(t *testing.T) {
	g, tokens := newRig(t).withTokens(Config{}, "node-1")
	for header, want := range map[[2]string]int{
		{"Origin", "https://evil.example"}: 403, {"Sec-Fetch-Site", "cross-site"}: 403, {"Sec-Fetch-Site", "same-origin"}: 200, {"X", "y"}: 200,
	} {
		req := ask(tokens["node-1"])
		req.Header.Set(header[0], header[1])
		if _, err := g.Check(req, Campaign, "billing-eu"); status(err) != want {
			t.Errorf("%v: %v, want %d", header, err, want)
		}
	}
}
