package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth/bearer"
)

// A credential is accepted in the header, complete, until it expires. A guessable one is
// refused even if its hash is in the file, and so is one in a query string.
func TestTokens(t *testing.T) {
	r := newRig(t)
	short := "tnr_secret"
	sum := sha256.Sum256([]byte(short))
	token, hash := bearer.NewCredential()
	old, oldHash := bearer.NewCredential()
	unknown, _ := bearer.NewCredential()
	cfg := Config{
		Policy: r.put("policy", somePolicy),
		Credentials: r.put("tokens", fmt.Sprintf(`{"credentials":[{"name":"node-1","sha256":%q,"note":"for tests"},{"name":"node-1","sha256":%q},{"name":"node-1","sha256":%q,"expires":%q}]}`,
			hash, hex.EncodeToString(sum[:]), oldHash, r.time.Now().Add(time.Minute).Format(time.RFC3339))),
	}
	g := r.gate(cfg)
	early, err := g.Check(ask(old), Campaign, "billing-eu")
	if err != nil || early.Until.IsZero() {
		t.Fatalf("before its expiry: %v, %v", early, err)
	}
	r.time.move(2 * time.Minute)
	if err := g.Recheck(early, Campaign, "billing-eu"); status(err) != 401 {
		t.Errorf("a stream after the expiry: %v", err)
	}
	for _, tt := range []struct {
		name string
		edit func(*http.Request)
		want string
	}{
		{"good", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }, ""},
		{"scheme in small letters", func(r *http.Request) { r.Header.Set("Authorization", "bearer "+token) }, ""},
		{"none", func(*http.Request) {}, "no credentials"},
		{"another scheme", func(r *http.Request) { r.SetBasicAuth("node-1", token) }, "not Bearer"},
		{"bare", func(r *http.Request) { r.Header.Set("Authorization", token) }, "not Bearer"},
		{"short", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+short) }, "32 random bytes"},
		{"cut", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token[:len(token)-1]) }, "32 random bytes"},
		{"longer", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token+"A") }, "32 random bytes"},
		{"unknown", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+unknown) }, "unknown"},
		{"the hash", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+hash) }, "begin with"},
		{"expired", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+old) }, "expired"},
		{"twice", func(r *http.Request) {
			r.Header["Authorization"] = []string{"Bearer " + token, "Bearer " + unknown}
		}, "several"},
		{"in the query", func(r *http.Request) { r.URL.RawQuery = "access_token=" + token }, "query string"},
		{"in the query, under any name", func(r *http.Request) { r.URL.RawQuery = "reason=" + token }, "query string"},
		{"in the query and in the header", func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer "+token)
			r.URL.RawQuery = "x=1&Access_Token=anything"
		}, "query string"},
		{"another query", func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer "+token)
			r.URL.RawQuery = "wait=30s&after=eyJjdXJzb3IiOjF9"
		}, ""},
	} {
		req := ask("")
		tt.edit(req)
		id, err := g.Check(req, Campaign, "billing-eu")
		if tt.want == "" && (err != nil || id.Name != "node-1") || tt.want != "" && (status(err) != 401 || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, %v", tt.name, id, err)
		}
	}
}

// A file with a credential instead of its hash, or with one hash for two names, is refused,
// and the error does not quote it.
func TestBadTokenFile(t *testing.T) {
	token, hash := bearer.NewCredential()
	for text, want := range map[string]string{
		`{"credentials":[{"name":"n","sha256":"` + token + `"}]}`:                                     "put the hash there",
		`{"credentials":[{"name":"n","` + token + `":1}]}`:                                            "unknown field",
		`{"credentials":[{"name":"n","sha256":"` + hash + `"},{"name":"m","sha256":"` + hash + `"}]}`: "listed for n",
		`{"credentials":[{"name":"` + token + `","sha256":"` + hash + `"}]}`:                          "not a node id",
		`{"credentials":[{"sha256":"` + hash + `"}]}`:                                                 "not a node id",
		`{"credentials":[{"name":"n","sha256":"` + hash + `","expires":"soon"}]}`:                     "JSON",
		`{"credentials":`: "JSON",
	} {
		_, err := bearer.ParseCredentials([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
