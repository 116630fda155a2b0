package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
)

// server is a process that serves on loopback and can be killed and restarted on its data.
type server struct {
	t     *testing.T
	name  string
	path  string
	args  []string
	addr  string
	ready func(ctx context.Context) error

	run *child.Process
	out *child.Tail
}

// Start starts it and waits until it is ready.
func (s *server) Start() {
	s.t.Helper()
	cmd := exec.Command(s.path, s.args...)
	s.out = &child.Tail{}
	cmd.Stdout, cmd.Stderr = s.out, s.out
	cmd.WaitDelay = time.Second
	child.DieWithParent(cmd)
	run, err := child.Start(cmd, nil)
	if err != nil {
		s.t.Fatalf("start %s: %v", s.name, err)
	}
	s.run = run
	ctx, cancel := context.WithTimeout(s.t.Context(), wait)
	defer cancel()
	for {
		err := s.ready(ctx)
		if err == nil {
			return
		}
		select {
		case <-run.Exited:
			s.t.Fatalf("%s has ended: %v\n%s", s.name, run.Err, s.out)
		case <-ctx.Done():
			s.t.Fatalf("%s does not serve: %v\n%s", s.name, err, s.out)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill kills it (SIGKILL).
func (s *server) Kill() {
	if s.run != nil {
		s.run.Kill()
		s.run = nil
	}
}

// Addr returns host:port.
func (s *server) Addr() string { return s.addr }

// ask sends a request and decodes the answer, if into is given.
func ask(ctx context.Context, c *http.Client, method, url string, header http.Header, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return err
	}
	if header != nil {
		req.Header = header
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %.200s", method, url, resp.Status, body)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

// startConsul starts one Consul server that keeps its data.
func startConsul(t *testing.T, path string) *server {
	t.Helper()
	ports, err := child.FreePorts(4)
	if err != nil {
		t.Fatal(err)
	}
	port := func(i int) string {
		_, p, _ := net.SplitHostPort(ports[i])
		return p
	}
	s := &server{t: t, name: "consul", path: path, addr: ports[0]}
	s.args = []string{
		"agent", "-server", "-bootstrap-expect=1", "-node=one", "-data-dir=" + t.TempDir(),
		"-bind=127.0.0.1", "-client=127.0.0.1", "-http-port=" + port(0), "-server-port=" + port(1),
		"-serf-lan-port=" + port(2), "-serf-wan-port=" + port(3), "-dns-port=-1", "-grpc-port=-1", "-grpc-tls-port=-1",
		"-log-level=warn", "-hcl=disable_update_check = true", "-hcl=performance { raft_multiplier = 1 }",
	}
	s.ready = func(ctx context.Context) error {
		var checks []struct{ CheckID, Status string }
		if err := ask(ctx, http.DefaultClient, http.MethodGet, "http://"+s.addr+"/v1/health/node/one?consistent", nil, &checks); err != nil {
			return err
		}
		for _, c := range checks {
			if c.CheckID == "serfHealth" && c.Status == "passing" {
				return nil
			}
		}
		return fmt.Errorf("its node is not healthy yet: %v", checks)
	}
	t.Cleanup(s.Kill)
	s.Start()
	return s
}

// kube is a Kubernetes API server with its own etcd.
type kube struct {
	*server
	etcd  *enginetest.Engine
	token string
}

func startKube(t *testing.T, path string) *kube {
	t.Helper()
	ports, err := child.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(ports[0])
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	key, tokens := filepath.Join(dir, "accounts.key"), filepath.Join(dir, "tokens.csv")
	k := &kube{etcd: enginetest.Cluster(t, 1), token: rand.Text()}
	if err := writeKey(key); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tokens, []byte(k.token+`,compare,compare,"system:masters"`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.server = &server{t: t, name: "kube-apiserver", path: path, addr: ports[0]}
	k.args = []string{
		"--etcd-servers=" + k.etcd.Members[0].Endpoint(), "--bind-address=127.0.0.1", "--secure-port=" + port,
		"--cert-dir=" + dir, "--service-account-issuer=https://compare.example",
		"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--token-auth-file=" + tokens,
		"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
	}
	// It creates its certificate when it starts; requests are on loopback.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(client.CloseIdleConnections)
	k.ready = func(ctx context.Context) error {
		return ask(ctx, client, http.MethodGet, "https://"+k.addr+"/api/v1/namespaces/default", http.Header{"Authorization": {"Bearer " + k.token}}, nil)
	}
	t.Cleanup(k.Kill)
	k.Start()
	return k
}

// writeKey creates the key that an API server signs account tokens with. None is used here, but
// the server does not start without it.
func writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// wipe deletes the data of an etcd and restarts it.
func wipe(t *testing.T, e *enginetest.Engine) {
	t.Helper()
	for _, m := range e.Members {
		m.Kill()
		if err := os.RemoveAll(m.DataDir()); err != nil {
			t.Fatal(err)
		}
	}
	e.Start()
}
