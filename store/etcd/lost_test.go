package etcd_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
	"github.com/tenurehq/tenure/store/storetest"
)

// When the engine has lost data, by whatever accident, nothing is granted until the epoch
// is raised: who led stops, and nobody begins, whether the fleet runs on or is restarted.
// Meta says what happened. Afterwards tokens are above all that went before, under the
// deployment's old name, which sinks know.
func TestDataLost(t *testing.T) {
	del := func(key string, opts ...clientv3.OpOption) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			r, err := w.etcd.Delete(t.Context(), key, opts...)
			if err != nil || r.Deleted == 0 {
				t.Fatalf("delete %s: %+v, %v", key, r, err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		lose   func(*testing.T, *world)
		says   string
		unseen bool // a fleet that was restarted cannot know it from the store
	}{
		{name: "record deleted", lose: del("/tenure/record/g"), says: `"g"`},
		{name: "all records deleted", lose: del("/tenure/record/", clientv3.WithPrefix()), says: `"g"`},
		{name: "meta deleted", lose: del("/tenure/meta"), says: "/tenure/meta was deleted"},
		{name: "prefix deleted", lose: del("/tenure/", clientv3.WithPrefix()), says: "deleted", unseen: true},
		{name: "rolled back", lose: func(_ *testing.T, w *world) { w.cluster.RestoreData(w.backup) }, says: "restored from a backup", unseen: true},
		{name: "record overwritten", lose: func(t *testing.T, w *world) {
			if _, err := w.etcd.Put(t.Context(), "/tenure/record/g", w.old); err != nil {
				t.Fatal(err)
			}
		}, says: `from token 3 to 1`, unseen: true},
	} {
		t.Run(c.name+", fleet running", func(t *testing.T) {
			w := newWorld(t)
			term := storetest.Lead(t, storetest.Elector(t, w.node(t, "a"), "g"))
			w.campaign(t, "b")
			c.lose(t, w)
			select {
			case <-term.Context().Done():
			case <-time.After(20 * time.Second):
				t.Error("the leader leads on")
			}
			if c.unseen { // those who run on must have told the others
				eventually(t, 20*time.Second, func() error {
					kv, err := w.etcd.Get(t.Context(), "/tenure/meta")
					if err == nil && (kv.Count == 0 || !strings.Contains(string(kv.Kvs[0].Value), `"rewound":true`)) {
						err = errors.New("meta does not say that data was lost")
					}
					return err
				})
			}
			w.refuses(t, w.open(t), term.Token(), c.says)
			go func() { _ = term.Resign(t.Context()) }()
			w.recovers(t, term.Token())
		})
		if c.unseen {
			continue
		}
		t.Run(c.name+", fleet restarted", func(t *testing.T) {
			w := newWorld(t)
			s := w.open(t)
			session, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, 2*time.Second, store.OpenOptions{Scope: store.Scope{"g"}})
			if err != nil {
				t.Fatal(err)
			}
			held := take(t, s, session.ID, "g")
			s.Close()
			c.lose(t, w)
			w.refuses(t, w.open(t), held.Token, c.says)
			w.recovers(t, held.Token)
		})
	}
}

// A snapshot that was restored into another cluster is noticed by whoever has memory of
// the first, and by whoever has none.
func TestSnapshotRestored(t *testing.T) {
	w := newWorld(t)
	s := w.open(t)
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	held := take(t, s, session.ID, "g")
	if _, err := s.KeepAlive(t.Context(), session.ID); err != nil {
		t.Fatal(err)
	}
	restored := enginetest.Cluster(t, 1, enginetest.FastTicks())
	copied := raw(t, restored.Endpoints())
	all, err := w.etcd.Get(t.Context(), "/tenure/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	// A restore keeps keys, their revisions and leases. With --bump-revision it is not
	// behind either.
	slices.SortFunc(all.Kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) })
	revision, granted := int64(1), map[int64]bool{}
	bump := func(to int64) {
		for ; revision < to; revision++ {
			if _, err := copied.Put(t.Context(), "bump", ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(all.Kvs) > 0 {
		at := all.Kvs[0].ModRevision
		var puts []clientv3.Op
		for ; len(all.Kvs) > 0 && all.Kvs[0].ModRevision == at; all.Kvs = all.Kvs[1:] {
			kv := all.Kvs[0]
			if kv.Lease != 0 && !granted[kv.Lease] {
				granted[kv.Lease] = true
				_, err := pb.NewLeaseClient(copied.ActiveConnection()).LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: kv.Lease, TTL: 5})
				if err != nil {
					t.Fatal(err)
				}
			}
			puts = append(puts, clientv3.OpPut(string(kv.Key), string(kv.Value), clientv3.WithLease(clientv3.LeaseID(kv.Lease))))
		}
		bump(at - 1)
		if _, err := copied.Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
		revision++
	}
	bump(all.Header.Revision + 10)
	w.proxy.Redirect(restored.Members[0].Addr())
	eventually(t, 30*time.Second, func() error {
		_, err := s.KeepAlive(t.Context(), session.ID)
		if err == nil {
			t.Fatal("the session is kept alive")
		}
		if errors.Is(err, store.ErrRewound) {
			return nil
		}
		return err
	})
	for name, client := range map[string]*etcd.Store{"who had memory": s, "who had none": w.open(t)} {
		if m, err := client.Meta(t.Context()); err != nil || !m.Rewound || !strings.Contains(m.Why, "cluster") {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	w.recovers(t, held.Token)
}

// Whoever finds a new deployment in the place of the one that it knew gives it back its
// name: a prefix was deleted, and a process that knew nothing started first.
func TestNameRestored(t *testing.T) {
	w := newWorld(t)
	old := w.open(t)
	before, err := old.Meta(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.etcd.Delete(t.Context(), "/tenure/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	young := w.open(t)
	if m, err := young.Meta(t.Context()); err != nil || m.Rewound || m.Deployment == before.Deployment {
		t.Fatalf("who knows nothing: %+v, %v", m, err)
	}
	for range 2 { // and nobody takes it away again
		for name, s := range map[string]*etcd.Store{"who knew": old, "who did not": young} {
			m, err := old.Meta(t.Context())
			if err == nil {
				m, err = s.Meta(t.Context())
			}
			if err != nil || !m.Rewound || m.Deployment != before.Deployment {
				t.Errorf("%s: %+v, %v, want %s, rewound", name, m, err, before.Deployment)
			}
		}
	}
	if _, err := old.RaiseEpoch(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	session, err := young.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil || session.Deployment != before.Deployment {
		t.Errorf("%+v, %v, want a session of %s", session, err, before.Deployment)
	}
}

// world is an engine with a group that has had leaders.
type world struct {
	cluster *enginetest.Engine
	proxy   *enginetest.Proxy
	etcd    *clientv3.Client
	backup  enginetest.Backup
	old     string // the record of an earlier term
	name    string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{cluster: enginetest.Cluster(t, 1, enginetest.FastTicks())}
	w.proxy = w.cluster.Members[0].Proxy()
	w.etcd = raw(t, w.cluster.Endpoints())
	s := w.open(t)
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "first"}, 10*time.Second, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	w.name = session.Deployment
	for range 2 {
		held := take(t, s, session.ID, "g")
		if w.old == "" {
			kv, err := w.etcd.Get(t.Context(), "/tenure/record/g")
			if err != nil {
				t.Fatal(err)
			}
			w.old = string(kv.Kvs[0].Value)
			w.backup = w.cluster.CopyData()
			eventually(t, 20*time.Second, func() error { _, err := s.Read(t.Context(), "g"); return err })
		}
		if _, err := s.Release(t.Context(), session.ID, "", store.Resigned, held); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.End(t.Context(), session.ID, store.Closed); err != nil {
		t.Fatal(err)
	}
	s.Close()
	return w
}

func (w *world) open(t *testing.T) *etcd.Store {
	t.Helper()
	return open(t, []string{w.proxy.Endpoint()})
}

func (w *world) node(t *testing.T, id string) *lease.Node {
	t.Helper()
	return storetest.Node(t, w.open(t), id, lease.Timing{TTL: 2 * time.Second}, "g")
}

// campaign has somebody wait for the group until the test ends.
func (w *world) campaign(t *testing.T, id string) {
	t.Helper()
	e := storetest.Elector(t, w.node(t, id), "g")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if term, err := e.Campaign(ctx); err == nil {
			<-ctx.Done()
			_ = term.Resign(context.WithoutCancel(ctx))
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func take(t *testing.T, s *etcd.Store, id store.SessionID, group string) store.Record {
	t.Helper()
	v, err := s.Read(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	held, err := s.Acquire(t.Context(), id, v.Record)
	if err != nil {
		t.Fatal(err)
	}
	return held[0]
}

// refuses: a client that knows nothing tries to lead, and is refused before it has a
// token; the reason is given.
func (w *world) refuses(t *testing.T, s *etcd.Store, above fence.Token, says string) {
	t.Helper()
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "late"}, 2*time.Second, store.OpenOptions{Scope: store.Scope{"g"}})
	if err == nil {
		var v store.View
		if v, err = s.Read(t.Context(), "g"); err == nil && v.State == tenure.Vacant {
			var got []store.Record
			if got, err = s.Acquire(t.Context(), session.ID, v.Record); err == nil {
				t.Errorf("granted token %d, %d was granted before", got[0].Token, above)
			}
		}
	}
	if !errors.Is(err, store.ErrRewound) {
		t.Errorf("a new candidate is told: %v", err)
	}
	m, err := s.Meta(t.Context())
	if err != nil || !m.Rewound || m.Deployment != w.name || !strings.Contains(m.Why, says) {
		t.Errorf("meta: %+v, %v; want deployment %s, rewound, because of %q", m, err, w.name, says)
	}
}

// recovers: after a raise the next leader has a token above all that went before.
func (w *world) recovers(t *testing.T, above fence.Token) {
	t.Helper()
	s := w.open(t)
	m, err := s.Meta(t.Context())
	if err == nil {
		m, err = s.RaiseEpoch(t.Context(), m.Epoch+1)
	}
	if err != nil || m.Rewound || m.Why != "" {
		t.Fatalf("raise: %+v, %v", m, err)
	}
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "next"}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	// The group may be led by the other candidate by now.
	eventually(t, 30*time.Second, func() error {
		v, err := s.Read(t.Context(), "g")
		if err != nil {
			return err
		}
		if v.State == tenure.Vacant {
			held, err := s.Acquire(t.Context(), session.ID, v.Record)
			if err != nil {
				return err
			}
			v.Record = held[0]
		}
		if v.Token <= above && v.Holder == session.ID {
			t.Fatalf("token %d after %d", v.Token, above)
		}
		if v.Token <= above {
			return fmt.Errorf("still led with token %d", v.Token)
		}
		return nil
	})
}
