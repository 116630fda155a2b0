package auth

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tenurehq/tenure/server/auth/bearer"
)

func (r *rig) jwtConfig(keys string, algorithms ...string) Config {
	return Config{
		JWT:    bearer.JWT{Keys: r.put("keys", keys), Issuer: "https://issuer.test", Audience: "tenure", Algorithms: algorithms},
		Policy: r.put("policy", somePolicy),
	}
}

// A JWT is accepted if everything is as configured. Each known attack on such checks is
// refused with 401.
func TestJWTTricks(t *testing.T) {
	r := newRig(t)
	ec, other := newKey(t), newKey(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaPEM := publicPEM(t, &rsaKey.PublicKey, "rsa-1")
	g := r.gate(r.jwtConfig(publicPEM(t, &ec.PublicKey, "ec-1")+rsaPEM, "ES256", "RS256"))

	kid := func(id string) map[string]any { return map[string]any{"kid": id} }
	with := func(name string, value any) jwt.MapClaims {
		c := r.goodClaims()
		if value == nil {
			delete(c, name)
		} else {
			c[name] = value
		}
		return c
	}
	es := func(header map[string]any, c jwt.MapClaims) string {
		return sign(t, jwt.SigningMethodES256, header, c, ec)
	}
	good := es(kid("ec-1"), r.goodClaims())
	parts := strings.Split(good, ".")
	raw := func(header string) string { return base64.RawURLEncoding.EncodeToString([]byte(header)) }
	now := r.time.Now()
	jwkOf := func() map[string]any {
		point, _ := other.PublicKey.Bytes()
		b64 := base64.RawURLEncoding.EncodeToString
		return map[string]any{"kty": "EC", "crv": "P-256", "kid": "mine", "x": b64(point[1:33]), "y": b64(point[33:])}
	}

	for _, tt := range []struct{ name, token, want string }{
		{"good", good, ""},
		{"good RSA", sign(t, jwt.SigningMethodRS256, kid("rsa-1"), r.goodClaims(), rsaKey), ""},
		{"one of several audiences", es(kid("ec-1"), with("aud", []string{"other", "tenure"})), ""},
		{"within the leeway", es(kid("ec-1"), with("exp", now.Add(-20*time.Second).Unix())), ""},

		{"alg none", sign(t, jwt.SigningMethodNone, kid("ec-1"), r.goodClaims(), jwt.UnsafeAllowNoneSignatureType), "signature"},
		{"alg None, no signature", raw(`{"alg":"None","kid":"ec-1"}`) + "." + parts[1] + ".", "header"},
		{"alg missing", raw(`{"kid":"ec-1"}`) + "." + parts[1] + "." + parts[2], "header"},
		{"alg a number", raw(`{"alg":1,"kid":"ec-1"}`) + "." + parts[1] + "." + parts[2], "header"},
		{"HMAC with the public key's PEM", sign(t, jwt.SigningMethodHS256, kid("rsa-1"), r.goodClaims(), []byte(rsaPEM)), "algorithm"},
		{"HMAC with the public key's DER", sign(t, jwt.SigningMethodHS256, kid("rsa-1"), r.goodClaims(), x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey)), "algorithm"},
		{"an algorithm that is not configured", sign(t, jwt.SigningMethodPS256, kid("rsa-1"), r.goodClaims(), rsaKey), "algorithm"},
		{"RSA under the ECDSA key's id", sign(t, jwt.SigningMethodRS256, kid("ec-1"), r.goodClaims(), rsaKey), "that of its key"},
		{"no key id", es(nil, r.goodClaims()), "key id"},
		{"empty key id", es(kid(""), r.goodClaims()), "key id"},
		{"unknown key id", es(kid("ec-2"), r.goodClaims()), "key id"},
		{"key id as a path", es(kid("../../dev/null"), r.goodClaims()), "key id"},
		{"key id of another type", es(map[string]any{"kid": []string{"ec-1"}}, r.goodClaims()), "key id"},
		{"another's signature under a known id", sign(t, jwt.SigningMethodES256, kid("ec-1"), r.goodClaims(), other), "signature"},
		{"key in the header", sign(t, jwt.SigningMethodES256, map[string]any{"kid": "mine", "jwk": jwkOf()}, r.goodClaims(), other), "key id"},
		{"key by address", sign(t, jwt.SigningMethodES256, map[string]any{"kid": "ec-1", "jku": "http://127.0.0.1:1/keys"}, r.goodClaims(), other), "signature"},
		{"critical extension", es(map[string]any{"kid": "ec-1", "crit": []string{"b64"}, "b64": false}, r.goodClaims()), "header"},
		{"no signature", parts[0] + "." + parts[1] + ".", "signature"},
		{"claims changed", parts[0] + "." + raw(`{"sub":"alice"}`) + "." + parts[2], "signature"},
		{"signature of zeros", parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)), "signature"},
		{"two parts", parts[0] + "." + parts[1], "neither"},
		{"four parts", good + ".x", "neither"},
		{"five parts, encrypted", good + ".x.y", "neither"},
		{"loose base64", good[:len(good)-1] + "_", "neither"},
		{"expired", es(kid("ec-1"), with("exp", now.Add(-time.Minute).Unix())), "expired"},
		{"without expiry", es(kid("ec-1"), with("exp", nil)), "lacks"},
		{"expiry as text", es(kid("ec-1"), with("exp", "never")), "not valid"},
		{"ten years", es(kid("ec-1"), with("exp", now.Add(87600*time.Hour).Unix())), "longer"},
		{"not yet", es(kid("ec-1"), with("nbf", now.Add(time.Hour).Unix())), "not valid yet"},
		{"issued in the future", es(kid("ec-1"), with("iat", now.Add(time.Hour).Unix())), "future"},
		{"another audience", es(kid("ec-1"), with("aud", "tenure-staging")), "audience"},
		{"no audience", es(kid("ec-1"), with("aud", nil)), "audience"},
		{"another issuer", es(kid("ec-1"), with("iss", "https://issuer.test.evil.example")), "issuer"},
		{"no issuer", es(kid("ec-1"), with("iss", nil)), "issuer"},
		{"no subject", es(kid("ec-1"), with("sub", nil)), "node id"},
		{"a subject that is no name", es(kid("ec-1"), with("sub", "node-1/../alice")), "node id"},
		{"several subjects", es(kid("ec-1"), with("sub", []string{"node-1", "alice"})), "node id"},
		{"too long", good + strings.Repeat("A", maxBearer), "too long"},
		{"spaces", " " + good, "neither"},
	} {
		id, err := g.Check(ask(tt.token), Campaign, "billing-eu")
		if tt.want == "" {
			if err != nil || id.Name != "node-1" || id.How != ByJWT {
				t.Errorf("%s: %v, %v", tt.name, id, err)
			}
			continue
		}
		if status(err) != 401 || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), parts[1][:20]) {
			t.Errorf("%s: %v (%d), want 401 with %q", tt.name, err, status(err), tt.want)
		}
	}
}

// A JWT is not valid for ever: the cache ends with its expiry and with its key.
func TestJWTIsForgotten(t *testing.T) {
	r := newRig(t)
	one, two := newKey(t), newKey(t)
	g := r.gate(r.jwtConfig(publicPEM(t, &one.PublicKey, "one") + publicPEM(t, &two.PublicKey, "two")))
	by := func(kid string, key any) string {
		return sign(t, jwt.SigningMethodES256, map[string]any{"kid": kid}, r.goodClaims(), key)
	}
	first, second := by("one", one), by("two", two)
	idOf := map[string]Identity{}
	for range 2 {
		for _, token := range []string{first, second} {
			id, err := g.Check(ask(token), Campaign, "billing-eu")
			if err != nil {
				t.Fatal(err)
			}
			idOf[token] = id
		}
	}
	// The second id has another key now; the first is unchanged.
	third := newKey(t)
	r.put("keys", publicPEM(t, &one.PublicKey, "one")+publicPEM(t, &third.PublicKey, "two"))
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]int{first: 200, second: 401, by("two", third): 200} {
		if _, err := g.Check(ask(token), Campaign, "billing-eu"); status(err) != want {
			t.Errorf("after the change of keys: %v, want %d", err, want)
		}
	}
	for token, want := range map[string]int{first: 200, second: 401} {
		if err := g.Recheck(idOf[token], Campaign, "billing-eu"); status(err) != want {
			t.Errorf("a stream after the change of keys: %v, want %d", err, want)
		}
	}
	r.time.move(2 * time.Hour)
	if _, err := g.Check(ask(first), Campaign, "billing-eu"); status(err) != 401 {
		t.Errorf("a remembered token after its expiry: %v", err)
	}
	if err := g.Recheck(idOf[first], Campaign, "billing-eu"); status(err) != 401 {
		t.Errorf("a stream after the expiry of its token: %v", err)
	}
}

// After many invalid signatures from one address, its JWTs are verified only a few at a time,
// and refused when too many wait. A new valid caller at that address is still admitted, and
// known callers and other addresses are not affected.
func TestJWTFlood(t *testing.T) {
	r := newRig(t)
	key, other := newKey(t), newKey(t)
	cfg := r.jwtConfig(publicPEM(t, &key.PublicKey, "k"))
	cfg.Limits.Patience = time.Millisecond
	g := r.gate(cfg)
	header := map[string]any{"kid": "k"}
	fresh := func(id string) string {
		claims := r.goodClaims()
		claims["jti"] = id
		return sign(t, jwt.SigningMethodES256, header, claims, key)
	}
	known := sign(t, jwt.SigningMethodES256, header, r.goodClaims(), key)
	if _, err := g.Check(ask(known), Campaign, "billing-eu"); err != nil {
		t.Fatal(err)
	}
	forged := ask(sign(t, jwt.SigningMethodES256, header, r.goodClaims(), other))
	counts := map[int]int{}
	for range 150 {
		_, err := g.Check(forged, Campaign, "billing-eu")
		counts[status(err)]++
	}
	if !maps.Equal(counts, map[int]int{401: 150}) {
		t.Errorf("150 forged tokens: %v", counts)
	}
	if _, err := g.Check(ask(fresh("one")), Campaign, "billing-eu"); err != nil {
		t.Errorf("somebody new, at the same address: %v", err)
	}
	for range suspectSlots { // other JWTs are being verified for a long time
		if !g.suspects.Enter(t.Context()) {
			t.Fatal("a place is taken that nobody has")
		}
	}
	if _, err := g.Check(forged, Campaign, "billing-eu"); status(err) != 429 {
		t.Errorf("a forged token too many: %v", err)
	}
	if _, err := g.Check(ask(known), Campaign, "billing-eu"); err != nil {
		t.Errorf("who is known, at the same address: %v", err)
	}
	elsewhere := ask(fresh("two"))
	elsewhere.RemoteAddr = "127.0.0.9:1"
	if _, err := g.Check(elsewhere, Campaign, "billing-eu"); err != nil {
		t.Errorf("somebody new, elsewhere: %v", err)
	}
}

func jwks(keys ...map[string]any) string {
	b, _ := json.Marshal(map[string]any{"keys": keys})
	return string(b)
}

// Keys are read from a JWK set and from PEM, each with its own algorithms. Secrets, weak keys
// and points that are not on the curve are refused.
func TestKeys(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	ec := newKey(t)
	point, _ := ec.PublicKey.Bytes()
	ed, _, _ := ed25519.GenerateKey(rand.Reader)
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	der, _ := x509.MarshalPKCS8PrivateKey(ec)
	private := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	ecJWK := func(more ...any) map[string]any {
		k := map[string]any{"kty": "EC", "crv": "P-256", "kid": "e", "x": b64(point[1:33]), "y": b64(point[33:])}
		for i := 0; i < len(more); i += 2 {
			k[more[i].(string)] = more[i+1]
		}
		return k
	}
	edJWK := map[string]any{"kty": "OKP", "crv": "Ed25519", "kid": "d", "x": b64(ed), "alg": "EdDSA", "x5t": "ignored"}
	for _, tt := range []struct{ name, text, want string }{
		{"two", jwks(ecJWK(), edJWK), "map[d:[EdDSA] e:[ES256]]"},
		{"an encryption key is passed over", jwks(ecJWK(), map[string]any{"kty": "RSA", "use": "enc"}), "map[e:[ES256]]"},
		{"PEM", publicPEM(t, ed, "p"), "map[p:[EdDSA]]"},
		{"none", `{"keys":[]}`, "no public key"},
		{"empty", "", "no public key"},
		{"not JSON", `{"keys":`, "not a JWK set"},
		{"private", jwks(ecJWK("d", "c2VjcmV0")), "secret"},
		{"symmetric", jwks(map[string]any{"kty": "oct", "kid": "s", "k": "c2VjcmV0"}), "secret"},
		{"private PEM", private, "PUBLIC KEY"},
		{"PEM with more", publicPEM(t, ed, "p") + "x", "cannot be read"},
		{"twice", jwks(ecJWK(), ecJWK()), "twice"},
		{"no id", jwks(ecJWK("kid", "")), "id is empty"},
		{"algorithm of another family", jwks(ecJWK("alg", "RS256")), "RS256"},
		{"symmetric algorithm", jwks(ecJWK("alg", "HS256")), "HS256"},
		{"off the curve", jwks(ecJWK("y", b64(make([]byte, 32)))), "not on the curve"},
		{"short point", jwks(ecJWK("y", "AA")), "32 bytes"},
		{"unknown curve", jwks(ecJWK("crv", "secp256k1")), "curve"},
		{"weak RSA", publicPEM(t, &weak.PublicKey, "w"), "1024 bits"},
		{"RSA without a modulus", jwks(map[string]any{"kty": "RSA", "kid": "r"}), "modulus"},
	} {
		keys, err := bearer.ParseKeys([]byte(tt.text))
		got := make(map[string][]string)
		for kid, k := range keys {
			got[kid] = k.Algorithms
		}
		said := fmt.Sprint(got)
		if err != nil {
			said = err.Error()
		}
		if !strings.Contains(said, tt.want) || strings.Contains(said, "c2VjcmV0") {
			t.Errorf("%s: %s, want %s", tt.name, said, tt.want)
		}
	}
}
