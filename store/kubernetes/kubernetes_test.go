package kubernetes_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/electortest"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kubernetes"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/kv/kvtest"
	"github.com/tenurehq/tenure/store/storetest"
	"github.com/tenurehq/tenure/tenuretest"
)

// cluster is an API server with its etcd.
type cluster struct {
	*servertest.KubernetesServer
	etcd *enginetest.Engine
}

func start(t *testing.T) *cluster {
	t.Helper()
	etcd := enginetest.Cluster(t, 1)
	return &cluster{servertest.Kubernetes(t, etcd.Endpoints()[0]), etcd}
}

// do sends a request as the admin and fails the test if it fails.
func (c *cluster) do(t *testing.T, method, path, contentType, body string) {
	t.Helper()
	if err := c.Do(t.Context(), method, path, contentType, strings.NewReader(body)); err != nil {
		t.Fatal(err)
	}
}

var namespaces atomic.Int64

// namespace makes a namespace of the test's own.
func (c *cluster) namespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("test-%d", namespaces.Add(1))
	c.do(t, http.MethodPost, "/api/v1/namespaces", "application/json", fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
	return name
}

// config is for the admin.
func (c *cluster) config(namespace string) kubernetes.Config {
	return kubernetes.Config{
		Namespace: namespace,
		REST:      &rest.Config{Host: c.URL(), BearerToken: c.Admin, TLSClientConfig: rest.TLSClientConfig{CAFile: c.CAFile}},
	}
}

func open(t *testing.T, cfg kubernetes.Config) *kubernetes.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := kubernetes.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// One API server serves the tests that do not break it.
func TestAPIServer(t *testing.T) {
	c := start(t)
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *cluster){
			"driver":       testDriver,
			"elector":      testElector,
			"quiet":        testQuiet,
			"readable":     testReadable,
			"deleted":      testDeleted,
			"bad input":    testBadInput,
			"newer format": testNewerFormat,
			"rights":       testRights,
			"no overlap":   testNoOverlap,
			"cut off":      testCutOff,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, c)
			})
		}
	})
	t.Run("protected", func(t *testing.T) { testProtected(t, c) }) // it is for the whole cluster
}

// Leases keep the contract of a driver.
func testDriver(t *testing.T, c *cluster) {
	namespace := c.namespace(t)
	kvtest.Run(t, kvtest.Engine{
		Open: func(t *testing.T) kv.Driver {
			d, closes, err := kubernetes.NewDriver(c.config(namespace))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(closes)
			return d
		},
	})
}

// Keep-alives are not announced, but the end of what they kept alive is.
func testQuiet(t *testing.T, c *cluster) {
	d, closes, err := kubernetes.NewDriver(c.config(c.namespace(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closes)
	hints := make(chan string, 100)
	go func() {
		for change, err := range d.Watch(t.Context(), time.Hour, "beat/") {
			if err != nil {
				close(hints)
				return
			}
			hints <- change.Key
		}
	}()
	// until counts the hints about the beat until another key is written and seen.
	until := func(end string) (n int) {
		t.Helper()
		if end != "" {
			if _, err := d.Commit(t.Context(), kv.Txn{Then: []kv.Write{{Key: end, Value: []byte("{}")}}}); err != nil {
				t.Fatal(err)
			}
		}
		for {
			select {
			case key, ok := <-hints:
				if !ok || key == end {
					return n
				}
				n++
			case <-time.After(30 * time.Second):
				t.Fatalf("the watch does not tell of %q", end)
			}
		}
	}
	write := func(w kv.Write) {
		t.Helper()
		if r, err := d.Commit(t.Context(), kv.Txn{Then: []kv.Write{w}}); err != nil || !r.OK {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	until("")
	write(kv.Write{Key: "beat/a", Value: []byte("{}")})
	for range 5 {
		write(kv.Write{Key: "beat/a", Value: []byte("{}"), Quiet: true})
	}
	if n := until("beat/x"); n != 2 { // it begins, and it becomes quiet
		t.Errorf("%d hints about five keep-alives", n)
	}
	write(kv.Write{Key: "beat/a"})
	if n := until("beat/y"); n == 0 {
		t.Error("no hint about its end")
	}
}

// process is a candidate with its own connections.
type process struct {
	*tenuretest.Node
	elector tenure.Elector
}

func (p process) Elector() tenure.Elector { return p.elector }

// Package lease on Leases keeps the contract of an Elector.
func testElector(t *testing.T, c *cluster) {
	cfg := c.config(c.namespace(t))
	const ttl = 3 * time.Second
	electortest.Run(t, electortest.Engine{
		Start: func(t *testing.T, group, id string) electortest.Process {
			n, err := tenuretest.NewNode(open(t, cfg), lease.Config{
				Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{group}, Timing: lease.Timing{TTL: ttl},
				Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			return process{n, n.Elector(group)}
		},
		Lease:    ttl,
		Failover: 10 * time.Second, // a dozen processes share the machine with the API server
		Transfer: true,
		Parallel: true,
	})
}

// Leases keep every promise of a Store.
func TestContract(t *testing.T) {
	c := start(t)
	cfg := c.config(c.namespace(t))
	storetest.Run(t, storetest.Engine{
		Open:     func(t *testing.T) store.Store { return open(t, cfg) },
		TTL:      2 * time.Second,
		Settle:   1500 * time.Millisecond,
		Groups:   200,              // a grant takes ten requests
		Patience: 45 * time.Second, // and a check of a thousand contenders 30,000
		Restart:  func(*testing.T) { c.Restart() },
		Rewind: func(*testing.T) func() {
			backup := c.etcd.CopyData()
			return func() {
				c.Kill()
				c.etcd.RestoreData(backup)
				c.Start()
			}
		},
	})
}
