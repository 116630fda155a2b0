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
	Why        string `json:"why,omitempty"` // it is rewound, for people

	created  int64
	modified int64
	revision int64 // when it was read
}

// memory is what this client knows of the deployment. It belongs to one epoch: when an
// operator has raised it, whatever was lost before is dealt with.
type memory struct {
	deployment string
	epoch      uint64
	cluster    uint64
	created    int64  // the revision in which the deployment's record was created,
	modified   int64  // and the one in which it was changed last
	since      int64  // what answers from before this revision say does not count
	high       int64  // the highest revision seen
	lost       string // the engine has lost data: what and how, for people
	groups     map[string]mark
}

// mark is the newest that is known of a group.
type mark struct {
	version uint64
	token   fence.Token
	holder  lease.SessionID
}

// errLater: somebody else changed it first; try again.
var errLater = errors.New("etcd: changed meanwhile")

// loadMeta reads the deployment's record. At first use it writes it. If the engine has
// lost data, that is written into it before anybody relies on what was read.
func (s *Store) loadMeta(ctx context.Context) (*meta, error) {
	for range 5 {
		m, err := s.readMeta(ctx)
		if errors.Is(err, errLater) {
			continue
		}
		if err != nil {
			return nil, err
		}
		mend := s.compare(m)
		if mend == nil {
			return m, nil
		}
		if err := s.writeMeta(ctx, mend, m.modified); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("etcd: the deployment's record keeps changing")
}

// compare holds the deployment's record against what is known, and returns what it must
// say instead, nil if it is right.
func (s *Store) compare(m *meta) *meta {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.known
	switch {
	case m.Epoch > k.epoch || k.deployment == "":
		// The first answer, or an operator has raised the epoch.
		cluster, _ := strconv.ParseUint(m.Cluster, 16, 64)
		*k = memory{
			deployment: m.Deployment, epoch: m.Epoch, cluster: cluster, created: m.created, modified: m.modified,
			since: m.modified, high: m.revision, groups: map[string]mark{},
		}
	case m.revision < k.modified:
		// An answer from before the one that is known.
	case m.Epoch < k.epoch || m.Deployment != k.deployment:
		k.lose("the deployment's record was replaced: deployment %s at epoch %d became %s at epoch %d", k.deployment, k.epoch, m.Deployment, m.Epoch)
	}
	k.modified = max(k.modified, m.modified)
	mend := *m
	if k.lost != "" && !m.Rewound {
		mend.Rewound, mend.Why = true, k.lost
	}
	if m.created > k.created && k.lost != "" {
		// Sinks know the older name.
		mend.Deployment, mend.Epoch = k.deployment, max(m.Epoch, k.epoch)
	}
	if mend != *m {
		return &mend
	}
	s.meta = m
	return nil
}

// lose remembers that the engine has lost data. The first reason is the best one.
func (k *memory) lose(format string, args ...any) {
	k.lost = cmp.Or(k.lost, fmt.Sprintf(format, args...))
}

// note compares the record of a group, as of a revision, with what is known of it.
func (s *Store) note(r lease.Record, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteLocked(r, revision)
}

func (s *Store) noteLocked(r lease.Record, revision int64) {
	k := &s.known
	was, known := k.groups[r.Group]
	switch {
	case revision < k.since || uint64(revision) < was.version:
		// An older answer.
	case r.Version >= was.version && r.Token >= was.token:
		if r.Version == 0 {
			return
		}
		if !known && len(k.groups) >= memoMost {
			k.groups = nil
		}
		if k.groups == nil {
			k.groups = map[string]mark{}
		}
		k.groups[r.Group] = mark{r.Version, r.Token, r.Holder}
	case r.Version == 0:
		k.lose("the record of group %q (token %d) was deleted", r.Group, was.token)
		s.meta = nil
	default:
		k.lose("the record of group %q went back from token %d to %d", r.Group, was.token, r.Token)
		s.meta = nil
	}
}

// report tells everybody, through the deployment's record, that the engine lost data.
func (s *Store) report(ctx context.Context) {
	if s.behind() {
		_, _ = s.loadMeta(ctx) // else the next call that needs the record does it
	}
}

// deleted is told of every record that was deleted.
func (s *Store) deleted(group string, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision >= s.known.since {
		s.known.lose("the record of group %q was deleted", group)
		s.meta = nil
	}
}

// last is what is known of a group.
func (s *Store) last(group string) mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known.groups[group]
}

func (s *Store) readMeta(ctx context.Context) (*meta, error) {
	key := s.key("meta")
	resp, err := s.do(ctx, "reading the deployment's record", nil, []clientv3.Op{clientv3.OpGet(key)}, nil)
	if err != nil {
		return nil, err
	}
	cluster := strconv.FormatUint(resp.Header.ClusterId, 16)
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		m, err := s.newMeta(ctx)
		if err != nil {
			return nil, err
		}
		m.Cluster = cluster
		return nil, cmp.Or(s.writeMeta(ctx, m, 0), errLater)
	}
	var m meta
	if err := decode(kvs[0], &m, &m.Format); err != nil {
		return nil, err
	}
	m.created, m.modified, m.revision = kvs[0].CreateRevision, kvs[0].ModRevision, resp.Header.Revision
	if m.Cluster != cluster {
		why := fmt.Sprintf("the id of the etcd cluster changed from %s to %s: it was restored from a snapshot, or replaced", m.Cluster, cluster)
		m.Cluster = cluster
		if !m.Rewound {
			m.Rewound, m.Why = true, why
		}
		return nil, cmp.Or(s.writeMeta(ctx, &m, m.modified), errLater)
	}
	return &m, nil
}

// newMeta is the deployment's record where there is none. If anything else is there, or
// this client knows the deployment, the record was deleted: the new one has the old name,
// which sinks know, and says so.
func (s *Store) newMeta(ctx context.Context) (*meta, error) {
	const what = "looking for a deployment"
	resp, err := s.do(ctx, what, nil, []clientv3.Op{
		clientv3.OpGet(s.key(""), clientv3.WithPrefix(), clientv3.WithCountOnly()),
		clientv3.OpGet(s.key("granted/"), clientv3.WithPrefix(), clientv3.WithLimit(1)),
	}, nil)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	m := &meta{Format: format, Deployment: s.known.deployment, Epoch: s.known.epoch}
	s.mu.Unlock()
	if m.Rewound = m.Deployment != "" || resp.Responses[0].GetResponseRange().Count > 0; !m.Rewound {
		m.Deployment = newDeployment()
		return m, nil
	}
	m.Why = "the deployment's record " + s.key("meta") + " was deleted"
	if m.Deployment != "" {
		return m, nil
	}
	p, err := s.picture(ctx, lease.Scope{"*"})
	if err != nil {
		return nil, err
	}
	for _, r := range p.records {
		m.Epoch = max(m.Epoch, r.Token.Epoch())
	}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		var j grantedJSON
		if err := decode(kv, &j, &j.Format); err != nil {
			return nil, err
		}
		m.Deployment = j.Deployment
	}
	if m.Deployment == "" {
		m.Deployment = newDeployment()
		m.Why += ", and its name with it: sinks refuse the new name " + m.Deployment
	}
	return m, nil
}

func newDeployment() string { return "d" + strings.ToLower(rand.Text()[:12]) }

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
	asked := s.revision()
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
		s.saw(resp.Header, asked)
	}
	return resp, err
}

// moment is the highest revision that was seen in an epoch.
type moment struct {
	revision int64
	epoch    uint64
}

func (s *Store) revision() moment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return moment{s.known.high, s.known.epoch}
}

// saw remembers the highest revision. An answer from before what was known when it was
// asked for, or from another cluster, proves that the engine lost data, unless the epoch
// was raised since.
func (s *Store) saw(h *pb.ResponseHeader, asked moment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.known
	switch {
	case k.epoch != asked.epoch:
	case h.Revision < asked.revision:
		k.lose("etcd went back from revision %d to %d: it was restored from a backup", asked.revision, h.Revision)
		s.meta = nil
	case k.cluster != 0 && h.ClusterId != k.cluster:
		k.lose("the id of the etcd cluster changed from %x to %x: it was restored from a snapshot, or replaced", k.cluster, h.ClusterId)
		s.meta = nil
	default:
		k.high = max(k.high, h.Revision)
	}
}

// errBehind: the engine has lost data. What it says about a grant is not to be relied on.
var errBehind = errors.New("etcd: the cluster answered without what it had told us before")

// behind reports whether the engine has lost data that this client knew.
func (s *Store) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known.lost != ""
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
		return m, fmt.Errorf("etcd: %s: %s: %w", s.cfg.Prefix, cmp.Or(m.Why, "data was lost"), lease.ErrRewound)
	}
	return m, nil
}

// name returns the name of the deployment.
func (s *Store) name() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known.deployment
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
	return m.public(), nil
}

func (m *meta) public() lease.Meta {
	return lease.Meta{Deployment: m.Deployment, Epoch: m.Epoch, Index: uint64(m.revision), Rewound: m.Rewound, Why: m.Why}
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
		marked := *m
		marked.Rewound, marked.Why = true, fmt.Sprintf("a sink of group %q has seen token %d, which was not granted before token %d", group, seen, v.Token)
		if err := s.writeMeta(ctx, &marked, m.modified); err != nil {
			return err
		}
		s.forgetMeta()
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
		above := max(m.Epoch, s.known.epoch)
		s.mu.Unlock()
		if err := lease.CheckEpoch(to, above); err != nil {
			return lease.Meta{}, err
		}
		raised := *m
		raised.Epoch, raised.Rewound, raised.Why = to, false, ""
		if err := s.writeMeta(ctx, &raised, m.modified); err != nil {
			return lease.Meta{}, err
		}
		if m, err = s.loadMeta(ctx); err != nil {
			return lease.Meta{}, err
		}
		if m.Epoch == to {
			return m.public(), nil
		}
	}
	return lease.Meta{}, errors.New("etcd: the deployment's record keeps changing")
}
