package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/electortest"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/kv/kvtest"
	"github.com/tenurehq/tenure/store/storetest"
	"github.com/tenurehq/tenure/tenuretest"
)

func open(t *testing.T, endpoints []string) *etcd.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := etcd.Open(ctx, etcd.Config{Endpoints: endpoints, MinTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Three etcd members, as processes of their own, keep every promise of a Store.
func TestContract(t *testing.T) {
	cluster := enginetest.Cluster(t, 3, enginetest.FastTicks())
	storetest.Run(t, storetest.Engine{
		Open:   func(t *testing.T) store.Store { return open(t, cluster.Endpoints()) },
		TTL:    2 * time.Second,
		Settle: 1500 * time.Millisecond,
		Restart: func(*testing.T) {
			cluster.Stop()
			cluster.Start()
		},
		Rewind: func(*testing.T) func() {
			backup := cluster.CopyData()
			return func() { cluster.RestoreData(backup) }
		},
	})
}

// process is a candidate with its own connections to the cluster.
type process struct {
	*tenuretest.Node
	elector tenure.Elector
}

func (p process) Elector() tenure.Elector { return p.elector }

// Package lease on three etcd members keeps the contract of an Elector.
func TestElector(t *testing.T) {
	cluster := enginetest.Cluster(t, 3, enginetest.FastTicks())
	const ttl = 3 * time.Second
	electortest.Run(t, electortest.Engine{
		Start: func(t *testing.T, group, id string) electortest.Process {
			n, err := tenuretest.NewNode(open(t, cluster.Endpoints()), lease.Config{
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

// Many calls at once through one client are no rewind: the deployment's record is read
// while other answers, which are newer, arrive.
func TestBusyIsNotRewound(t *testing.T) {
	s := open(t, enginetest.Cluster(t, 1).Endpoints())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			seen := store.Attributes{Name: fmt.Sprintf("busy-%d", i), Values: map[string]string{"a": "b"}}
			for ctx.Err() == nil {
				next, err := s.SetAttributes(t.Context(), seen)
				if err != nil {
					t.Error(err)
					return
				}
				seen = next
			}
		})
	}
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for range 100 {
				if m, err := s.Meta(t.Context()); err != nil || m.Rewound {
					t.Errorf("%+v, %v", m, err)
					return
				}
			}
		})
	}
	readers.Wait()
	stop()
	writers.Wait()
}

// etcd keeps the contract of a driver.
func TestDriver(t *testing.T) {
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	for name, observed := range map[string]bool{"native": false, "observed": true} {
		t.Run(name, func(t *testing.T) {
			kvtest.Run(t, kvtest.Engine{
				Open: func(t *testing.T) kv.Driver {
					d := etcd.NewDriver(etcd.Config{Endpoints: cluster.Endpoints(), Prefix: "/driver", MinTTL: time.Second, Observed: observed})
					t.Cleanup(d.Close)
					return d
				},
				Settle: 1500 * time.Millisecond,
			})
		})
	}
}

// With observed expiry three members keep every promise of a Store too.
func TestContractObserved(t *testing.T) {
	cluster := enginetest.Cluster(t, 3, enginetest.FastTicks())
	storetest.Run(t, storetest.Engine{
		Open: func(t *testing.T) store.Store {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			s, err := etcd.Open(ctx, etcd.Config{Endpoints: cluster.Endpoints(), MinTTL: 500 * time.Millisecond, Observed: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			return s
		},
		TTL:    2 * time.Second,
		Settle: 1500 * time.Millisecond,
	})
}
