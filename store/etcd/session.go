package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/lease"
)

func dead(id lease.SessionID) error {
	return fmt.Errorf("etcd: session %q: %w", id, lease.ErrSessionDead)
}

func sessionID(id clientv3.LeaseID) lease.SessionID {
	return lease.SessionID(fmt.Sprintf("%016x", int64(id)))
}

func leaseID(id lease.SessionID) (clientv3.LeaseID, bool) {
	n, err := strconv.ParseUint(string(id), 16, 64)
	return clientv3.LeaseID(n), err == nil && len(id) == 16
}

// lives compares that a session exists, and is the one that was seen under this id.
func (s *Store) lives(id lease.SessionID) clientv3.Cmp {
	if known, ok := s.sessions.get(id); ok {
		return clientv3.Compare(clientv3.CreateRevision(s.sessionKey(id)), "=", int64(known.Opened))
	}
	return clientv3.Compare(clientv3.CreateRevision(s.sessionKey(id)), "!=", 0)
}

// died compares that it does not.
func (s *Store) died(id lease.SessionID) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(s.sessionKey(id)), "=", 0)
}

// same reports whether the key of a session is there, and the one that was seen before.
func (s *Store) same(id lease.SessionID, kvs []*mvccpb.KeyValue) bool {
	known, ok := s.sessions.get(id)
	return len(kvs) > 0 && (!ok || uint64(kvs[0].CreateRevision) == known.Opened)
}

// seconds rounds up: etcd counts whole ones.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// errQuorum: the member that renewed the lease may not have been the leader any
// more.
var errQuorum = errors.New("etcd: the cluster changed its leader during the keep-alive")

// KeepAlive implements lease.Store. It renews the etcd lease, and then reads what
// is asked of the session: the read is linearizable and must be of the same Raft
// term, so the leader that renewed had a quorum after it had done so.
func (s *Store) KeepAlive(ctx context.Context, id lease.SessionID) (lease.Beat, error) {
	beat, _, err := s.keepAlive(ctx, id)
	return beat, err
}

// KeepAliveIn is KeepAlive and says, of one moment after the call began, both that the
// session lived and what the record of the group was: a leader that asks whether it still
// leads needs no read beside its beat.
func (s *Store) KeepAliveIn(ctx context.Context, id lease.SessionID, group string) (lease.Beat, lease.Record, error) {
	if err := lease.CheckGroup(group); err != nil {
		return lease.Beat{}, lease.Record{}, err
	}
	beat, read, err := s.keepAlive(ctx, id, clientv3.OpGet(s.recordKey(group)))
	if err != nil {
		return lease.Beat{}, lease.Record{}, err
	}
	rec, err := recordOf(group, read[0].GetResponseRange().Kvs)
	return beat, rec, err
}

// keepAlive also makes the reads that are wanted beside it.
func (s *Store) keepAlive(ctx context.Context, id lease.SessionID, more ...clientv3.Op) (lease.Beat, []*pb.ResponseOp, error) {
	lid, ok := leaseID(id)
	if !ok {
		return lease.Beat{}, nil, dead(id)
	}
	asked := s.revision()
	var beat lease.Beat
	var deployment []*mvccpb.KeyValue
	var wanted []*pb.ResponseOp
	reads := append([]clientv3.Op{
		clientv3.OpGet(s.sessionKey(id), clientv3.WithKeysOnly()),
		clientv3.OpGet(s.requestKey(id, ""), clientv3.WithPrefix()),
		clientv3.OpGet(s.key("meta")),
	}, more...)
	err := s.each(ctx, "keep-alive", func(ctx context.Context, c *clientv3.Client) error {
		renewed, err := renew(ctx, c, lid)
		if err != nil {
			return err
		}
		read, err := c.Txn(ctx).Then(reads...).Commit()
		switch {
		case err != nil:
			return err
		case read.Header.RaftTerm != renewed.Header.RaftTerm:
			return errQuorum
		case !s.same(id, read.Responses[0].GetResponseRange().Kvs):
			return rpctypes.ErrLeaseNotFound
		case renewed.TTL <= 0:
			// Only a quorum can say that a session is dead.
			return errQuorum
		}
		s.saw(read.Header, asked)
		deployment, wanted = read.Responses[2].GetResponseRange().Kvs, read.Responses[3:]
		beat.TTL = time.Duration(renewed.TTL) * time.Second
		beat.Requests = waiting(read.Responses[1].GetResponseRange().Kvs)
		return nil
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return lease.Beat{}, nil, dead(id)
	}
	if err != nil {
		return lease.Beat{}, nil, err
	}
	if err := s.stands(ctx, deployment); err != nil {
		return lease.Beat{}, nil, err
	}
	return beat, wanted, nil
}

// renew sends one keep-alive. The client's own tries again without a pause while
// a member is down.
func renew(ctx context.Context, c *clientv3.Client, id clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return nil, err
	}
	return stream.Recv()
}

// Close implements lease.Store with one transaction that reads nothing before: when the
// engine's replies are lost, the request still gets through. It records the reason in a
// key of the same lease, so that every watch learns it. The lease is revoked afterwards.
// If an operator closed the session, the records keep that too.
func (s *Store) Close(ctx context.Context, id lease.SessionID, why lease.Reason) error {
	lid, ok := leaseID(id)
	if !ok {
		return nil
	}
	if why == lease.Forced {
		s.endTerms(ctx, id, why)
	}
	_, err := s.do(ctx, "closing a session", []clientv3.Cmp{s.lives(id)}, []clientv3.Op{
		clientv3.OpPut(s.endedKey(id), encode(endedJSON{Format: format, Scope: []string{}, Reason: string(cmp.Or(why, lease.Closed))}), clientv3.WithLease(lid)),
		clientv3.OpDelete(s.sessionKey(id)),
	}, nil)
	var gone *txnError
	if errors.As(err, &gone) || errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	if _, known := s.sessions.get(id); known || err == nil { // else it may be a lease of somebody else
		s.revoke(lid)
	}
	return err
}

// endTerms writes the end of the present terms of a session that is about to go into
// their records. It still holds them: whoever finds it dead finds the reason too. What
// cannot be written is not worth a session that goes on, and reads as expired.
func (s *Store) endTerms(ctx context.Context, id lease.SessionID, why lease.Reason) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2) // the rest is for the revoking
		defer cancel()
	}
	p, err := s.picture(ctx, lease.Scope{"*"})
	if err != nil {
		return
	}
	for groups := range slices.Chunk(slices.Sorted(maps.Keys(p.holds[id])), batch) {
		cmps, ops := []clientv3.Cmp{s.lives(id)}, []clientv3.Op(nil)
		for _, g := range groups {
			rec := p.records[g]
			rec.Terms = closeTerm(rec.Terms, time.Now().UTC(), why)
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(s.recordKey(g)), "=", int64(rec.Version)))
			ops = append(ops, clientv3.OpPut(s.recordKey(g), encodeRecord(rec)))
		}
		_, _ = s.do(ctx, "closing a session", cmps, ops, nil)
	}
}

// session is what a session said of itself when it was opened. It may be dead.
func (s *Store) session(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	if known, ok := s.sessions.get(id); ok {
		return known, nil
	}
	return s.living(ctx, id)
}

// living reads a living session.
func (s *Store) living(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	resp, err := s.do(ctx, "reading a session", nil, []clientv3.Op{clientv3.OpGet(s.sessionKey(id))}, nil)
	if err != nil {
		return lease.Session{}, err
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return lease.Session{}, dead(id)
	}
	return s.decodeSession(kvs[0])
}
