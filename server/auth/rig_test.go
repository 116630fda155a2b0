package auth

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/httpapi"
)

const somePolicy = `{
	"roles": {
		"node":     [{"prefix": "billing-", "verbs": ["campaign", "observe"]}],
		"reader":   [{"prefix": "", "verbs": ["observe"]}],
		"operator": [{"prefix": "billing-", "verbs": ["step-down"]}, {"prefix": "", "verbs": ["admin"]}]
	},
	"names": {"node-*": ["node"], "alice": ["operator"], "*": [], "rita": ["reader"]},
	"refused": ["node-7"]
}`

// rig is a directory of files and what was logged.
type rig struct {
	t    *testing.T
	dir  string
	log  *logged
	time *manualClock
}

// logged is what went to the log.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// manualClock is a clock that stands still unless the test advances it.
type manualClock struct {
	mu  sync.Mutex
	now time.Time
}

func (h *manualClock) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *manualClock) move(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, dir: t.TempDir(), log: &logged{}, time: &manualClock{now: time.Now()}}
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// put writes a file atomically, by renaming.
func (r *rig) put(name, text string) string {
	r.t.Helper()
	next := r.path(name + ".next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(next, r.path(name)); err != nil {
		r.t.Fatal(err)
	}
	return r.path(name)
}

// gate opens a gate on loopback with the test's clock; it is closed with the test.
func (r *rig) gate(cfg Config) *Gate {
	r.t.Helper()
	cfg.Listen = cmp.Or(cfg.Listen, "127.0.0.1:0")
	cfg.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.Now = r.time.Now
	cfg.Poll = cmp.Or(cfg.Poll, time.Hour)
	g, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(g.Close)
	return g
}

// tokenFile writes a file with one credential for each name.
func (r *rig) tokenFile(hashes map[string]string) string {
	var lines []string
	for hash, name := range hashes {
		lines = append(lines, fmt.Sprintf(`{"name": %q, "sha256": %q}`, name, hash))
	}
	return r.put("tokens", `{"credentials": [`+strings.Join(lines, ",")+`]}`)
}

// withTokens is a gate with one credential for each name.
func (r *rig) withTokens(cfg Config, names ...string) (*Gate, map[string]string) {
	r.t.Helper()
	hashes, byName := make(map[string]string), make(map[string]string)
	for _, name := range names {
		token, hash := bearer.NewCredential()
		hashes[hash], byName[name] = name, token
	}
	cfg.Credentials = r.tokenFile(hashes)
	if cfg.Policy == "" {
		cfg.Policy = r.put("policy", somePolicy)
	}
	return r.gate(cfg), byName
}

func ask(bearer string) *http.Request {
	req := httptest.NewRequest("POST", "http://127.0.0.1/v1/groups/billing-eu/campaign", http.NoBody)
	req.RemoteAddr = "127.0.0.1:4711"
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	return req
}

// status returns the status of a problem, or 200.
func status(err error) int {
	var p *httpapi.Problem
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &p):
		return p.Status
	}
	return -1
}

// eventually polls until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("it did not come about: %s", what)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func publicPEM(t testing.TB, key any, kid string) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	b := &pem.Block{Type: "PUBLIC KEY", Bytes: der}
	if kid != "" {
		b.Headers = map[string]string{"Key-Id": kid}
	}
	return string(pem.EncodeToMemory(b))
}

func (r *rig) goodClaims() jwt.MapClaims {
	now := r.time.Now()
	return jwt.MapClaims{"iss": "https://issuer.test", "aud": "tenure", "sub": "node-1", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
}

func sign(t testing.TB, method jwt.SigningMethod, header map[string]any, claims jwt.MapClaims, key any) string {
	t.Helper()
	tok := jwt.NewWithClaims(method, claims)
	for k, v := range header {
		tok.Header[k] = v
	}
	s, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ca issues certificates.
type ca struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newCA(t *testing.T, name string) *ca {
	t.Helper()
	c := &ca{t: t, key: newKey(t)}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &c.key.PublicKey, c.key)
	if err != nil {
		t.Fatal(err)
	}
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *ca) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw}))
}

// issue signs a certificate, for a client unless tmpl says otherwise.
func (c *ca) issue(tmpl x509.Certificate) (certPEM, keyPEM string) {
	c.t.Helper()
	c.n++
	tmpl.SerialNumber = big.NewInt(100 + c.n)
	tmpl.NotBefore = cmp.Or(tmpl.NotBefore, time.Now().Add(-time.Hour))
	tmpl.NotAfter = cmp.Or(tmpl.NotAfter, time.Now().Add(time.Hour))
	if tmpl.ExtKeyUsage == nil {
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	key := newKey(c.t)
	der, err := x509.CreateCertificate(rand.Reader, &tmpl, c.cert, &key.PublicKey, c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}))
}

func (c *ca) client(tmpl x509.Certificate) tls.Certificate {
	c.t.Helper()
	cert, key := c.issue(tmpl)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		c.t.Fatal(err)
	}
	return pair
}

func (c *ca) server() (certPEM, keyPEM string) {
	return c.issue(x509.Certificate{DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// auditLines reads a file of lines, each of which must be JSON.
func auditLines(t *testing.T, path string) []audit.Entry {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []audit.Entry
	for _, l := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if l == "" {
			continue
		}
		var v audit.Entry
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			t.Fatalf("the audit has the line %q: %v", l, err)
		}
		all = append(all, v)
	}
	return all
}
