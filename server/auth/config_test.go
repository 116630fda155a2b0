package auth

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/auth/limit"
)

// On other addresses than loopback the service does not start without credentials, or with bearer credentials over
// plain HTTP, unless Insecure is set. The error of a contradictory configuration names the contradiction.
func TestExposure(t *testing.T) {
	full := TLS{Cert: "c", Key: "k", ClientCAs: "ca"}
	for _, tt := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"loopback", Config{Listen: "127.0.0.1:1"}, ""},
		{"loopback 6", Config{Listen: "[::1]:1"}, ""},
		{"localhost", Config{Listen: "localhost:1"}, ""},
		{"everywhere", Config{Listen: ":1"}, "no credentials"},
		{"everywhere 4", Config{Listen: "0.0.0.0:1"}, "no credentials"},
		{"everywhere 6", Config{Listen: "[::]:1"}, "no credentials"},
		{"an address", Config{Listen: "10.0.0.1:1"}, "no credentials"},
		{"a name that only begins like loopback", Config{Listen: "127.0.0.1.example.org:1"}, "no credentials"},
		{"TLS is no credential", Config{Listen: ":1", TLS: TLS{Cert: "c", Key: "k"}}, "no credentials"},
		{"insecure", Config{Listen: ":1", Insecure: true}, ""},
		{"tokens in the clear", Config{Listen: ":1", Credentials: "t", Policy: "p"}, "unencrypted"},
		{"tokens behind a proxy", Config{Listen: ":1", Credentials: "t", Policy: "p", Insecure: true}, ""},
		{"certificates", Config{Listen: ":1", TLS: full, Policy: "p"}, ""},
		{"nowhere", Config{}, "Listen"},
		{"no policy", Config{Listen: ":1", TLS: full}, "policy"},
		{"policy for nobody", Config{Listen: "127.0.0.1:1", Policy: "p"}, "nobody"},
		{"CAs without TLS", Config{Listen: "127.0.0.1:1", TLS: TLS{ClientCAs: "ca"}, Policy: "p"}, "need TLS"},
		{"certificate without key", Config{Listen: "127.0.0.1:1", TLS: TLS{Cert: "c"}}, "key"},
		{"any URI", Config{Listen: ":1", TLS: TLS{Cert: "c", Key: "k", ClientCAs: "ca", Name: "uri:"}, Policy: "p"}, "prefix"},
		{"JWT without audience", Config{Listen: "127.0.0.1:1", JWT: bearer.JWT{Keys: "k", Issuer: "i"}, Policy: "p"}, "audience"},
		{"JWT by secret", Config{Listen: "127.0.0.1:1", JWT: bearer.JWT{Keys: "k", Issuer: "i", Audience: "a", Algorithms: []string{"HS256"}}, Policy: "p"}, "HS256"},
		{"JWT by nothing", Config{Listen: "127.0.0.1:1", JWT: bearer.JWT{Keys: "k", Issuer: "i", Audience: "a", Algorithms: []string{"none"}}, Policy: "p"}, "none"},
		{"negative", Config{Listen: "127.0.0.1:1", Limits: limit.Config{Rate: -1}}, "negative"},
		{"one audit file", Config{Listen: "127.0.0.1:1", Audit: audit.File{Files: 1}}, "audit"},
	} {
		err := tt.cfg.Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, err := New(Config{Listen: ":1"}); err == nil {
		t.Error("New started it")
	}
}

// On loopback without credentials a local caller may use any name and do everything. A web
// page may not, neither by a name that resolves to 127.0.0.1 nor from another origin.
func TestLoopback(t *testing.T) {
	g := newRig(t).gate(Config{})
	for _, tt := range []struct {
		name string
		edit func(*http.Request)
		want int
	}{
		{"as it is", func(*http.Request) {}, 200},
		{"localhost", func(r *http.Request) { r.Host = "localhost:7600" }, 200},
		{"six", func(r *http.Request) { r.Host, r.RemoteAddr = "[::1]:7600", "[::1]:9" }, 200},
		{"rebound name", func(r *http.Request) { r.Host = "evil.example:7600" }, 403},
		{"another machine", func(r *http.Request) { r.RemoteAddr = "10.0.0.2:9" }, 403},
		{"another origin", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, 403},
		{"another site", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
	} {
		req := ask("")
		tt.edit(req)
		id, err := g.Check(req, Admin, "billing-eu")
		if status(err) != tt.want || err == nil && (id.How != Loopback || id.Is("anybody") != nil) {
			t.Errorf("%s: %v, %v", tt.name, id, err)
		}
	}
}

// With Insecure the service accepts callers of other machines by their word, and counts them
// by address.
func TestInsecure(t *testing.T) {
	g := newRig(t).gate(Config{Listen: ":1", Insecure: true, Limits: limit.Config{Rate: 1, Burst: 1}})
	for _, tt := range []struct {
		remote string
		want   int
	}{{"10.0.0.1:1", 200}, {"10.0.0.1:2", 429}, {"10.0.0.2:1", 200}} {
		req := ask("")
		req.RemoteAddr = tt.remote
		if id, err := g.Check(req, Campaign, "g"); status(err) != tt.want || err == nil && id.How != Insecure {
			t.Errorf("%s: %v, %v", tt.remote, id, err)
		}
	}
}
