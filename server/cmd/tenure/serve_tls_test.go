package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/service"
)

// issue writes a CA and a certificate of it for node-1 on 127.0.0.1 as server and client, with its key.
func issue(t *testing.T, dir string) (ca, cert, key string) {
	t.Helper()
	put := func(name, kind string, der []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	newKey := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	until := time.Now().Add(time.Hour)
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: until, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: until, DNSNames: []string{"node-1"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	caKey, leafKey := newKey(), newKey()
	caDER, err := x509.CreateCertificate(rand.Reader, authority, authority, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, authority, &leafKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	return put("ca.pem", "CERTIFICATE", caDER), put("leaf.pem", "CERTIFICATE", leafDER), put("leaf.key", "PRIVATE KEY", raw)
}

// secureEngine starts an engine with TLS that requires certificates.
func secureEngine(t *testing.T, dir, ca, cert, key string) (addr string) {
	t.Helper()
	cmd := exec.Command(enginetest.Program(t), "-data-dir", filepath.Join(dir, "data"), "-client", "https://127.0.0.1:0", "-cert", cert, "-key", key, "-ca", ca)
	child.DieWithParent(cmd)
	said := &child.Tail{}
	cmd.Stderr = said
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	line := make(chan []byte, 1)
	p, err := child.Start(cmd, func() {
		text, _ := bufio.NewReader(stdout).ReadBytes('\n')
		line <- text
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	var ready struct {
		Endpoints []string `json:"endpoints"`
	}
	select {
	case text := <-line:
		err = json.Unmarshal(text, &ready)
	case <-time.After(time.Minute):
	}
	if err != nil || len(ready.Endpoints) != 1 {
		t.Fatalf("the engine is not ready: %v %s", err, said)
	}
	addr, secure := strings.CutPrefix(ready.Endpoints[0], "https://")
	if !secure {
		t.Fatalf("the engine serves %s", ready.Endpoints[0])
	}
	return addr
}

// A service connects to its engine over TLS with a certificate. Without one, or with a CA
// that did not sign the engine's, it does not start.
func TestServeSecureStore(t *testing.T) {
	dir := t.TempDir()
	ca, cert, key := issue(t, dir)
	addr := secureEngine(t, dir, ca, cert, key)
	store := []string{"--store", "etcds://" + addr}
	p := startServe(t, append(store, "--store-ca", ca, "--store-cert", cert, "--store-key", key)...)
	var l service.Leading
	p.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "a", Instance: "process-a-of-the-test"}, &l)
	if l.Term != 1 {
		t.Errorf("%+v", l)
	}
	otherCA, _, _ := issue(t, t.TempDir())
	for name, args := range map[string][]string{
		"no certificate":    {"--store-ca", ca},
		"another authority": {"--store-ca", otherCA, "--store-cert", cert, "--store-key", key},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		var stdout, stderr bytes.Buffer
		code := run(ctx, append(append([]string{"serve", "--listen", "127.0.0.1:0"}, store...), args...), environment(), strings.NewReader(""), &stdout, &stderr)
		cancel()
		if code != cli.ExitUnavailable || stdout.Len() > 0 {
			t.Errorf("%s: %d, %s%s", name, code, &stdout, &stderr)
		}
	}
}
