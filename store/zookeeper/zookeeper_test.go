package zookeeper_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/electortest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/kv/kvtest"
	"github.com/tenurehq/tenure/store/storetest"
	"github.com/tenurehq/tenure/store/zookeeper"
	"github.com/tenurehq/tenure/tenuretest"
)

func addrs(servers []*servertest.ZooKeeperServer) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr())
	}
	return all
}

// path is a node of its own for each test.
func path(t *testing.T) string {
	return "/tests/" + strings.Map(func(r rune) rune {
		if r == '/' {
			return '-'
		}
		return r
	}, t.Name())
}

func open(t *testing.T, cfg zookeeper.Config) *zookeeper.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := zookeeper.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// ZooKeeper keeps the contract of a driver.
func TestDriver(t *testing.T) {
	servers := addrs(servertest.ZooKeeper(t, 1))
	kvtest.Run(t, kvtest.Engine{
		Open: func(t *testing.T) kv.Driver {
			d := zookeeper.NewDriver(zookeeper.Config{Servers: servers})
			t.Cleanup(d.Close)
			return d
		},
		Settle: time.Second,
	})
}

// One ZooKeeper server keeps every promise of a Store.
func TestContract(t *testing.T) {
	server := servertest.ZooKeeper(t, 1)[0]
	storetest.Run(t, storetest.Engine{
		Open: func(t *testing.T) store.Store {
			return open(t, zookeeper.Config{Servers: []string{server.Addr()}, MinTTL: 500 * time.Millisecond})
		},
		TTL:     2 * time.Second,
		Settle:  1500 * time.Millisecond,
		Restart: func(*testing.T) { server.Restart() },
		Rewind: func(*testing.T) func() {
			server.Kill()
			restore := server.Backup()
			server.Start()
			return func() {
				server.Kill()
				restore()
				server.Start()
			}
		},
	})
}

// process is a candidate with its own connection.
type process struct {
	*tenuretest.Node
	elector tenure.Elector
}

func (p process) Elector() tenure.Elector { return p.elector }

// Package lease on ZooKeeper keeps the contract of an Elector.
func TestElector(t *testing.T) {
	servers := addrs(servertest.ZooKeeper(t, 1))
	const ttl = 3 * time.Second
	electortest.Run(t, electortest.Engine{
		Start: func(t *testing.T, group, id string) electortest.Process {
			n, err := tenuretest.NewNode(open(t, zookeeper.Config{Servers: servers}), lease.Config{
				Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{group}, Timing: lease.Timing{TTL: ttl},
				Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			return process{n, n.Elector(group)}
		},
		Lease:    ttl,
		Failover: ttl + 2*time.Second,
		Transfer: true,
		Parallel: true,
	})
}
