package etcd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

// opening is the lease of a session that is being opened. Retries of an Open whose
// outcome is unknown use it again: a new lease for each would stay until it expires.
//
// The id of a session is that of its lease, and must never be used twice. So a lease is
// granted again only while no session can have been put on it (ttl is 0).
type opening struct {
	id    clientv3.LeaseID
	ttl   time.Duration // granted; 0: not known to be granted
	fresh bool          // granted in the present call
	sent  bool          // an earlier transaction may still put a session on it
}

// newLease chooses the id of a lease. The client chooses it, so that the tries of one call
// and the retries of the call ask for the same lease.
func newLease() clientv3.LeaseID {
	var b [8]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		if id := binary.BigEndian.Uint64(b[:]) & math.MaxInt64; id != 0 {
			return clientv3.LeaseID(id)
		}
	}
}

// grantLease grants the lease. fresh says that this call did; else it existed before, and
// a part of its time may be over.
func (s *Store) grantLease(ctx context.Context, what string, id clientv3.LeaseID, ttl time.Duration) (granted time.Duration, fresh bool, err error) {
	err = s.each(ctx, what, func(ctx context.Context, c *clientv3.Client) error {
		r, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: seconds(ttl)}, grpc.WaitForReady(true))
		if err == nil {
			granted, fresh = time.Duration(r.TTL)*time.Second, true
			return nil
		}
		if err = rpctypes.Error(err); !errors.Is(err, rpctypes.ErrLeaseExist) {
			return err
		}
		left, err := c.TimeToLive(ctx, id)
		if err != nil {
			return err
		}
		if left.TTL <= 0 {
			return rpctypes.ErrLeaseNotFound
		}
		granted, fresh = time.Duration(left.GrantedTTL)*time.Second, false
		return nil
	})
	return granted, fresh, err
}

// Open implements lease.Store: an etcd lease, the session's key on it, and the key by
// which a retry of the same attempt finds the session, through this client or another.
func (s *Store) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	if err := errors.Join(lease.CheckCandidate(c), o.Validate()); err != nil {
		return lease.Session{}, err
	}
	if err := lease.CheckTTL(s.Limits(), ttl); err != nil {
		return lease.Session{}, err
	}
	m, err := s.fresh(ctx)
	if err != nil {
		return lease.Session{}, err
	}
	ttl = max(ttl, s.cfg.MinTTL)
	session := lease.Session{Candidate: c, Instance: lease.InstanceDigest(o.Instance), Scope: slices.Clone(o.Scope), Fenced: o.Fenced, Deployment: m.Deployment}
	digest := o.AttemptDigest(c.ID)
	key := openingKey{digest, ttl}
	l, retried := s.openings.take(key)
	if !retried {
		l = opening{id: newLease()}
	}
	opened, err := s.openOn(ctx, &l, session, ttl, o, digest)
	switch unknown := err != nil && !lease.Definite(err); {
	case err == nil && opened.ID == sessionID(l.id):
	case unknown && digest != "":
		s.openings.put(key, l)
	case l.sent && digest != "":
		// Another client may have found a session on it. If not, the lease expires.
	case unknown || l.ttl != 0:
		s.revoke(l.id)
	}
	return opened, err
}

type openingKey struct {
	attempt string
	ttl     time.Duration
}

// openOn opens the session on the lease, or finds the living session of the attempt.
func (s *Store) openOn(ctx context.Context, l *opening, session lease.Session, ttl time.Duration, o lease.OpenOptions, digest string) (lease.Session, error) {
	const what = "opening a session"
	l.fresh = false
	var stale *mvccpb.KeyValue // the attempt's key, if its session has died,
	var of lease.SessionID     // and that session
	for range 5 {
		if l.ttl == 0 {
			var err error
			l.ttl, l.fresh, err = s.grantLease(ctx, what, l.id, ttl)
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				continue // it expired just now
			}
			if err != nil {
				return lease.Session{}, err
			}
		}
		session.ID, session.TTL = sessionID(l.id), l.ttl
		cmps := []clientv3.Cmp{s.died(session.ID)}
		puts := []clientv3.Op{clientv3.OpPut(s.sessionKey(session.ID), encodeSession(session), clientv3.WithLease(l.id))}
		gets := []clientv3.Op{clientv3.OpGet(s.sessionKey(session.ID))}
		if digest != "" {
			index, seen := s.attemptKey(digest), int64(0)
			if stale != nil {
				seen = stale.ModRevision
				cmps = append(cmps, s.died(of))
			}
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(index), "=", seen))
			puts = append(puts, clientv3.OpPut(index, encode(attemptJSON{Format: format, Session: string(session.ID)}), clientv3.WithLease(l.id)))
			gets = append(gets, clientv3.OpGet(index))
		}
		resp, err := s.do(ctx, what, cmps, puts, gets)
		found := session.ID
		var refused *txnError
		switch {
		case errors.As(err, &refused):
			if digest == "" {
				break // an earlier try of this call got through to another member
			}
			kvs := resp.Responses[1].GetResponseRange().Kvs
			if len(kvs) == 0 {
				stale = nil
				continue
			}
			var j attemptJSON
			if err := decode(kvs[0], &j, &j.Format); err != nil {
				return lease.Session{}, err
			}
			found = lease.SessionID(j.Session)
			stale, of = kvs[0], found
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			*l = opening{id: newLease()}
			continue
		case err != nil:
			l.sent = true
			return lease.Session{}, err
		case s.behind():
			return lease.Session{}, errBehind
		case l.fresh:
			session.Opened = uint64(resp.Header.Revision)
			s.sessions.put(session.ID, session)
			return session, nil
		}
		opened, err := s.renewOpened(ctx, found, session.Candidate, o)
		if errors.Is(err, lease.ErrSessionDead) {
			if found == sessionID(l.id) {
				*l = opening{id: newLease()} // its id has been used
			}
			continue
		}
		return opened, err
	}
	return lease.Session{}, errors.New("etcd: opening a session: the session of this attempt keeps changing")
}

// renewOpened returns the session of an earlier try, renewed: the caller counts its TTL
// from the beginning of this call.
func (s *Store) renewOpened(ctx context.Context, id lease.SessionID, c tenure.Candidate, o lease.OpenOptions) (lease.Session, error) {
	session, err := s.living(ctx, id)
	if err != nil {
		return lease.Session{}, err
	}
	if err := session.SameOpening(c, o); err != nil {
		return lease.Session{}, err
	}
	beat, _, err := s.keepAlive(ctx, id)
	if err != nil {
		return lease.Session{}, err
	}
	session.TTL = beat.TTL
	return session, nil
}

// revoke ends a lease that nobody needs, in its own time. One that is not revoked expires.
func (s *Store) revoke(id clientv3.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.revoking == maxRevoking {
		return
	}
	s.revoking++
	s.work.Go(func() {
		_ = s.each(s.ctx, "revoking a lease", func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.Revoke(ctx, id)
			return err
		})
		s.mu.Lock()
		s.revoking--
		s.mu.Unlock()
	})
}

// maxRevoking bounds the leases that are being revoked at once.
const maxRevoking = 64
