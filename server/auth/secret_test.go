package auth

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/auth/secret"
)

// Secrets are replaced, complete or cut. Names, hashes and words are kept.
func TestRedact(t *testing.T) {
	token, hash := bearer.NewCredential()
	for _, s := range []string{
		token, token[:20], "tnr_12345678", "eyJhbGciOiJub25lIn0.e30.", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0",
		"-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nabc", strings.Repeat("aB3/", 10),
	} {
		got := secret.Redact("before " + s + " after")
		cut := strings.HasSuffix(s, "\nabc") // goes to the end of the text
		if !strings.HasPrefix(got, "before [secret ") || !cut && !strings.HasSuffix(got, "] after") || strings.Contains(got, s) {
			t.Errorf("%s: %s", s, got)
		}
	}
	for _, s := range []string{"", "billing-eu", hash, strings.Repeat("shard-17.", 7), "POST /v1/groups/{group}/campaign", "-----BEGIN CERTIFICATE-----", "eyJhbGci", "tnr_"} {
		if secret.Redact(s) != s {
			t.Errorf("%s became %s", s, secret.Redact(s))
		}
	}
}

// A secret that a caller or an operator puts in a wrong place appears neither in the log nor
// in the audit, an answer or an error.
func TestNoSecretGetsOut(t *testing.T) {
	r := newRig(t)
	key := newKey(t)
	c := newCA(t, "all")
	_, privatePEM := c.server()
	cfg := r.jwtConfig(publicPEM(t, &key.PublicKey, "k"))
	path := r.path("audit.log")
	cfg.Audit = audit.File{Path: path}
	g, tokens := r.withTokens(cfg, "node-1", "stranger")
	signed := func(claims jwt.MapClaims, by any) string {
		return sign(t, jwt.SigningMethodES256, map[string]any{"kid": "k"}, claims, by)
	}
	claims := r.goodClaims()
	claims["jti"] = "forged"
	unknown, _ := bearer.NewCredential()
	secrets := []string{
		tokens["node-1"], tokens["stranger"], unknown,
		signed(r.goodClaims(), key), signed(claims, newKey(t)),
		strings.Split(privatePEM, "\n")[1],
	}

	var answers strings.Builder
	rule := Rule{Verb: Campaign, Groups: func(r *http.Request) []string { return []string{r.URL.Query().Get("group")} }}
	h, err := g.Guard(rule, func(w http.ResponseWriter, req *http.Request) {
		reason := req.Header.Get("Reason")
		g.Audit(req.Context(), audit.Entry{Who: reason, How: reason, Remote: reason, What: reason, Group: reason, Result: reason, Reason: "because " + reason})
		if err := From(req.Context()).Is(reason); err != nil {
			answer(w, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	try := func(path, auth, group, reason string) {
		req := ask("")
		req.URL = &url.URL{Path: path, RawQuery: url.Values{"group": {group}}.Encode()}
		req.Header.Set("Authorization", auth)
		req.Header.Set("Reason", reason)
		w := httptest.NewRecorder()
		h(w, req)
		answers.WriteString(w.Body.String())
	}
	for _, s := range append(secrets, privatePEM) {
		try("/", "Bearer "+s, "billing-eu", "")
		try("/", "Bearer "+s, "orders", "")
		try("/", "bearer  "+s, "billing-eu", "")
		try("/", s, "billing-eu", "")
		try("/", "Basic "+s, "billing-eu", "")
		try("/", "Bearer "+s+"x", "billing-eu", "")
		try("/", "Bearer "+s[:len(s)-1], "billing-eu", "")
		try("/", "Bearer "+tokens["node-1"], s, "")
		try("/"+s, "Bearer "+tokens["node-1"], "orders", "")
		try("/", "Bearer "+tokens["node-1"], "billing-eu", s)
		// Operators: a secret in place of another value in each file.
		for _, file := range []struct{ name, text string }{
			{"tokens", `{"credentials":[{"name":"node-1","sha256":"` + s + `"}]}`},
			{"tokens", s},
			{"keys", s},
			{"keys", `{"keys":[{"kty":"` + s + `","kid":"` + s + `"}]}`},
			{"policy", `{"roles":{"` + s + `":[]}}`},
			{"policy", `{"` + s + `":1}`},
		} {
			was, err := os.ReadFile(r.path(file.name))
			if err != nil {
				t.Fatal(err)
			}
			r.put(file.name, file.text)
			if err := g.Reload(); err != nil {
				answers.WriteString(err.Error())
			} else {
				t.Errorf("the file %s with a secret in it was taken", file.name)
			}
			r.put(file.name, string(was))
			if err := g.Reload(); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.Close()
	audit, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(audit), "[secret ") || !strings.Contains(answers.String(), "unauthenticated") || !strings.Contains(r.log.String(), "stays in force") {
		t.Fatal("nothing was written at all")
	}
	for where, text := range map[string]string{"the log": r.log.String(), "the audit": string(audit), "an answer": answers.String()} {
		for _, s := range secrets {
			// The secret of a JWT is its signature, but its claims are personal data.
			pieces := []string{s[len(s)-20:], s[len(s)/2 : len(s)/2+20], s[8:28]}
			if strings.HasPrefix(s, "eyJ") {
				parts := strings.Split(s, ".")
				pieces = []string{parts[1][:20], parts[2][:20]}
			}
			for _, piece := range pieces {
				if i := strings.Index(text, piece); i >= 0 {
					t.Errorf("%s has a piece of a secret: …%.200s…", where, text[max(0, i-60):])
				}
			}
		}
	}
}
