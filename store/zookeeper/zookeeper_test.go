package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

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

func driver(t testing.TB, addr string) *zookeeper.Driver {
	t.Helper()
	d := zookeeper.NewDriver(zookeeper.Config{Servers: []string{addr}})
	t.Cleanup(d.Close)
	return d
}

// room is the context of a call on a machine that may be very busy.
func room(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, cfg zookeeper.Config) *zookeeper.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := zookeeper.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Three servers keep the contract of a driver, also for clients that are connected to different
// ones.
func TestDriver(t *testing.T) {
	t.Parallel()
	servers := addrs(servertest.ZooKeeper(t, 3))
	var next atomic.Int64
	kvtest.Run(t, kvtest.Engine{
		Open:   func(t *testing.T) kv.Driver { return driver(t, servers[next.Add(1)%3]) },
		Settle: time.Second,
	})
}

// One ZooKeeper server keeps every promise of a Store.
func TestContract(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

// A condition on a version does not hold for a node that was deleted and created again, though
// it has the same data version in ZooKeeper.
func TestVersionNeverRepeats(t *testing.T) {
	t.Parallel()
	d := driver(t, servertest.ZooKeeper(t, 1)[0].Addr())
	commit := func(c kv.Cond, w kv.Write) uint64 {
		t.Helper()
		c.Key, w.Key = "record/a", "record/a"
		r, err := d.Commit(room(t), kv.Txn{If: []kv.Cond{c}, Then: []kv.Write{w}})
		if err != nil || !r.OK {
			t.Fatalf("%+v, %v", r, err)
		}
		return r.Versions[0]
	}
	first := commit(kv.Cond{}, kv.Write{Value: []byte("first")})
	again := func() {
		commit(kv.Cond{Version: kv.Any}, kv.Write{})
		if second := commit(kv.Cond{}, kv.Write{Value: []byte("second")}); second <= first {
			t.Errorf("version %d after %d", second, first)
		}
	}
	write := kv.Txn{If: []kv.Cond{{Key: "record/a", Version: first}}, Then: []kv.Write{{Key: "record/a", Value: []byte("third")}}}
	if err := d.CommitOnce(room(t), write, again); !errors.Is(err, zk.ErrBadVersion) {
		t.Errorf("a write from the first version: %v", err)
	}
	if r, err := d.Commit(room(t), write); err != nil || r.OK {
		t.Errorf("%+v, %v", r, err)
	}
}

// Keys are read in the order in which they are named: a counter that is written after another
// one and read before it is never ahead.
func TestReadsInOrder(t *testing.T) {
	t.Parallel()
	addr := servertest.ZooKeeper(t, 1)[0].Addr()
	writer, reader := driver(t, addr), driver(t, addr)
	keys := []string{"record/d", "record/c", "record/b", "record/a"}
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			for _, k := range slices.Backward(keys) {
				_, err := writer.Commit(room(t), kv.Txn{Then: []kv.Write{{Key: k, Value: fmt.Appendf(nil, "%09d", i), Quiet: true}}})
				if err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for range 1000 {
		r, err := reader.Commit(room(t), kv.Txn{Read: keys})
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.Items[1:] {
			if was, now := r.Items[i], r.Items[i+1]; string(was.Value) > string(now.Value) {
				t.Errorf("%s was %s, and %s was read later as %s", was.Key, was.Value, now.Key, now.Value)
			}
		}
	}
	stop()
	writing.Wait()
}

// A directory that is missing is created, whatever a transaction needs it for.
func TestMissingDirectory(t *testing.T) {
	t.Parallel()
	d := driver(t, servertest.ZooKeeper(t, 1)[0].Addr())
	for _, txn := range []kv.Txn{
		{If: []kv.Cond{{Key: "a/b/c"}}},
		{Then: []kv.Write{{Key: "d/e/f"}}},
		{Then: []kv.Write{{Key: "g/h/i", Value: []byte("x")}}},
		{If: []kv.Cond{{Key: "j/k"}}, Then: []kv.Write{{Key: "j/k", Value: []byte("x")}}},
		{If: []kv.Cond{{Key: "j/k"}, {Key: "l/m"}}, Then: []kv.Write{{Key: "l/m", Value: []byte("x")}}, Read: []string{"j/k", "l/m"}},
	} {
		r, err := d.Commit(room(t), txn)
		if err != nil || r.OK != (len(txn.Read) == 0) {
			t.Errorf("%+v: %+v, %v", txn, r, err)
		}
	}
}

// BenchmarkList lists 10,000 keys, in pages as the store does.
func BenchmarkList(b *testing.B) {
	d := driver(b, servertest.ZooKeeper(b, 1)[0].Addr())
	const keys, batch, page = 10_000, 100, 1000
	for i := range keys / batch {
		var t kv.Txn
		for j := range batch {
			t.Then = append(t.Then, kv.Write{Key: fmt.Sprintf("record/g%d", i*batch+j), Value: make([]byte, 300), Quiet: true})
		}
		if _, err := d.Commit(b.Context(), t); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		n, after := 0, ""
		for {
			items, err := d.List(b.Context(), "record/", after, page)
			if err != nil {
				b.Fatal(err)
			}
			if n += len(items); len(items) < page {
				break
			}
			after = items[page-1].Key
		}
		if n != keys {
			b.Fatalf("%d keys", n)
		}
	}
}

// BenchmarkKeepAlive is the commit of a keep-alive.
func BenchmarkKeepAlive(b *testing.B) {
	d := driver(b, servertest.ZooKeeper(b, 1)[0].Addr())
	beat := kv.Write{Key: "beat/a", Value: []byte("{}"), Quiet: true}
	if _, err := d.Commit(b.Context(), kv.Txn{Then: []kv.Write{beat}}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r, err := d.Commit(b.Context(), kv.Txn{If: []kv.Cond{{Key: "beat/a", Version: kv.Any}}, Then: []kv.Write{beat}, Read: []string{"beat/a", "meta", "requests/a"}})
		if err != nil || !r.OK {
			b.Fatal(r, err)
		}
	}
}
