package etcd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// meta is the deployment's record.
type meta struct {
	Format     int    `json:"format"`
	Deployment string `json:"deployment"`
	Epoch      uint64 `json:"epoch"`
	Cluster    string `json:"cluster"` // etcd's own id
	Rewound    bool   `json:"rewound,omitempty"`

	modified int64
	revision int64 // when it was read
}

// errLater: somebody else changed it first; try again.
var errLater = errors.New("etcd: changed meanwhile")

// loadMeta reads the deployment's record. At first use it writes it; if there are
// records without it, if the cluster is another one, or if it has gone back
// behind what this client was told, the store was rewound, and that is written
// down before anybody relies on what was read.
func (s *Store) loadMeta(ctx context.Context) (*meta, error) {
	for range 5 {
		m, err := s.readMeta(ctx)
		if errors.Is(err, errLater) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		if m.Epoch > s.highEpoch || s.high == 0 {
			// An operator has seen to it since.
			s.high, s.highEpoch, s.back = m.revision, m.Epoch, false
		}
		// Not m.revision < s.high: others have seen newer answers since this one.
		back := s.back
		if !back || m.Rewound {
			s.meta = m
		}
		s.mu.Unlock()
		if !back || m.Rewound {
			return m, nil
		}
		if err := s.markRewound(ctx, *m, m.Cluster); !errors.Is(err, errLater) {
			return nil, err
		}
	}
	return nil, errors.New("etcd: the deployment's record keeps changing")
}

func (s *Store) readMeta(ctx context.Context) (*meta, error) {
	key := s.key("meta")
	from, to := s.everything()
	var m meta
	var cluster string
	resp, err := s.do(ctx, "reading the deployment's record", nil,
		[]clientv3.Op{clientv3.OpGet(key), clientv3.OpGet(from, clientv3.WithRange(to), clientv3.WithLimit(1), clientv3.WithKeysOnly())}, nil)
	if err != nil {
		return nil, err
	}
	cluster = strconv.FormatUint(resp.Header.ClusterId, 16)
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		m = meta{
			Format: format, Deployment: "d" + strings.ToLower(rand.Text()[:12]), Cluster: cluster,
			Rewound: resp.Responses[1].GetResponseRange().Count > 0,
		}
		return nil, cmp.Or(s.writeMeta(ctx, &m, 0), errLater)
	}
	if err := decode(kvs[0], &m, &m.Format); err != nil {
		return nil, err
	}
	m.modified, m.revision = kvs[0].ModRevision, resp.Header.Revision
	if m.Cluster != cluster && !m.Rewound {
		return nil, s.markRewound(ctx, m, cluster)
	}
	return &m, nil
}

func (s *Store) markRewound(ctx context.Context, m meta, cluster string) error {
	m.Rewound, m.Cluster = true, cluster
	return cmp.Or(s.writeMeta(ctx, &m, m.modified), errLater)
}

// writeMeta writes from the version seen; that somebody else was faster is no
// error, for the caller reads it again.
func (s *Store) writeMeta(ctx context.Context, m *meta, seen int64) error {
	key := s.key("meta")
	_, err := s.do(ctx, "writing the deployment's record",
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", seen)},
		[]clientv3.Op{clientv3.OpPut(key, encode(m))}, nil)
	var conflict *txnError
	if errors.As(err, &conflict) {
		return nil
	}
	return err
}

// txnError: the comparisons of a transaction failed; resp has what was asked for
// then.
type txnError struct{ resp *clientv3.TxnResponse }

func (*txnError) Error() string { return "etcd: compared values differ" }

// do runs a transaction, and notices an etcd that went back: an answer must not
// be from before what was known when it was asked for.
func (s *Store) do(ctx context.Context, what string, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	s.mu.Lock()
	known := s.high
	s.mu.Unlock()
	var resp *clientv3.TxnResponse
	err := s.each(ctx, what, func(ctx context.Context, c *clientv3.Client) error {
		r, err := c.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
		if err != nil {
			return err
		}
		resp = r
		if !r.Succeeded {
			return &txnError{r}
		}
		return nil
	})
	if resp != nil {
		s.saw(resp.Header, known)
	}
	return resp, err
}

// saw remembers the highest revision, and for good that one came from before what
// was known when it was asked for: it was rewound, or raised since.
func (s *Store) saw(h *pb.ResponseHeader, known int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.Revision < known {
		s.back, s.meta = true, nil
		return
	}
	s.high = max(s.high, h.Revision)
}

// errBehind: the answer is from before what the cluster had told us. What it says
// about a grant is not to be relied on.
var errBehind = errors.New("etcd: the cluster answered from before what it had told us")

// behind reports whether that has happened.
func (s *Store) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.back
}

// fresh returns the deployment's record if grants may be made under it.
func (s *Store) fresh(ctx context.Context) (*meta, error) {
	s.mu.Lock()
	m := s.meta
	s.mu.Unlock()
	if m == nil {
		var err error
		if m, err = s.loadMeta(ctx); err != nil {
			return nil, err
		}
	}
	if m.Rewound {
		s.forgetMeta() // ask again next time: it may have been raised
		return m, fmt.Errorf("etcd: %s: %w", s.cfg.Prefix, lease.ErrRewound)
	}
	return m, nil
}

func (s *Store) forgetMeta() {
	s.mu.Lock()
	s.meta = nil
	s.mu.Unlock()
}

// stands checks the deployment's record as a keep-alive has read it: what was
// granted before a rewind is not to be relied on.
func (s *Store) stands(ctx context.Context, kvs []*mvccpb.KeyValue) error {
	s.mu.Lock()
	m := s.meta
	if m != nil && (len(kvs) == 0 || kvs[0].ModRevision != m.modified) {
		s.meta, m = nil, nil
	}
	s.mu.Unlock()
	if m != nil {
		return nil
	}
	_, err := s.fresh(ctx)
	return err
}

// Meta implements lease.Store.
func (s *Store) Meta(ctx context.Context) (lease.Meta, error) {
	s.forgetMeta()
	m, err := s.fresh(ctx)
	if err != nil && !errors.Is(err, lease.ErrRewound) {
		return lease.Meta{}, err
	}
	return lease.Meta{Deployment: m.Deployment, Epoch: m.Epoch, Index: uint64(m.revision), Rewound: m.Rewound}, nil
}

// Suspect implements lease.Store.
func (s *Store) Suspect(ctx context.Context, group string, seen fence.Token) error {
	if err := errors.Join(lease.CheckGroup(group), lease.CheckToken(seen)); err != nil {
		return err
	}
	for range 5 {
		v, err := s.Read(ctx, group)
		if err != nil {
			return err
		}
		m, err := s.loadMeta(ctx)
		if err != nil || m.Rewound || m.Epoch > seen.Epoch() || v.Token > seen {
			return err
		}
		if err := s.markRewound(ctx, *m, m.Cluster); !errors.Is(err, errLater) {
			return err
		}
	}
	return errors.New("etcd: the deployment's record keeps changing")
}

// RaiseEpoch implements lease.Store. It cannot know epochs that a restore has
// taken back: raise above every token that any sink has seen.
func (s *Store) RaiseEpoch(ctx context.Context, to uint64) (lease.Meta, error) {
	for range 5 {
		m, err := s.loadMeta(ctx)
		if err != nil {
			return lease.Meta{}, err
		}
		s.mu.Lock()
		above := max(m.Epoch, s.highEpoch)
		s.mu.Unlock()
		if err := lease.CheckEpoch(to, above); err != nil {
			return lease.Meta{}, err
		}
		raised := *m
		raised.Epoch, raised.Rewound = to, false
		if err := s.writeMeta(ctx, &raised, m.modified); err != nil {
			return lease.Meta{}, err
		}
		if m, err = s.loadMeta(ctx); err != nil {
			return lease.Meta{}, err
		}
		if m.Epoch == to {
			return lease.Meta{Deployment: m.Deployment, Epoch: m.Epoch, Index: uint64(m.revision), Rewound: m.Rewound}, nil
		}
	}
	return lease.Meta{}, errors.New("etcd: the deployment's record keeps changing")
}
