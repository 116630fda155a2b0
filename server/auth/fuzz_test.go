package auth

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/auth/limit"
	"github.com/tenurehq/tenure/store"
)

// Every policy file is refused, or gives verbs only by its rules: a caller without a role may
// do nothing.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte(somePolicy), "node-1", "billing-eu")
	f.Add([]byte(`{"roles":{"a":[{"prefix":"","verbs":["admin"]}]},"names":{"*":["a"]}}`), "x", "y")
	f.Add([]byte(`{"roles":{"a":[{"prefix":null,"verbs":null}]}}`), "", "")
	f.Fuzz(func(t *testing.T, text []byte, name, group string) {
		p, err := parsePolicy(text)
		if err != nil {
			if p != nil || len(err.Error()) > 1000 {
				t.Fatalf("%v, %v", p, err)
			}
			return
		}
		roles := p.rolesOf(name)
		for _, verb := range append(Verbs(), Open, "") {
			all, one, some := p.allows(roles, verb, AllGroups), p.allows(roles, verb, group), p.allows(roles, verb, SomeGroup)
			if len(roles) == 0 && (all || one || some) || (verb == Open || verb == "") && some || one && !some || all && !one {
				t.Fatalf("%q with roles %v and verb %q: all %v, %q %v, some %v", name, roles, verb, all, group, one, some)
			}
		}
	})
}

// Every file of credentials is refused, or has valid names only.
func FuzzTokens(f *testing.F) {
	_, hash := bearer.NewCredential()
	f.Add([]byte(`{"credentials":[{"name":"node-1","sha256":"` + hash + `","expires":"2027-01-01T00:00:00Z","note":"x"}]}`))
	f.Add([]byte(`{"credentials":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := bearer.ParseCredentials(text)
		for _, h := range all {
			if err != nil || !store.ValidName(h.Name) {
				t.Fatalf("%v, %v", h, err)
			}
		}
	})
}

// Every file of keys is refused, or has public keys with asymmetric algorithms only.
func FuzzKeys(f *testing.F) {
	f.Add([]byte(publicPEM(f, &newKey(f).PublicKey, "k")))
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"RSA","kid":"a","n":"AQAB","e":"AQAB"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"AA","y":"AA"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := bearer.ParseKeys(text)
		if (err == nil) != (len(keys) > 0) {
			t.Fatalf("%v, %v", keys, err)
		}
		for kid, k := range keys {
			if kid == "" || len(k.Algorithms) == 0 || strings.HasPrefix(k.Algorithms[0], "HS") {
				t.Fatalf("%q: %v", kid, k)
			}
		}
	})
}

// A caller without a secret is never authenticated, whatever its header and query: the answer
// is 401 or 429, without a panic.
func FuzzRequest(f *testing.F) {
	key := newKey(f)
	keys, err := bearer.ParseKeys([]byte(publicPEM(f, &key.PublicKey, "k")))
	if err != nil {
		f.Fatal(err)
	}
	token, hash := bearer.NewCredential()
	known, err := bearer.ParseCredentials([]byte(`{"credentials":[{"name":"node-1","sha256":"` + hash + `"}]}`))
	if err != nil {
		f.Fatal(err)
	}
	rules, err := parsePolicy([]byte(somePolicy))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("Bearer "+token[:len(token)-1], "")
	f.Add("Bearer "+sign(f, jwt.SigningMethodES256, map[string]any{"kid": "k"}, jwt.MapClaims{"iss": "i", "aud": "a", "sub": "node-1", "exp": 1 << 40}, newKey(f)), "wait=1s")
	f.Add("Bearer "+sign(f, jwt.SigningMethodNone, map[string]any{"kid": "k"}, jwt.MapClaims{"sub": "node-1"}, jwt.UnsafeAllowNoneSignatureType), "access_token=x")
	f.Add("Basic bm9kZS0xOng=", "%zz=1;2")
	now := time.Now
	cfg := Config{Listen: "127.0.0.1:0", Credentials: "t", Policy: "p", JWT: bearer.JWT{Keys: "k", Issuer: "i", Audience: "a"}, Now: now}.withDefaults()
	log, err := audit.Open(cfg.Audit, cfg.Log, now)
	if err != nil {
		f.Fatal(err)
	}
	g := &Gate{cfg: cfg, audit: log, jwt: bearer.NewVerifier(cfg.JWT, now), known: limit.NewCallers(cfg.Limits), strangers: limit.NewCallers(cfg.Limits)}
	g.jwt.Use(keys)
	g.credentials.Store(&known)
	g.policy.Store(rules)
	f.Fuzz(func(t *testing.T, header, query string) {
		if strings.Contains(header, token) {
			t.Skip()
		}
		req := ask("")
		req.Header = http.Header{"Authorization": {header}}
		req.URL.RawQuery = query
		id, err := g.Check(req, Observe, "billing-eu")
		if code := status(err); code != 401 && code != 429 || id.Name != "" {
			t.Fatalf("%v, %v", id, err)
		}
	})
}
