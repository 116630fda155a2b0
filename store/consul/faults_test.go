package consul_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/consul"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/storetest"
)

// leaderOf is Consul's own leader.
func leaderOf(t *testing.T, servers []*servertest.Server) *servertest.Server {
	t.Helper()
	for _, s := range servers {
		var self struct {
			Stats struct{ Consul struct{ Leader string } }
		}
		if err := json.Unmarshal(api(t, s, http.MethodGet, "agent/self", nil), &self); err != nil {
			t.Fatal(err)
		}
		if self.Stats.Consul.Leader == "true" {
			return s
		}
	}
	t.Fatal("no server leads")
	return nil
}

// One server of three that is black-holed or killed, also Consul's own leader, ends no term.
func TestMemberLost(t *testing.T) {
	t.Parallel()
	servers := servertest.ConsulCluster(t, 3)
	var proxies []*enginetest.Proxy
	var addresses []string
	for _, s := range servers {
		p := enginetest.NewProxy(t, s.Addr())
		proxies = append(proxies, p)
		addresses = append(addresses, p.Endpoint())
	}
	var terms []*tenure.Term
	for i := range 6 {
		// Each begins with another server, so that every server has its share.
		mine := append(append([]string(nil), addresses[i%3:]...), addresses[:i%3]...)
		group := fmt.Sprintf("g%d", i)
		s := open(t, consul.Config{Addresses: mine})
		terms = append(terms, storetest.Lead(t, storetest.Elector(t, storetest.Node(t, s, fmt.Sprintf("n%d", i), lease.Timing{TTL: 12 * time.Second}, group), group)))
	}
	leader := leaderOf(t, servers)
	storetest.Survive(t, terms, 14*time.Second, // more than a TTL
		storetest.Fault{Name: "one server black-holed", Strike: proxies[1].Cut, Heal: proxies[1].Heal},
		storetest.Fault{Name: "Consul's leader killed", Strike: leader.Kill, Heal: leader.Start})
}

// Without a quorum nothing is granted or renewed, and calls fail with an error that says why.
// Everything goes on when the servers are back.
func TestQuorumLost(t *testing.T) {
	t.Parallel()
	servers := servertest.ConsulCluster(t, 3)
	const ttl = 3 * time.Second
	storetest.QuorumLost(t, storetest.Candidate(t, open(t, at(servers...)), "a", ttl, "g"), ttl, "quorum", func() {
		servers[1].Kill()
		servers[2].Kill()
	}, func() {
		servers[1].Start()
		servers[2].Start()
	})
}

// A leader whose client is cut off stops believing before the next one begins.
func TestNoOverlap(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t)
	var ways [2]storetest.Way
	for i := range ways {
		p := enginetest.NewProxy(t, server.Addr())
		ways[i] = storetest.Way{Store: open(t, consul.Config{Addresses: []string{p.Endpoint()}}), Cut: p.Cut, Heal: p.Heal}
	}
	storetest.NoOverlap(t, 2*time.Second, ways, storetest.Rounds(t, 2))
}

// A watch that Consul no longer answers goes on at another address, and misses nothing. Without
// another address it ends with an error.
func TestWatchCutOff(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t)
	proxy := enginetest.NewProxy(t, server.Addr())
	follow := func(addresses ...string) (next func() (kv.Change, error)) {
		d := consul.NewDriver(consul.Config{Addresses: addresses})
		t.Cleanup(d.Close)
		type told struct {
			c   kv.Change
			err error
		}
		changes := make(chan told, 100)
		go func() {
			for c, err := range d.Watch(t.Context(), time.Hour, "record/") {
				changes <- told{c, err}
			}
		}()
		return func() (kv.Change, error) {
			select {
			case c := <-changes:
				return c.c, c.err
			case <-time.After(time.Minute):
				return kv.Change{}, errors.New("the watch is silent")
			}
		}
	}
	moves, ends := follow(proxy.Endpoint(), server.URL()), follow(proxy.Endpoint())
	for _, next := range []func() (kv.Change, error){moves, ends} {
		if c, err := next(); err != nil || c.Key != "" {
			t.Fatalf("a watch begins with %+v, %v", c, err)
		}
	}
	proxy.Cut()
	api(t, server, http.MethodPut, "kv/tenure/record/g", []byte("x"))
	if c, err := moves(); err != nil || c.Key != "record/g" {
		t.Errorf("the watch with another address says %+v, %v", c, err)
	}
	if c, err := ends(); err == nil || strings.Contains(err.Error(), "silent") || !strings.Contains(err.Error(), proxy.Addr()) {
		t.Errorf("the watch without another address says %+v, %v", c, err)
	}
}

// A server that is restarted without its data is noticed by whoever led before.
func TestDataLost(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t, servertest.Args("-dev"))
	s := open(t, at(server))
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, 30*time.Second, store.OpenOptions{Scope: store.Scope{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context(), session.ID, store.Record{Group: "g"}); err != nil {
		t.Fatal(err)
	}
	server.Restart()
	_, err = s.Open(t.Context(), tenure.Candidate{ID: "b"}, 30*time.Second, store.OpenOptions{Scope: store.Scope{"g"}})
	if m, merr := s.Meta(t.Context()); merr != nil || !m.Rewound || m.Deployment != session.Deployment {
		t.Errorf("after the loss of all data: %+v, %v; open said %v", m, merr, err)
	}
}

// A restored snapshot is noticed by the first call of a client that knows what was lost, also
// when that call is a write that makes Consul's index larger than before.
func TestRestored(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t)
	s := open(t, at(server))
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, 30*time.Second, store.OpenOptions{Scope: store.Scope{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	backup := snapshot(t, server)
	if _, err := s.KeepAlive(t.Context(), session.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetAttributes(t.Context(), store.Attributes{Name: "lost", Values: map[string]string{"a": "b"}}); err != nil {
		t.Fatal(err)
	}
	restore(t, server, backup)
	_, err = s.KeepAlive(t.Context(), session.ID)
	for name, client := range map[string]*consul.Store{"who knew": s, "who did not": open(t, at(server))} {
		if m, merr := client.Meta(t.Context()); merr != nil || !m.Rewound {
			t.Errorf("%s: %+v, %v; the keep-alive said %v", name, m, merr, err)
		}
	}
}

// Keys that were exported, deleted and imported are noticed even by a client that has no memory
// of them: grants since the export are lost.
func TestImported(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t)
	s := open(t, at(server))
	s.Close()
	var keys []struct {
		Key   string
		Value []byte
	}
	if err := json.Unmarshal(api(t, server, http.MethodGet, "kv/tenure/?recurse", nil), &keys); err != nil || len(keys) == 0 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	api(t, server, http.MethodDelete, "kv/tenure/?recurse", nil)
	for _, k := range keys {
		api(t, server, http.MethodPut, "kv/"+k.Key, k.Value)
	}
	if m, err := open(t, at(server)).Meta(t.Context()); err != nil || !m.Rewound {
		t.Errorf("after an import: %+v, %v", m, err)
	}
}

// Keep-alives wake no watch, or every candidate would ask Consul at every keep-alive of every
// other.
func TestBeatsAreQuiet(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t)
	d := consul.NewDriver(at(server))
	t.Cleanup(d.Close)
	put := func(key string) {
		t.Helper()
		if _, err := d.Commit(t.Context(), kv.Txn{Then: []kv.Write{{Key: key, Value: []byte("{}"), Quiet: strings.HasPrefix(key, "beat/")}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"record/g", "session/s", "beat/s"} {
		put(key)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	began := false
	for c, err := range d.Watch(ctx, time.Hour, "record/", "session/", "beat/") {
		switch {
		case err != nil:
			t.Fatal(err)
		case !began:
			began = true
			for range 20 {
				put("beat/s")
			}
			put("record/g")
		case c.Key == "record/g":
			return
		default:
			t.Fatalf("told %+v", c)
		}
	}
}
