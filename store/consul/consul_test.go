package consul_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/electortest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/consul"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/kv/kvtest"
	"github.com/tenurehq/tenure/store/storetest"
	"github.com/tenurehq/tenure/tenuretest"
)

// TestMain lets more tests run at the same time than there are cores: they mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, cfg consul.Config) *consul.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := consul.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func at(servers ...*servertest.Server) consul.Config {
	var c consul.Config
	for _, s := range servers {
		c.Addresses = append(c.Addresses, s.URL())
	}
	return c
}

// Consul keeps the contract of a driver.
func TestDriver(t *testing.T) {
	server := servertest.Consul(t)
	kvtest.Run(t, kvtest.Engine{
		Open: func(t *testing.T) kv.Driver {
			d := consul.NewDriver(at(server))
			t.Cleanup(d.Close)
			return d
		},
		Settle: time.Second,
	})
}

// A Consul server keeps every promise of a Store.
func TestContract(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t)
	storetest.Run(t, storetest.Engine{
		Open:    func(t *testing.T) store.Store { return open(t, at(server)) },
		TTL:     2 * time.Second,
		Settle:  1500 * time.Millisecond,
		Restart: func(*testing.T) { server.Restart() },
		Rewind: func(t *testing.T) func() {
			backup := snapshot(t, server)
			return func() { restore(t, server, backup) }
		},
	})
}

// process is a candidate with its own connections to Consul.
type process struct {
	*tenuretest.Node
	elector tenure.Elector
}

func (p process) Elector() tenure.Elector { return p.elector }

// Package lease on Consul keeps the contract of an Elector.
func TestElector(t *testing.T) {
	server := servertest.Consul(t)
	const ttl = 3 * time.Second
	electortest.Run(t, electortest.Engine{
		Start: func(t *testing.T, group, id string) electortest.Process {
			n, err := tenuretest.NewNode(open(t, at(server)), lease.Config{
				Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{group}, Timing: lease.Timing{TTL: ttl},
				Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			return process{n, n.Elector(group)}
		},
		Lease: ttl,
		// Observers look at a beat eight times in its TTL, and the time during which they were
		// too slow to read does not count.
		Failover: 2*ttl + 2*time.Second,
		Transfer: true,
		Parallel: true,
	})
}
