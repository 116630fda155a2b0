package etcd_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/store"
)

// gate is a member of etcd that passes calls on to a real one and changes what the test
// wants: it stands for members in a state that is hard to bring about.
type gate struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	kv     pb.KVClient
	leases pb.LeaseClient

	mu      sync.Mutex
	txn     func(*pb.TxnRequest) error       // before it is passed on
	renewed func(*pb.LeaseKeepAliveResponse) // before it is passed back
}

// newGate serves in front of the cluster until the test ends.
func newGate(t *testing.T, cluster *enginetest.Engine) (*gate, string) {
	t.Helper()
	conn, err := grpc.NewClient(cluster.Members[0].Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{kv: pb.NewKVClient(conn), leases: pb.NewLeaseClient(conn)}
	server := grpc.NewServer()
	pb.RegisterKVServer(server, g)
	pb.RegisterLeaseServer(server, g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
		_ = conn.Close()
	})
	return g, "http://" + listener.Addr().String()
}

func (g *gate) set(txn func(*pb.TxnRequest) error, renewed func(*pb.LeaseKeepAliveResponse)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.txn, g.renewed = txn, renewed
}

func (g *gate) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	g.mu.Lock()
	check := g.txn
	g.mu.Unlock()
	if check != nil {
		if err := check(r); err != nil {
			return nil, err
		}
	}
	return g.kv.Txn(ctx, r)
}

func (g *gate) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return g.kv.Range(ctx, r)
}

func (g *gate) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return g.leases.LeaseGrant(ctx, r)
}

func (g *gate) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return g.leases.LeaseRevoke(ctx, r)
}

func (g *gate) LeaseKeepAlive(down grpc.BidiStreamingServer[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]) error {
	up, err := g.leases.LeaseKeepAlive(down.Context())
	if err != nil {
		return err
	}
	for {
		request, err := down.Recv()
		if err != nil {
			return err
		}
		if err := up.Send(request); err != nil {
			return err
		}
		reply, err := up.Recv()
		if err != nil {
			return err
		}
		g.mu.Lock()
		if g.renewed != nil {
			g.renewed(reply)
		}
		g.mu.Unlock()
		if err := down.Send(reply); err != nil {
			return err
		}
	}
}

// A keep-alive that a leader of etcd has acknowledged counts only if a quorum still
// followed it afterwards: a change of the Raft term, or a read that only this member
// could answer, is no acknowledgement. Neither means that the session is dead.
func TestBeatNeedsQuorum(t *testing.T) {
	g, endpoint := newGate(t, enginetest.Cluster(t, 1, enginetest.FastTicks()))
	s := open(t, []string{endpoint})
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	beat := func() error {
		_, err := s.KeepAlive(t.Context(), session.ID)
		return err
	}
	if err := beat(); err != nil {
		t.Fatal(err)
	}
	for name, fault := range map[string]func(){
		"renewed in an earlier Raft term": func() {
			g.set(nil, func(r *pb.LeaseKeepAliveResponse) { r.Header.RaftTerm-- })
		},
		"a member without a quorum answers serializable reads only": func() {
			g.set(func(r *pb.TxnRequest) error {
				for _, op := range append(r.Success, r.Failure...) {
					if !op.GetRequestRange().GetSerializable() {
						return status.Error(codes.Unavailable, "etcdserver: request timed out")
					}
				}
				return nil
			}, nil)
		},
	} {
		fault()
		if err := beat(); err == nil || errors.Is(err, store.ErrSessionDead) {
			t.Errorf("%s: the keep-alive says %v", name, err)
		}
	}
	g.set(nil, nil)
	if err := beat(); err != nil {
		t.Errorf("all is well again: %v", err)
	}
}

// A TTL is never shortened: etcd counts whole seconds, so it is rounded up.
func TestTTLRoundedUp(t *testing.T) {
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	s, client := open(t, cluster.Endpoints()), raw(t, cluster.Endpoints())
	const ttl = 2500 * time.Millisecond
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, ttl, store.OpenOptions{Scope: store.Scope{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	granted, err := client.TimeToLive(t.Context(), leases(t, client)[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if session.TTL < ttl || session.TTL != time.Duration(granted.GrantedTTL)*time.Second {
		t.Errorf("asked for %v: %v is promised, %d s are granted", ttl, session.TTL, granted.GrantedTTL)
	}
}

// An epoch that one client raises holds for the next grant of every other, though it has
// the former one in its cache.
func TestRaisedByAnother(t *testing.T) {
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	s, other := open(t, cluster.Endpoints()), open(t, cluster.Endpoints())
	var ids []store.SessionID
	for _, id := range []string{"a", "b"} {
		n, err := s.Open(t.Context(), tenure.Candidate{ID: id}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, n.ID)
	}
	held := take(t, s, ids[0], "held")
	raise := func(to uint64) {
		t.Helper()
		if _, err := other.RaiseEpoch(t.Context(), to); err != nil {
			t.Fatal(err)
		}
	}
	raise(1)
	if got := take(t, s, ids[0], "new"); got.Token.Epoch() != 1 {
		t.Errorf("granted token %d of epoch %d", got.Token, got.Token.Epoch())
	}
	raise(2)
	if got, err := s.Release(t.Context(), ids[0], ids[1], store.Transferred, held); err != nil || got[0].Token.Epoch() != 2 {
		t.Errorf("transferred with %+v, %v", got, err)
	}
}
