package consul_test

import (
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
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/consul"
	"github.com/tenurehq/tenure/store/storetest"
)

// refused opens a store that cannot be opened: the error names the cause within seconds.
func refused(t *testing.T, cfg consul.Config, says ...string) error {
	t.Helper()
	start := time.Now()
	s, err := consul.Open(t.Context(), cfg)
	if err == nil {
		s.Close()
		t.Fatal("opened")
	}
	for _, word := range says {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	return err
}

// Wrong addresses, prefixes and servers are errors that name them.
func TestBadInput(t *testing.T) {
	t.Parallel()
	const nobody = "http://127.0.0.1:1"
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"Results":null,"Errors":[{"OpIndex":0,"What":"unknown KV operation: get-or-empty"}]}`))
	}))
	t.Cleanup(old.Close)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for name, c := range map[string]struct {
		cfg  consul.Config
		says []string
	}{
		"no addresses": {consul.Config{}, []string{"addresses"}},
		"odd address":  {consul.Config{Addresses: []string{"a b"}}, []string{"http://host:port"}},
		"nobody there": {consul.Config{Addresses: []string{nobody}}, []string{"127.0.0.1:1", "refused"}},
		"no answer":    {consul.Config{Addresses: []string{"http://" + silent.Addr().String()}}, []string{silent.Addr().String(), "no answer in time"}},
		"no Consul":    {consul.Config{Addresses: []string{other.URL}}, []string{other.URL, "404"}},
		"old Consul":   {consul.Config{Addresses: []string{old.URL}}, []string{old.URL, "1.14"}},
		"odd prefix":   {consul.Config{Addresses: []string{nobody}, Prefix: "/x"}, []string{"prefix", "/x"}},
		"dots":         {consul.Config{Addresses: []string{nobody}, Prefix: "x/../y"}, []string{"prefix", "x/../y"}},
		"no TLS":       {consul.Config{Addresses: []string{nobody}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, []string{"https://"}},
	} {
		t.Run(name, func(t *testing.T) { _ = refused(t, c.cfg, c.says...) })
	}
}

// What a newer program has written is refused, and stays as it is.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t)
	const newer = `{"format":99}`
	api(t, server, http.MethodPut, "kv/tenure/meta", []byte(newer))
	if err := refused(t, at(server), "tenure/meta", "99"); !errors.Is(err, store.ErrNewer) {
		t.Error(err)
	}
	if got := api(t, server, http.MethodGet, "kv/tenure/meta?raw", nil); string(got) != newer {
		t.Errorf("meta is %s", got)
	}
}

// A token with the rights that the package comment names is enough. Without them the error is
// permanent and says what is missing.
func TestRights(t *testing.T) {
	t.Parallel()
	const root = "11111111-1111-4111-8111-111111111111"
	server := servertest.Consul(t, servertest.Args("-hcl",
		`acl { enabled = true  default_policy = "deny"  tokens { initial_management = "`+root+`"  agent = "`+root+`" } }`))
	n := 0
	token := func(rules string) string {
		t.Helper()
		n++
		name := fmt.Sprint("rules-", n)
		var made struct{ SecretID string }
		text, err := json.Marshal(map[string]string{"Name": name, "Rules": rules})
		if err != nil {
			t.Fatal(err)
		}
		// The server may still be setting up its first token.
		storetest.Eventually(t, func() error { _, err := call(t, server, http.MethodPut, "acl/policy", root, text); return err })
		text, err = call(t, server, http.MethodPut, "acl/token", root, []byte(`{"Policies":[{"Name":"`+name+`"}]}`))
		if err == nil {
			err = json.Unmarshal(text, &made)
		}
		if err != nil {
			t.Fatal(err)
		}
		return made.SecretID
	}
	with := func(token string) consul.Config {
		c := at(server)
		c.Token = token
		return c
	}
	for name, c := range map[string]struct {
		token string
		want  error
		says  string
	}{
		"unknown token": {"22222222-2222-4222-8222-222222222222", store.ErrUnauthenticated, "token"},
		"no token":      {"", store.ErrDenied, "tenure/"},
		"read only":     {token(`key_prefix "tenure/" { policy = "read" }`), store.ErrDenied, "key:write"},
		"another key":   {token(`key_prefix "other/" { policy = "write" }`), store.ErrDenied, "tenure/"},
	} {
		t.Run(name, func(t *testing.T) {
			err := refused(t, with(c.token), c.says)
			if !errors.Is(err, c.want) || !store.Permanent(err) || c.token != "" && strings.Contains(err.Error(), c.token) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	if text, err := call(t, server, http.MethodGet, "kv/?keys", root, nil); err != nil || string(text) != "[]" {
		t.Errorf("keys were created: %s, %v", text, err)
	}
	enough := with(token(`key_prefix "tenure/" { policy = "write" }  service "billing" { policy = "write" }`))
	s := open(t, enough)
	term := storetest.Lead(t, storetest.Elector(t, storetest.Node(t, s, "a", lease.Timing{TTL: 10 * time.Second}, "billing"), "billing"))
	published := make(chan error, 1)
	go func() { published <- s.Publish(term, consul.Service{Port: 80}) }()
	storetest.Eventually(t, func() error {
		_, err := call(t, server, http.MethodGet, fmt.Sprintf("agent/service/billing-%d", term.Token()), root, nil)
		return err
	})
	if err := s.Publish(term, consul.Service{Name: "other"}); !errors.Is(err, store.ErrDenied) {
		t.Errorf("a service without rights: %v", err)
	}
	if err := term.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-published; err != nil {
		t.Error(err)
	}
}

// Connections are encrypted and the server is verified.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, cert, key := certificate(t)
	server := servertest.Consul(t, servertest.ConsulTLS(cert, key))
	_, port, _ := strings.Cut(server.Addr(), ":")
	cfg, err := consul.Parse("consuls://127.0.0.1:" + port + "/a/b?ca=" + ca)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := open(t, cfg).Meta(t.Context()); err != nil || m.Deployment == "" {
		t.Errorf("%+v, %v", m, err)
	}
	_ = refused(t, consul.Config{Addresses: cfg.Addresses}, "certificate")
	_ = refused(t, consul.Config{Addresses: []string{"http://127.0.0.1:" + port}}, "HTTPS")
}

// certificate makes one for loopback that signs itself, in files that every user can read.
func certificate(t *testing.T) (ca, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "server.dc1.consul"}, DNSNames: []string{"server.dc1.consul", "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "tenure-consul-tls-")
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	err = errors.Join(err,
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return cert, cert, key
}

// A URL says everything that a Config can. An error never repeats the token.
func TestParse(t *testing.T) {
	c, err := consul.Parse("consul://:s%2Fcret@a:8500,b:8500/x/y?check=serfHealth&check=mine&deployment=d")
	if err != nil || strings.Join(c.Addresses, " ") != "http://a:8500 http://b:8500" || c.Prefix != "x/y" || c.Token != "s/cret" ||
		strings.Join(c.Checks, " ") != "serfHealth mine" || c.Deployment != "d" || c.TLS != nil {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = consul.Parse("consuls://a:8501"); err != nil || c.Token != "" || c.TLS == nil || c.Addresses[0] != "https://a:8501" {
		t.Errorf("%+v, %v", c, err)
	}
	for _, text := range []string{
		"", "consul://", "http://:secret@a", "consul://:secret@", "consul://:secret%zz@a", "consul://:secret@a?unknown=1", "consul://:secret@a?x=%zz",
		"consul://:secret@a?ca=/tmp/x", "consuls://:secret@a?ca=/nowhere/x", "consul://:secret@a?ca=/dev/null",
		"consul://:secret@a b", "consul://:secret@a/x//y", "consul://user:secret@a:b:c",
	} {
		if _, err := consul.Parse(text); !errors.Is(err, store.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
