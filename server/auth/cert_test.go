package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// serveTLS serves one guarded route that answers with the caller's name.
func serveTLS(t *testing.T, g *Gate) *httptest.Server {
	t.Helper()
	h, err := g.Guard(Rule{Verb: Campaign, Groups: func(*http.Request) []string { return []string{"billing-eu"} }}, func(w http.ResponseWriter, r *http.Request) {
		id := From(r.Context())
		_, _ = io.WriteString(w, id.Name+" "+string(id.How))
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.TLS = g.TLS()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// visitor is a client with one certificate, or none.
func visitor(t *testing.T, c *ca, certs ...tls.Certificate) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(c.cert)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "localhost"}}
	if len(certs) > 0 {
		// Sent whatever the server asks for, as an attacker would.
		tr.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certs[0], nil }
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// visit returns the body of a 200, the detail of a problem, or the error.
func visit(t *testing.T, c *http.Client, addr, bearer string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", addr, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	var p struct{ Detail string }
	if json.Unmarshal(body, &p) == nil && p.Detail != "" {
		return resp.StatusCode, p.Detail
	}
	return resp.StatusCode, string(body)
}

func (r *rig) tlsConfig(server, clients *ca) Config {
	cert, key := server.server()
	return Config{
		TLS:    TLS{Cert: r.put("cert", cert), Key: r.put("key", key), ClientCAs: r.put("cas", clients.pem())},
		Policy: r.put("policy", somePolicy),
	}
}

// The node id is the configured part of the certificate and no other part. A certificate of
// another CA, for another use or out of date is refused.
func TestClientCertificate(t *testing.T) {
	server, clients, strangers := newCA(t, "server"), newCA(t, "clients"), newCA(t, "strangers")
	spiffe := mustURL(t, "spiffe://example.org/node/node-1")
	dns := x509.Certificate{DNSNames: []string{"node-1"}}
	for _, tt := range []struct {
		name   string
		from   CertName
		by     *ca
		cert   x509.Certificate
		status int
		want   string
	}{
		{"by DNS name", CertDNS, clients, dns, 200, "node-1 cert"},
		{"DNS name wanted, subject given", CertDNS, clients, x509.Certificate{Subject: pkix.Name{CommonName: "node-1"}}, 401, "0 names"},
		{"two DNS names", CertDNS, clients, x509.Certificate{DNSNames: []string{"node-1", "node-2"}}, 401, "2 names"},
		{"not a node id", CertDNS, clients, x509.Certificate{DNSNames: []string{"NODE-1"}}, 401, "not a node id"},
		{"a wildcard", CertDNS, clients, x509.Certificate{DNSNames: []string{"*.example.org"}}, 401, "not a node id"},
		{"by subject", CertCN, clients, x509.Certificate{Subject: pkix.Name{CommonName: "node-1"}, DNSNames: []string{"alice"}}, 200, "node-1 cert"},
		{"subject wanted, DNS name given", CertCN, clients, dns, 401, "0 names"},
		{"by URI", "uri:spiffe://example.org/node/", clients, x509.Certificate{URIs: []*url.URL{spiffe, mustURL(t, "https://other.test")}}, 200, "node-1 cert"},
		{"URI of another domain", "uri:spiffe://example.net/node/", clients, x509.Certificate{URIs: []*url.URL{spiffe}}, 401, "0 names"},
		{"URI that goes on", "uri:spiffe://example.org/", clients, x509.Certificate{URIs: []*url.URL{spiffe}}, 401, "not a node id"},
		{"another CA", CertDNS, strangers, dns, 0, "tls"},
		{"a server's certificate", CertDNS, clients, x509.Certificate{DNSNames: []string{"node-1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, 0, "tls"},
		{"expired", CertDNS, clients, x509.Certificate{DNSNames: []string{"node-1"}, NotAfter: time.Now().Add(-time.Minute)}, 0, "tls"},
		{"known and not allowed", CertDNS, clients, x509.Certificate{DNSNames: []string{"stranger"}}, 403, "stranger (cert) may not campaign"},
		{"refused by name", CertDNS, clients, x509.Certificate{DNSNames: []string{"node-7"}}, 403, "refuses"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			cfg := r.tlsConfig(server, clients)
			cfg.TLS.Name = tt.from
			s := serveTLS(t, r.gate(cfg))
			code, said := visit(t, visitor(t, server, tt.by.client(tt.cert)), s.URL, "")
			if code != tt.status || !strings.Contains(said, tt.want) {
				t.Errorf("%d %s, want %d %s", code, said, tt.status, tt.want)
			}
		})
	}
}

// A caller without a certificate is told what is required. A certificate and a bearer
// credential must have the same name.
func TestCertificateAndToken(t *testing.T) {
	r := newRig(t)
	c := newCA(t, "all")
	g, tokens := r.withTokens(r.tlsConfig(c, c), "node-1", "node-2")
	s := serveTLS(t, g)
	one := c.client(x509.Certificate{DNSNames: []string{"node-1"}})
	for _, tt := range []struct {
		name, bearer string
		certs        []tls.Certificate
		status       int
		want         string
	}{
		{"neither", "", nil, 401, "show a client certificate, or send"},
		{"token", tokens["node-2"], nil, 200, "node-2 credential"},
		{"both, one name", tokens["node-1"], []tls.Certificate{one}, 200, "node-1 cert"},
		{"both, two names", tokens["node-2"], []tls.Certificate{one}, 401, "two different callers"},
		{"a good certificate and a wrong token", "tnr_x", []tls.Certificate{one}, 401, "not one of this service"},
	} {
		code, said := visit(t, visitor(t, c, tt.certs...), s.URL, tt.bearer)
		if code != tt.status || !strings.Contains(said, tt.want) {
			t.Errorf("%s: %d %s, want %d %s", tt.name, code, said, tt.status, tt.want)
		}
	}
}

// The service's own certificate and the CAs change without a restart. A connection whose CA
// is no longer trusted, or whose certificate has expired since, stays open, and its requests
// are refused.
func TestCertificatesReload(t *testing.T) {
	r := newRig(t)
	server, first, second := newCA(t, "server"), newCA(t, "first"), newCA(t, "second")
	g := r.gate(r.tlsConfig(server, first))
	s := serveTLS(t, g)
	old := visitor(t, server, first.client(x509.Certificate{DNSNames: []string{"node-1"}}))
	if code, said := visit(t, old, s.URL, ""); code != 200 {
		t.Fatalf("%d %s", code, said)
	}

	// Between two renames a poll may find a new key with the old certificate.
	cert, key := server.server()
	r.put("key", key)
	if err := g.Reload(); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a key of another certificate: %v", err)
	}
	fresh := func(c *ca) (int, string) {
		client := visitor(t, server, c.client(x509.Certificate{DNSNames: []string{"node-1"}}))
		var serial string
		client.Transport.(*http.Transport).TLSClientConfig.VerifyConnection = func(cs tls.ConnectionState) error {
			serial = cs.PeerCertificates[0].SerialNumber.String()
			return nil
		}
		code, _ := visit(t, client, s.URL, "")
		return code, serial
	}
	_, before := fresh(first)
	r.put("cert", cert)
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if code, after := fresh(first); code != 200 || after == before {
		t.Errorf("with the new certificate: %d, serial %s as before", code, after)
	}

	r.put("cas", "-----BEGIN CERTIFICATE-----\nbroken")
	if err := g.Reload(); err == nil {
		t.Error("a broken file of CAs was taken")
	}
	if code, _ := fresh(first); code != 200 {
		t.Errorf("with a broken file of CAs: %d", code)
	}
	var failures []string
	for _, src := range g.status() {
		if src.failure != "" {
			failures = append(failures, src.name)
		}
	}
	if len(failures) != 1 || failures[0] != "client CAs" || strings.Count(r.log.String(), "stays in force") != 2 {
		t.Errorf("said of the broken file: %v, %s", failures, r.log)
	}

	r.put("cas", second.pem())
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if code, said := visit(t, old, s.URL, ""); code != 401 || !strings.Contains(said, "not trusted any more") {
		t.Errorf("an open connection under the old CA: %d %s", code, said)
	}
	if code, _ := fresh(second); code != 200 {
		t.Errorf("under the new CA: %d", code)
	}
	r.put("cas", first.pem())
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if code, said := visit(t, old, s.URL, ""); code != 200 {
		t.Errorf("an open connection, its CA trusted again: %d %s", code, said)
	}
	r.time.move(2 * time.Hour)
	if code, said := visit(t, old, s.URL, ""); code != 401 || !strings.Contains(said, "expired") {
		t.Errorf("an open connection, its certificate expired: %d %s", code, said)
	}
}
