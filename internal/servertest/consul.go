package servertest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// Consul starts a Consul server and waits until it serves. It is stopped when the test ends.
// Its URL is that of the HTTP API. Restart keeps the data. With Args("-dev") it keeps data in
// memory only, so that Restart loses it.
func Consul(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return ConsulCluster(t, 1, opts...)[0]
}

// ConsulTLS makes Consul's API use TLS with the certificate in these files.
func ConsulTLS(cert, key string) Option {
	return func(o *options) {
		o.tls = true
		o.args = append(o.args, "-hcl", fmt.Sprintf("tls { https { cert_file = %q  key_file = %q } }", cert, key))
	}
}

// ConsulCluster starts Consul servers that form one cluster.
func ConsulCluster(t testing.TB, size int, opts ...Option) []*Server {
	t.Helper()
	program, err := build("consul", ".")
	if err != nil {
		unavailable(t, "Consul", err)
	}
	const perServer = 4 // HTTP, DNS, Serf, Raft
	addrs, err := child.FreePorts(perServer * size)
	if err != nil {
		t.Fatal(err)
	}
	ports := make([]string, len(addrs))
	for i, addr := range addrs {
		if _, ports[i], err = net.SplitHostPort(addr); err != nil {
			t.Fatal(err)
		}
	}
	o := collect(opts)
	scheme, port := "http", "-http-port"
	if o.tls {
		scheme, port = "https", "-https-port"
		o.args = append(o.args, "-http-port", "-1")
	}
	var servers []*Server
	for i := range size {
		p := ports[perServer*i:]
		s := &Server{
			// Another user could not reach a program in a checkout that is private.
			t: t, name: "Consul", program: program, own: true, addr: addrs[perServer*i], dns: addrs[perServer*i+1],
			args: []string{
				"-server", "-node", fmt.Sprintf("consul-%d", i), "-data-dir", dataDir(t), "-log-level", "warn",
				"-bind", "127.0.0.1", "-client", "127.0.0.1",
				port, p[0], "-dns-port", p[1], "-serf-lan-port", p[2], "-server-port", p[3],
				"-serf-wan-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1",
				"-hcl", `disable_update_check = true  peering { enabled = false }  performance { raft_multiplier = 1 }  leave_on_terminate = false  limits { http_max_conns_per_client = 2000 }`,
			},
		}
		s.url = scheme + "://" + s.addr
		s.ready = func() error { return consulReady(s.url) }
		if !slices.Contains(o.args, "-dev") { // such a server elects itself
			s.args = append(s.args, "-bootstrap-expect", fmt.Sprint(size))
		}
		for j := range size {
			if j != i {
				s.args = append(s.args, "-retry-join", addrs[perServer*j+2])
			}
		}
		s.args = append(s.args, "-retry-interval", "1s")
		s.args = append(s.args, o.args...)
		t.Cleanup(s.end)
		servers = append(servers, s)
	}
	// No server is ready before most of them run.
	var all sync.WaitGroup
	failed := make([]error, size)
	for i, s := range servers {
		all.Go(func() { failed[i] = s.start() })
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Fatalf("start Consul: %v", err)
	}
	return servers
}

// consulReady reads a key, which a server without a leader refuses. A server that was just
// elected may still refuse tokens.
func consulReady(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/kv/ready?consistent", http.NoBody)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // nothing is sent to it
	}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusNotFound && answer.StatusCode != http.StatusForbidden {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	return nil
}
