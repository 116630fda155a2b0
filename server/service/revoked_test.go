package service

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// A node that lost the right to one group in the scope of its session cannot keep the session
// alive, on any route or instance: not by a keep-alive, by renewing or resigning another
// group, by campaigning within it, or with the handle of a session for that group alone. It
// may close the session.
func TestRevokedRightEndsLeadership(t *testing.T) {
	dir := t.TempDir()
	policy := func(prefixes ...string) string {
		var rules []rule
		for _, p := range prefixes {
			rules = append(rules, rule{p, []auth.Verb{auth.Campaign, auth.Observe}})
		}
		data, err := json.Marshal(map[string]any{"roles": map[string]any{"node": rules}, "names": map[string]any{"n": []string{"node"}}})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token, sum := bearer.NewCredential()
	n := &caller{name: "n", token: token}
	gate, err := auth.New(auth.Config{
		Listen: "127.0.0.1:0", Policy: put("policy", policy("a-", "b-")), Credentials: put("tokens", `{"credentials":[{"name":"n","sha256":"`+sum+`"}]}`), Poll: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.Close)
	st := &countingStore{Store: memStore(t)}
	with := func(c *Config) { c.Gate, c.TTL = gate, time.Minute }
	in := serve(t, st, with)

	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "n", Groups: []string{"a-*", "b-1"}}, n.auth())
	led := want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"a-1", "b-1"}}, n.auth())
	if len(led.Led) != 2 {
		t.Fatalf("%+v", led)
	}
	alone := want[Leading](in, 200, "POST", "/v1/groups/b-2/campaign", CampaignRequest{NodeID: "n"}, n.auth())
	within := RenewRequest{NodeID: "n", Term: led.Led[0].Term, Handle: s.Handle}
	want[Beat](in, 200, "POST", "/v1/sessions/"+s.Handle+"/keepalive", nil, n.auth())
	want[Renewed](in, 200, "POST", "/v1/groups/a-1/renew", within, n.auth())
	h, err := in.svc.parseHandle(s.Handle)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(in, n).KeepAlive(t.Context(), h.session); err != nil {
		t.Fatal(err)
	}

	put("policy", policy("a-"))
	if err := gate.Reload(); err != nil {
		t.Fatal(err)
	}
	fresh := serve(t, st, with) // has not seen any session
	eventually(t, "the other instance sees what is led", func() bool { return len(fresh.svc.feed.Held(h.session)) == 2 })
	before := st.beats.Load()
	refused(fresh, 403, "denied", "POST", "/v1/groups/a-1/renew", within, n.auth())
	refused(fresh, 403, "denied", "POST", "/v1/groups/a-1/renew", RenewRequest{NodeID: "n", Term: 1, Handle: handleFor(t, fresh, alone.Handle, "a-1")}, n.auth())
	for _, at := range []*instance{in, fresh} {
		refused(at, 403, "denied", "POST", "/v1/sessions/"+s.Handle+"/keepalive", nil, n.auth())
		refused(at, 403, "denied", "POST", "/v1/groups/a-1/renew", within, n.auth())
		refused(at, 403, "denied", "POST", "/v1/groups/b-2/renew", RenewRequest{NodeID: "n", Term: alone.Term, Handle: alone.Handle}, n.auth())
		refused(at, 403, "denied", "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"a-2"}}, n.auth())
		refused(at, 403, "denied", "POST", "/v1/groups/a-2/campaign", CampaignRequest{NodeID: "n", Session: s.Handle}, n.auth())
		refused(at, 409, "no_successor", "POST", "/v1/groups/a-1/resign", ResignRequest{NodeID: "n", Term: within.Term, Handle: s.Handle, Successor: "m"}, n.auth())
		if _, err := client(at, n).KeepAlive(t.Context(), h.session); !errors.Is(err, remote.ErrDenied) || errors.Is(err, store.ErrSessionDead) {
			t.Errorf("a keep-alive on the store's route: %v", err)
		}
	}
	if now := st.beats.Load(); now != before {
		t.Errorf("%d keep-alives reached the engine", now-before)
	}
	want[Closed](in, 200, "DELETE", "/v1/sessions/"+s.Handle, nil, n.auth())
}

// handleFor returns a handle with a forged hint.
func handleFor(t *testing.T, in *instance, text, hint string) string {
	t.Helper()
	h, err := in.svc.parseHandle(text)
	if err != nil {
		t.Fatal(err)
	}
	h.hint = hint
	return h.String()
}
