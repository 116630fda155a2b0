package redis_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/electortest"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/kv/kvtest"
	"github.com/tenurehq/tenure/store/redis"
	"github.com/tenurehq/tenure/store/storetest"
	"github.com/tenurehq/tenure/tenuretest"
)

func open(t *testing.T, addr string) *redis.Store {
	t.Helper()
	return openWith(t, redis.Config{Addrs: []string{addr}})
}

func openWith(t *testing.T, cfg redis.Config) *redis.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := redis.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// raw is a client of Redis itself: an operator's, or the test's own eyes.
func raw(t *testing.T, s *servertest.Server) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Redis keeps the contract of a driver.
func TestDriver(t *testing.T) {
	server := servertest.Redis(t)
	kvtest.Run(t, kvtest.Engine{Open: func(t *testing.T) kv.Driver {
		d := redis.NewDriver(redis.Config{Addrs: []string{server.Addr()}, Prefix: "driver"})
		t.Cleanup(d.Close)
		return d
	}})
}

// Redis keeps every promise of a Store except one: a failover to a replica that has not received
// the last writes loses what was acknowledged. The loss is noticed, and an operator raises the
// epoch.
func TestContract(t *testing.T) {
	p := newPair(t)
	storetest.Run(t, storetest.Engine{
		Open:   func(t *testing.T) store.Store { return open(t, p.clients.Addr()) },
		TTL:    2 * time.Second,
		Settle: 1500 * time.Millisecond,
		Restart: func(t *testing.T) {
			p.failover(t)
			operator := open(t, p.clients.Addr())
			t.Cleanup(func() { raiseEpoch(t, operator) })
		},
		Rewind: func(t *testing.T) func() { return backup(t, raw(t, p.master)) },
		Broken: []storetest.Promise{storetest.TokensSurviveStart},
	})
}

// A single Redis that writes each commit to its disk before it answers keeps what it acknowledged.
func TestContractDurable(t *testing.T) {
	server := servertest.Redis(t, servertest.Args("--appendonly", "yes", "--appendfsync", "always"))
	for promise, err := range storetest.Check(t, storetest.Engine{
		Open:    func(t *testing.T) store.Store { return open(t, server.Addr()) },
		TTL:     2 * time.Second,
		Settle:  1500 * time.Millisecond,
		Restart: func(*testing.T) { server.Restart() },
	}, storetest.TokensSurviveStart) {
		t.Errorf("%s: %v", promise, err)
	}
}

// raiseEpoch raises the epoch, as an operator does who was told that data was lost.
func raiseEpoch(t *testing.T, s store.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	m, err := s.Meta(ctx)
	if err != nil || !m.Rewound {
		t.Errorf("after data was lost Meta answers %+v, %v", m, err)
	}
	if _, err := s.RaiseEpoch(ctx, m.Epoch+1); err != nil {
		t.Error(err)
	}
}

// keys are all keys of the default prefix.
var keys = []string{"{tenure}:items", "{tenure}:order", "{tenure}:state"}

// backup copies the data, and returns what puts the copy in the place of the data.
func backup(t *testing.T, c *goredis.Client) (restore func()) {
	t.Helper()
	copies := map[string]string{}
	for _, key := range keys {
		dump, err := c.Dump(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		copies[key] = dump
	}
	return func() {
		if _, err := c.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
			for key, dump := range copies {
				p.RestoreReplace(t.Context(), key, 0, dump)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// pair is a master, its replica, and an address for clients of the master.
type pair struct {
	master, replica *servertest.Server
	clients         *enginetest.Proxy
	link            *enginetest.Proxy // between the two servers
}

// newPair starts a pair. The replica has the description of the deployment, and receives nothing
// from then on.
func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{master: servertest.Redis(t)}
	p.link = enginetest.NewProxy(t, p.master.Addr())
	p.clients = enginetest.NewProxy(t, p.master.Addr())
	p.replica = servertest.Replica(t, p.link.Addr())
	open(t, p.clients.Addr()).Close()
	storetest.Eventually(t, func() error {
		return raw(t, p.replica).HGet(t.Context(), "{tenure}:items", "meta").Err()
	})
	p.link.Cut()
	return p
}

// replicated waits until the replica has every change of the master.
func (p *pair) replicated(t *testing.T) {
	t.Helper()
	master, replica := raw(t, p.master), raw(t, p.replica)
	storetest.Eventually(t, func() error {
		want, err := master.HGet(t.Context(), keys[2], "index").Result()
		if err != nil {
			return err
		}
		if got, err := replica.HGet(t.Context(), keys[2], "index").Result(); err != nil || got != want {
			return fmt.Errorf("the replica is at %q, %w, the master at %q", got, err, want)
		}
		return nil
	})
}

// failover makes the replica the master, for clients too.
func (p *pair) failover(t *testing.T) {
	t.Helper()
	p.promote(t)
	p.clients.Redirect(p.replica.Addr())
	p.master, p.replica = p.replica, p.master
}

func (p *pair) promote(t *testing.T) {
	t.Helper()
	if err := raw(t, p.replica).ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
}

// process is a candidate with its own connections to Redis.
type process struct {
	*tenuretest.Node
	elector tenure.Elector
}

func (p process) Elector() tenure.Elector { return p.elector }

// Package lease on Redis keeps the contract of an Elector.
func TestElector(t *testing.T) {
	server := servertest.Redis(t)
	const ttl = 3 * time.Second
	electortest.Run(t, electortest.Engine{
		Start: func(t *testing.T, group, id string) electortest.Process {
			n, err := tenuretest.NewNode(open(t, server.Addr()), lease.Config{
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
