package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/tenurehq/tenure/store/kv"
)

var _ kv.Driver = (*Driver)(nil)

// Caps implements kv.Driver.
func (d *Driver) Caps() kv.Caps {
	c := kv.Caps{
		Engine: "etcd", MinTTL: d.cfg.MinTTL, MaxTTL: maxTTL, Lateness: lateness, Keys: maxOps, Native: !d.cfg.Observed, Ordered: !d.cfg.Observed,
		Prefix: d.cfg.Prefix + "/",
	}
	if c.Native {
		c.Step = time.Second
	}
	return c
}

func (d *Driver) item(kv3 *mvccpb.KeyValue) kv.Item {
	return kv.Item{
		Key: strings.TrimPrefix(string(kv3.Key), d.cfg.Prefix+"/"), Value: kv3.Value,
		Version: uint64(kv3.ModRevision), Created: uint64(kv3.CreateRevision),
	}
}

func (d *Driver) key(k string) string { return d.cfg.Prefix + "/" + k }

// Commit implements kv.Driver with one transaction.
func (d *Driver) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	var cmps []clientv3.Cmp
	for _, c := range t.If {
		switch c.Version {
		case 0:
			cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(d.key(c.Key)), "=", 0))
		case kv.Any:
			cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(d.key(c.Key)), "!=", 0))
		default:
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(d.key(c.Key)), "=", int64(c.Version)))
		}
	}
	var then []clientv3.Op
	for _, w := range t.Then {
		if w.Value == nil {
			then = append(then, clientv3.OpDelete(d.key(w.Key)))
			continue
		}
		var opts []clientv3.OpOption
		if w.Lease != "" {
			id, err := leaseID(w.Lease)
			if err != nil {
				return kv.Result{}, err
			}
			opts = append(opts, clientv3.WithLease(id))
		}
		then = append(then, clientv3.OpPut(d.key(w.Key), string(w.Value), opts...))
	}
	reads := slices.Concat(t.Read, t.Else)
	otherwise := d.gets(reads)
	then = append(then, d.gets(t.Read)...)
	var resp *clientv3.TxnResponse
	err := d.each(ctx, "commit", func(ctx context.Context, c *clientv3.Client) (err error) {
		if resp, err = c.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit(); err == nil {
			d.heardFrom(c, resp.Header)
		}
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		// The lease is dead and its keys are gone, so answer as if a condition failed.
		r, err := d.Commit(ctx, kv.Txn{Read: reads})
		r.OK = false
		return r, err
	}
	if err != nil {
		return kv.Result{}, err
	}
	r := kv.Result{OK: resp.Succeeded, Index: uint64(resp.Header.Revision), Incarnation: incarnation(resp.Header)}
	answers := resp.Responses
	if r.OK {
		reads = t.Read
		answers = answers[len(t.Then):]
		for _, w := range t.Then {
			v := r.Index
			if w.Value == nil {
				v = 0
			}
			r.Versions = append(r.Versions, v)
		}
	}
	r.Items = d.items(reads, answers)
	return r, nil
}

func (d *Driver) gets(keys []string) []clientv3.Op {
	ops := make([]clientv3.Op, len(keys))
	for i, k := range keys {
		ops[i] = clientv3.OpGet(d.key(k))
	}
	return ops
}

func (d *Driver) items(keys []string, answers []*pb.ResponseOp) []kv.Item {
	items := make([]kv.Item, len(keys))
	for i, k := range keys {
		items[i].Key = k
		if kvs := answers[i].GetResponseRange().Kvs; len(kvs) > 0 {
			items[i] = d.item(kvs[0])
		}
	}
	return items
}

// List implements kv.Driver.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]kv.Item, error) {
	from := d.key(prefix)
	if after != "" {
		from = d.key(after) + "\x00"
	}
	var resp *clientv3.GetResponse
	err := d.each(ctx, "list "+prefix, func(ctx context.Context, c *clientv3.Client) (err error) {
		resp, err = c.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(d.key(prefix))), clientv3.WithLimit(int64(limit)))
		return err
	})
	if err != nil {
		return nil, err
	}
	items := make([]kv.Item, len(resp.Kvs))
	for i, kv3 := range resp.Kvs {
		items[i] = d.item(kv3)
	}
	return items, nil
}

// Incarnation implements kv.Driver: a restored cluster has another id. If it was restored under
// its old id, clients that have seen a higher revision notice it.
func (d *Driver) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	r, err := d.Commit(ctx, kv.Txn{Read: []string{"meta"}})
	return kv.Incarnation{ID: r.Incarnation, Index: r.Index}, err
}

func incarnation(h *pb.ResponseHeader) string { return fmt.Sprintf("cluster %x", h.ClusterId) }

func leaseID(id string) (clientv3.LeaseID, error) {
	n, err := strconv.ParseUint(id, 16, 63)
	if err != nil || n == 0 || len(id) != 16 {
		return 0, fmt.Errorf("etcd: %q is no lease: %w", id, kv.ErrNoLease)
	}
	return clientv3.LeaseID(n), nil
}

// seconds rounds up, because etcd's TTLs are whole seconds.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Grant implements kv.Leaser. The caller chooses the id, so a retry finds the lease that the
// first try may have made.
func (d *Driver) Grant(ctx context.Context, want string, ttl time.Duration) (string, time.Duration, error) {
	id, err := leaseID(want)
	if err != nil {
		return "", 0, err
	}
	var granted int64
	// With a single member there is no other to try, so wait for its restart.
	wait := grpc.WaitForReady(len(d.members) == 1)
	err = d.each(ctx, "grant a lease", func(ctx context.Context, c *clientv3.Client) error {
		resp, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: seconds(max(ttl, d.cfg.MinTTL))}, wait)
		if err == nil {
			granted = resp.TTL
			return nil
		}
		if !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseExist) {
			return err
		}
		left, err := c.TimeToLive(ctx, id)
		if err == nil && left.GrantedTTL <= 0 {
			err = rpctypes.ErrLeaseNotFound
		}
		if err == nil {
			granted = left.GrantedTTL
		}
		return err
	})
	return want, time.Duration(granted) * time.Second, err
}

// errQuorum means that the member that renewed the lease may have lost its leadership before.
var errQuorum = errors.New("etcd: the cluster changed its leader during the keep-alive")

// Renew implements kv.Leaser. A keep-alive counts only if a linearizable read after it is answered
// in the same Raft term: see "Keep-alives and quorum" in the package comment.
func (d *Driver) Renew(ctx context.Context, id string, read []string) (time.Duration, kv.Result, error) {
	lid, err := leaseID(id)
	if err != nil {
		return 0, kv.Result{}, kv.ErrNoLease
	}
	var ttl time.Duration
	var r kv.Result
	err = d.each(ctx, "keep-alive", func(ctx context.Context, c *clientv3.Client) error {
		renewed, err := d.beats.renew(ctx, c, lid)
		if err != nil {
			return err
		}
		resp, err := c.Txn(ctx).Then(d.gets(read)...).Commit()
		switch {
		case err != nil:
			return err
		case resp.Header.RaftTerm != renewed.Header.RaftTerm:
			return errQuorum
		}
		d.heardFrom(c, resp.Header)
		r = kv.Result{OK: true, Index: uint64(resp.Header.Revision), Incarnation: incarnation(resp.Header), Items: d.items(read, resp.Responses)}
		if renewed.TTL <= 0 {
			// Only a quorum can confirm that a lease is dead: the read of its first key, the
			// session's, does.
			if r.Items[0].Version == 0 {
				return rpctypes.ErrLeaseNotFound
			}
			return errQuorum
		}
		ttl = time.Duration(renewed.TTL) * time.Second
		return nil
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return 0, kv.Result{}, kv.ErrNoLease
	}
	return ttl, r, err
}

// Revoke implements kv.Leaser.
func (d *Driver) Revoke(ctx context.Context, id string) error {
	lid, err := leaseID(id)
	if err != nil {
		return nil //nolint:nilerr // there is no such lease
	}
	err = d.each(ctx, "revoke a lease", func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, lid)
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}
