package storeapi_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
	"github.com/tenurehq/tenure/store/mem"
	"github.com/tenurehq/tenure/store/remote"
	"github.com/tenurehq/tenure/store/storetest"
)

// turns gives every client the instances in another order.
func turns(urls ...string) func() []string {
	var n atomic.Int64
	return func() []string {
		first := int(n.Add(1)) % len(urls)
		return append(append([]string(nil), urls[first:]...), urls[:first]...)
	}
}

// The store in memory keeps every promise through two instances of the service.
func TestContractMemory(t *testing.T) {
	engine := mem.New(mem.Options{})
	t.Cleanup(engine.Close)
	urls := turns(instance(t, trusting(engine)), instance(t, trusting(engine)))
	storetest.Run(t, storetest.Engine{
		Open:    func(t *testing.T) store.Store { return connect(t, remote.Config{URLs: urls()}) },
		TTL:     time.Second,
		Settle:  time.Second,
		Restart: func(*testing.T) { engine.Driver.Do(func(now clock.Instant, e *mem.Engine) { e.Restart(now) }) },
		Rewind: func(*testing.T) func() {
			var backup *mem.Snapshot
			engine.Driver.Do(func(_ clock.Instant, e *mem.Engine) { backup = e.Snapshot() })
			return func() { engine.Driver.Do(func(now clock.Instant, e *mem.Engine) { e.Restore(now, backup) }) }
		},
	})
}

// etcd keeps every promise through two instances too.
func TestContractEtcd(t *testing.T) {
	engine := enginetest.Cluster(t, 1, enginetest.FastTicks())
	var bases []string
	var stores []*etcd.Store
	reconnect := func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for _, s := range stores {
			for _, err := s.Read(ctx, "g"); err != nil; _, err = s.Read(ctx, "g") {
				if ctx.Err() != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		s, err := etcd.Open(ctx, etcd.Config{Endpoints: engine.Endpoints(), MinTTL: time.Second})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		stores = append(stores, s)
		bases = append(bases, instance(t, trusting(s)))
	}
	urls := turns(bases...)
	storetest.Run(t, storetest.Engine{
		Open:   func(t *testing.T) store.Store { return connect(t, remote.Config{URLs: urls()}) },
		TTL:    2 * time.Second,
		Settle: 2 * time.Second,
		Restart: func(*testing.T) {
			engine.Stop()
			engine.Start()
		},
		Rewind: func(t *testing.T) func() {
			backup := engine.CopyData() // which stops the engine for a moment
			reconnect(t)
			return func() { engine.RestoreData(backup) }
		},
	})
}
