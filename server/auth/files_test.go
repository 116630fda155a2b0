package auth

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth/bearer"
)

// Credentials and the policy are reloaded without a restart. If a file is broken or missing,
// its previous content stays in force, the log says so once, and the file is tried again.
func TestPoll(t *testing.T) {
	r := newRig(t)
	g, tokens := r.withTokens(Config{Poll: 10 * time.Millisecond}, "node-1")
	can := func(verb Verb) bool {
		_, err := g.Check(ask(tokens["node-1"]), verb, "billing-eu")
		return err == nil
	}
	failure := func(name string) string {
		for _, s := range g.status() {
			if s.name == name {
				return s.failure
			}
		}
		return "no such file"
	}
	if !can(Campaign) || can(Admin) {
		t.Fatal("the first policy is not in force")
	}
	r.put("policy", `{"roles":`)
	eventually(t, "the broken policy is seen", func() bool { return failure("policy") != "" })
	for range 3 {
		if g.Reload() == nil {
			t.Error("a broken policy is not an error the second time")
		}
	}
	if !can(Campaign) {
		t.Error("a broken policy put the one before out of force")
	}
	r.put("policy", `{"roles": {"all": [{"prefix": "", "verbs": ["admin"]}]}, "names": {"node-1": ["all"]}}`)
	eventually(t, "the new policy is in force", func() bool { return can(Admin) && !can(Campaign) })
	if f := failure("policy"); f != "" {
		t.Errorf("a policy that is in force fails: %s", f)
	}

	if err := os.Remove(r.path("tokens")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the missing file is seen", func() bool { return failure("credentials") != "" })
	if !can(Admin) {
		t.Error("a missing file put the tokens out of force")
	}
	id, err := g.Check(ask(tokens["node-1"]), Admin, "billing-eu")
	if err != nil {
		t.Fatal(err)
	}
	other, hash := bearer.NewCredential()
	r.tokenFile(map[string]string{hash: "node-1"})
	eventually(t, "the token is taken back", func() bool { return !can(Admin) })
	if err := g.Recheck(id, Admin, "billing-eu"); status(err) != 401 {
		t.Errorf("a stream of the token that was taken back: %v", err)
	}
	if _, err := g.Check(ask(other), Admin, "billing-eu"); err != nil {
		t.Errorf("the new token: %v", err)
	}
	if n := strings.Count(r.log.String(), "stays in force"); n != 2 {
		t.Errorf("two broken files were said %d times:\n%s", n, r.log)
	}
}

// A stream ends when the policy no longer allows it.
func TestRecheck(t *testing.T) {
	r := newRig(t)
	g, tokens := r.withTokens(Config{}, "node-1")
	id, err := g.Check(ask(tokens["node-1"]), Observe, "billing-eu")
	if err != nil || g.Recheck(id, Observe, "billing-eu") != nil {
		t.Fatal(err)
	}
	r.put("policy", strings.Replace(somePolicy, `"node-7"`, `"node-1"`, 1))
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := g.Recheck(id, Observe, "billing-eu"); status(err) != 403 {
		t.Errorf("refused by name: %v", err)
	}
}

// A gate does not start without its files, and does not block on a pipe.
func TestMissingFile(t *testing.T) {
	r := newRig(t)
	policy := r.put("policy", somePolicy)
	for tokens, want := range map[string]string{r.path("none"): "no such file", r.dir: "not a regular file", "/dev/zero": "not a regular file", r.put("tokens", "tnr_"): "JSON"} {
		g, err := New(Config{Listen: "127.0.0.1:0", Credentials: tokens, Policy: policy})
		if err == nil {
			g.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", tokens, err, want)
		}
	}
}
