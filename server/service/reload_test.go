package service

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/store"
)

// issuer signs JWTs for a test.
type issuer struct {
	t   *testing.T
	kid string
	key ed25519.PrivateKey
}

func newIssuer(t *testing.T, kid string) issuer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{t, kid, key}
}

// public is the public key in the format of the key file.
func (i issuer) public() string {
	i.t.Helper()
	der, err := x509.MarshalPKIXPublicKey(i.key.Public())
	if err != nil {
		i.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Headers: map[string]string{"Key-Id": i.kid}, Bytes: der}))
}

// token returns a header with a JWT for a node.
func (i issuer) token(node string, change ...func(jwt.MapClaims)) header {
	i.t.Helper()
	now := time.Now()
	claims := jwt.MapClaims{"iss": "issuer", "aud": "tenure", "sub": node, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
	for _, f := range change {
		f(claims)
	}
	tok := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
	tok.Header["kid"] = i.kid
	text, err := tok.SignedString(i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	return header{"Authorization": "Bearer " + text}
}

// A node with a JWT can campaign, renew and resign for itself only. JWTs with another issuer,
// audience or key are refused. A changed key file takes effect without a restart.
func TestJWT(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two := newIssuer(t, "one"), newIssuer(t, "two")
	gate, err := auth.New(auth.Config{
		Listen: "127.0.0.1:0", Policy: put("policy", nodesPolicy),
		JWT: bearer.JWT{Keys: put("keys", one.public()), Issuer: "issuer", Audience: "tenure"},
	})
	if err != nil {
		t.Fatal(err)
	}
	in := serve(t, memStore(t), func(c *Config) { c.Gate = gate })
	t.Cleanup(func() { in.stop(); gate.Close() })
	const path = "/v1/groups/billing/"
	l := want[Leading](in, 200, "POST", path+"campaign", CampaignRequest{NodeID: "node-a"}, one.token("node-a"))
	claim := RenewRequest{NodeID: "node-a", Term: l.Term, Handle: l.Handle}
	want[Renewed](in, 200, "POST", path+"renew", claim, one.token("node-a"))
	refused(in, 403, "not_your_node", "POST", path+"renew", claim, one.token("node-b"))
	refused(in, 403, "denied", "POST", path+"renew", claim, one.token("somebody"))
	for name, change := range map[string]func(jwt.MapClaims){
		"issuer":   func(c jwt.MapClaims) { c["iss"] = "another" },
		"audience": func(c jwt.MapClaims) { c["aud"] = "another" },
		"expiry":   func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Hour).Unix() },
	} {
		if r := in.ask("POST", path+"renew", claim, one.token("node-a", change)); r.status != 401 || r.header.Get("WWW-Authenticate") == "" {
			t.Errorf("another %s: %v", name, r)
		}
	}
	refused(in, 401, "unauthenticated", "POST", path+"renew", claim, two.token("node-a"))
	put("keys", two.public())
	if err := gate.Reload(); err != nil {
		t.Fatal(err)
	}
	refused(in, 401, "unauthenticated", "POST", path+"renew", claim, one.token("node-a"))
	want[Renewed](in, 200, "POST", path+"renew", claim, two.token("node-a"))
	want[Resigned](in, 200, "POST", path+"resign", ResignRequest{NodeID: "node-a", Term: l.Term, Handle: l.Handle}, two.token("node-a"))
}

// A credential that is removed from the file is refused without a restart: first its calls,
// soon its open streams and waits. A new one works at once.
func TestTokenTakenBack(t *testing.T) {
	dir := t.TempDir()
	tokens, policy := filepath.Join(dir, "credentials.json"), filepath.Join(dir, "policy.json")
	type line struct {
		Name   string `json:"name"`
		SHA256 string `json:"sha256"`
	}
	put := func(path string, v any) {
		t.Helper()
		data, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	old, oldSum := bearer.NewCredential()
	next, nextSum := bearer.NewCredential()
	other, otherSum := bearer.NewCredential()
	put(tokens, map[string]any{"credentials": []line{{"node-a", oldSum}, {"node-b", otherSum}}})
	put(policy, json.RawMessage(nodesPolicy))
	gate, err := auth.New(auth.Config{Listen: "127.0.0.1:0", Credentials: tokens, Policy: policy, Poll: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	in := serve(t, memStore(t), func(c *Config) { c.Gate = gate })
	t.Cleanup(func() { in.stop(); gate.Close() })
	auth := func(token string) header { return header{"Authorization": "Bearer " + token} }
	leader := want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "node-b", TTLMS: 60_000}, auth(other))
	session := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "node-a", Groups: []string{"*"}, TTLMS: 60_000}, auth(old))

	stream := in.listen("/v1/groups/billing/watch", "", auth(old))
	stream.expect("billing", "led", 1)
	remote, begun, watching := client(in, &caller{token: old}), make(chan struct{}), make(chan error, 1)
	go func() {
		var failed error
		for u, err := range remote.Watch(bound(t), store.Scope{"*"}) {
			if failed = err; err == nil && u.Kind == store.Synced {
				close(begun) // the snapshot is complete
			}
		}
		watching <- failed
	}()
	<-begun
	waits := make(chan reply, 3)
	for _, q := range []struct {
		method, path string
		body         any
	}{
		{"POST", "/v1/groups/billing/campaign?wait=60s", CampaignRequest{NodeID: "node-a", TTLMS: 2000}},
		{"POST", "/v1/sessions/" + session.Handle + "/campaign?wait=60s", BatchRequest{Groups: []string{"billing"}}},
	} {
		go func() {
			r, _ := in.try(q.method, q.path, q.body, auth(old))
			waits <- r
		}()
	}
	eventually(t, "they wait, beside the stream", func() bool { return in.waiting("billing") == 3 })

	put(tokens, map[string]any{"credentials": []line{{"node-a", nextSum}, {"node-b", otherSum}}})
	eventually(t, "the old token is refused", func() bool { return in.ask("GET", "/v1/groups", nil, auth(old)).status == 401 })
	if r := in.ask("GET", "/v1/groups", nil, auth(next)); r.status != 200 {
		t.Errorf("the new token: %v", r)
	}
	for range 2 {
		if r := <-waits; r.status != 401 || r.code() != "unauthenticated" {
			t.Errorf("a wait ended with %v", r)
		}
	}
	eventually(t, "the stream ends", func() bool {
		select {
		case _, open := <-stream.events:
			return !open
		default:
			return false
		}
	})
	select {
	case err := <-watching:
		if err == nil {
			t.Error("the watch of the Go client ended without an error")
		}
	case <-time.After(patience):
		t.Error("the watch of the Go client goes on")
	}
	want[Renewed](in, 200, "POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "node-b", Term: leader.Term, Handle: leader.Handle}, auth(other))
}
