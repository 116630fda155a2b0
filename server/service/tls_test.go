package service

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	path string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.path, _ = a.issue("ca", a.cert)
	return a
}

// issue writes a certificate and its key.
func (a *authority) issue(name string, c *x509.Certificate) (certPath, keyPath string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.key == nil {
		a.key = key // its own
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(a.dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			a.t.Fatal(err)
		}
		return path
	}
	return write(name+".pem", "CERTIFICATE", der), write(name+".key", "PRIVATE KEY", raw)
}

func (a *authority) put(name, text string) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func (a *authority) pool() *x509.CertPool {
	a.t.Helper()
	pool := x509.NewCertPool()
	ca, err := os.ReadFile(a.path)
	if err != nil || !pool.AppendCertsFromPEM(ca) {
		a.t.Fatal(err)
	}
	return pool
}

func leaf(n int64, name string, use x509.ExtKeyUsage) *x509.Certificate {
	c := &x509.Certificate{SerialNumber: big.NewInt(n), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{use}}
	if use == x509.ExtKeyUsageServerAuth {
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	return c
}

// serveTLS starts an instance with its own gate, and returns its address.
func serveTLS(t *testing.T, cfg auth.Config) (string, *auth.Gate) {
	t.Helper()
	gate, err := auth.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.Close)
	svc, err := New(t.Context(), Config{Store: memStore(t), Gate: gate, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(svc.Close)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- svc.Serve(ctx, ln, gate.TLS(), Limits()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-end; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String(), gate
}

const nodesPolicy = `{"roles":{"node":[{"prefix":"","verbs":["campaign","observe"]}]},"names":{"node-*":["node"]}}`

// Over TLS the client certificate identifies the caller, over HTTP/2 and in streams too. A
// caller without one is told what is required.
func TestMutualTLS(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue("server", leaf(2, "localhost", x509.ExtKeyUsageServerAuth))
	clientCert, clientKey := a.issue("node", leaf(3, "node-a", x509.ExtKeyUsageClientAuth))
	addr, _ := serveTLS(t, auth.Config{Listen: "127.0.0.1:0", TLS: auth.TLS{Cert: cert, Key: key, ClientCAs: a.path}, Policy: a.put("policy.json", nodesPolicy)})
	pool := a.pool()
	pair, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	known := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}}
	defer known.CloseIdleConnections()
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer stranger.CloseIdleConnections()
	post := func(c *http.Client, node string) (int, int) {
		t.Helper()
		resp, err := c.Post("https://"+addr+"/v1/groups/billing/campaign", "application/json", strings.NewReader(`{"node_id":"`+node+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var said map[string]json.RawMessage
		if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.ProtoMajor
	}
	if status, major := post(known, "node-a"); status != 200 || major != 2 {
		t.Errorf("node-a: %d over HTTP/%d", status, major)
	}
	if status, _ := post(known, "node-b"); status != 403 {
		t.Errorf("node-a as node-b: %d", status)
	}
	if status, _ := post(stranger, "node-a"); status != 401 {
		t.Errorf("without a certificate: %d", status)
	}
	resp, err := known.Get("https://" + addr + "/v1/groups/billing/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	events := make(chan sse, 16)
	go func() { readEvents(resp.Body, events); _, _ = io.Copy(io.Discard, resp.Body) }()
	select {
	case e := <-events:
		if e.State != "led" || e.Holder != "node-a" {
			t.Errorf("%+v", e)
		}
	case <-time.After(patience):
		t.Error("no event came")
	}
}

// The service's certificate and its client CAs are replaced without a restart: new
// connections see the new certificate, and a caller whose CA was removed is refused, even on
// an existing connection.
func TestReloadTLS(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	cert, key := a.issue("server", leaf(2, "localhost", x509.ExtKeyUsageServerAuth))
	clientCert, clientKey := a.issue("node", leaf(3, "node-a", x509.ExtKeyUsageClientAuth))
	cas := filepath.Join(a.dir, "cas.pem")
	copyFile(t, a.path, cas)
	addr, gate := serveTLS(t, auth.Config{Listen: "127.0.0.1:0", TLS: auth.TLS{Cert: cert, Key: key, ClientCAs: cas}, Policy: a.put("policy.json", nodesPolicy)})
	pair, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	node := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool(), Certificates: []tls.Certificate{pair}}}}
	defer node.CloseIdleConnections()
	ask := func() (status int, serial int64) {
		t.Helper()
		resp, err := node.Get("https://" + addr + "/v1/groups")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	if status, serial := ask(); status != 200 || serial != 2 {
		t.Errorf("%d by certificate %d", status, serial)
	}
	a.issue("server", leaf(9, "localhost", x509.ExtKeyUsageServerAuth))
	if err := gate.Reload(); err != nil {
		t.Fatal(err)
	}
	if status, serial := ask(); status != 200 || serial != 2 {
		t.Errorf("on the old connection: %d by certificate %d", status, serial)
	}
	node.CloseIdleConnections()
	if status, serial := ask(); status != 200 || serial != 9 {
		t.Errorf("on a new connection: %d by certificate %d", status, serial)
	}
	copyFile(t, other.path, cas)
	if err := gate.Reload(); err != nil {
		t.Fatal(err)
	}
	if status, _ := ask(); status != 401 {
		t.Errorf("its authority is gone: %d", status)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
