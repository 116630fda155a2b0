package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Labels and annotations of our Leases.
const (
	storeLabel = "tenure/store" // Config.Name
	kindLabel  = "tenure/kind"  // record, session, beat, …
	quietLabel = "tenure/quiet" // watches leave the Lease out, because its last write was quiet

	valueNote   = "tenure/value"
	createdNote = "tenure/created" // version of the first write; missing: there was only one write
	writeNote   = "tenure/write"   // differs with each write, so that every write changes the version
)

const (
	maxName = 253     // of a Lease
	maxSeen = 1 << 16 // cached versions
	// page is the largest number of Leases in one answer.
	page = 500
	// incarnationKey is a Lease of the driver. Its UID shows whether the Leases were copied into
	// another cluster, as by a backup tool.
	incarnationKey = "incarnation"
)

// driver is a kv.Driver for Leases.
type driver struct {
	cfg    Config
	rest   rest.Interface
	params runtime.ParameterCodec
	ctx    context.Context // ends with close
	cancel context.CancelFunc
	slots  chan struct{} // bounds the concurrent calls

	mu      sync.Mutex
	seen    map[string]kv.Item   // by key: the last read, without its value
	refused map[string]time.Time // by verb: since when it is refused; zero: it is allowed
}

var _ kv.Driver = (*driver)(nil)

// Caps implements kv.Driver.
func (d *driver) Caps() kv.Caps {
	return kv.Caps{Engine: "kubernetes", MinTTL: d.cfg.MinTTL, MaxTTL: maxTTL, Lateness: lateness, Keys: 1, Prefix: d.cfg.Namespace + "/" + d.cfg.Name + "."}
}

func (d *driver) name(key string) string { return d.cfg.Name + "." + encodeKey(key) }

func (d *driver) key(l *coordination.Lease) string {
	return decodeKey(strings.TrimPrefix(l.Name, d.cfg.Name+"."))
}

// Commit implements kv.Driver: one request for the write and one for each read.
func (d *driver) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if len(t.If) > 1 || len(t.Then) > 1 || len(t.If) == 1 && len(t.Then) == 1 && t.If[0].Key != t.Then[0].Key {
		return kv.Result{}, errors.New("kubernetes: a transaction has one key")
	}
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	r := kv.Result{OK: true}
	var err error
	switch {
	case len(t.Then) == 1:
		if r.OK, r.Index, err = d.write(ctx, t.If, t.Then[0]); r.OK {
			r.Versions = []uint64{r.Index}
		}
	case len(t.If) == 1:
		var i kv.Item
		i, err = d.read(ctx, t.If[0].Key)
		r.OK = t.If[0].Holds(i.Version)
	}
	if err != nil {
		return kv.Result{}, err
	}
	reads := t.Read
	if !r.OK {
		reads = slices.Concat(t.Read, t.Else)
	}
	for _, key := range reads {
		i, err := d.read(ctx, key)
		if err != nil {
			return kv.Result{}, err
		}
		r.Items = append(r.Items, i)
	}
	return r, nil
}

// write writes or deletes a key if the condition holds, from its current version. It reads the
// key first, unless the cached version is the one in the condition.
func (d *driver) write(ctx context.Context, cond []kv.Cond, w kv.Write) (ok bool, version uint64, err error) {
	d.mu.Lock()
	now := d.seen[w.Key]
	d.mu.Unlock()
	now.Key = w.Key
	for known := len(cond) == 1 && cond[0].Version == now.Version; ; known = false {
		if !known {
			if now, err = d.read(ctx, w.Key); err != nil {
				return false, 0, err
			}
		}
		if len(cond) == 1 && !cond[0].Holds(now.Version) {
			return false, 0, nil
		}
		switch {
		case now.Version == 0 && w.Value == nil:
			return true, 0, nil
		case now.Version == 0:
			version, err = d.create(ctx, w)
		case w.Value == nil:
			err = d.remove(ctx, now, w)
		default:
			o := newObject(w)
			o.Metadata.Annotations[createdNote] = strconv.FormatUint(now.Created, 10)
			version, err = d.patch(ctx, now, o)
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
			return err == nil, version, err
		}
	}
}

func (d *driver) create(ctx context.Context, w kv.Write) (version uint64, err error) {
	o := newObject(w)
	o.Metadata.Name = d.name(w.Key)
	o.Metadata.Labels[storeLabel], o.Metadata.Labels[kindLabel] = &d.cfg.Name, new(kindOf(w.Key))
	if !w.Quiet {
		delete(o.Metadata.Labels, quietLabel) // in a create, nil would be a value
	}
	i, err := d.call(ctx, "create", w.Key, post(d.rest, o))
	if apierrors.IsNotFound(err) {
		err = d.noNamespace()
	}
	return i.Version, err
}

func (d *driver) noNamespace() error {
	return &store.ArgumentError{Field: "namespace", Value: d.cfg.Namespace, Rule: "does not exist: create it, or name another"}
}

// patch changes a Lease if it has the version. An update would create a missing Lease.
func (d *driver) patch(ctx context.Context, now kv.Item, o object) (version uint64, err error) {
	o.Metadata.ResourceVersion = strconv.FormatUint(now.Version, 10)
	i, err := d.call(ctx, "patch", now.Key, d.rest.Patch(types.MergePatchType).Name(d.name(now.Key)).Body(encode(o)))
	return i.Version, err
}

// remove deletes a Lease if it has the version. Watches leave out Leases with the quiet label, so
// remove takes the label away first.
func (d *driver) remove(ctx context.Context, now kv.Item, w kv.Write) (err error) {
	if !w.Quiet {
		if now.Version, err = d.patch(ctx, now, object{Metadata: metadata{Labels: map[string]*string{quietLabel: nil}}}); err != nil {
			return err
		}
	}
	only := meta.Preconditions{ResourceVersion: new(strconv.FormatUint(now.Version, 10))}
	return d.do(ctx, "delete", nil, d.rest.Delete().Name(d.name(w.Key)).Body(&meta.DeleteOptions{Preconditions: &only}))
}

// read is linearizable: the API server reads from etcd with a quorum.
func (d *driver) read(ctx context.Context, key string) (kv.Item, error) {
	i, err := d.call(ctx, "get", key, d.rest.Get().Name(d.name(key)))
	return i, ignoreNotFound(err)
}

// call sends a request for the Lease of a key and returns its new state.
func (d *driver) call(ctx context.Context, verb, key string, r *rest.Request) (kv.Item, error) {
	var l coordination.Lease
	if err := d.do(ctx, verb, &l, r); err != nil {
		return kv.Item{Key: key}, err
	}
	return d.item(&l)
}

// item returns the item of a Lease and caches its version.
func (d *driver) item(l *coordination.Lease) (kv.Item, error) {
	i := kv.Item{Key: d.key(l), Value: []byte(l.Annotations[valueNote])}
	var err error
	if i.Version, err = strconv.ParseUint(l.ResourceVersion, 10, 64); err != nil {
		return i, fmt.Errorf("kubernetes: lease %s: version %q is not a number", l.Name, l.ResourceVersion)
	}
	if i.Created, err = strconv.ParseUint(l.Annotations[createdNote], 10, 64); err != nil {
		i.Created = i.Version
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.seen) >= maxSeen {
		clear(d.seen)
	}
	d.seen[i.Key] = kv.Item{Key: i.Key, Version: i.Version, Created: i.Created}
	return i, nil
}

// List implements kv.Driver. Names sort differently from keys, so it reads all Leases of a kind.
func (d *driver) List(ctx context.Context, prefix, after string, limit int) ([]kv.Item, error) {
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	var items []kv.Item
	o := meta.ListOptions{LabelSelector: d.selector(prefix), Limit: page}
	for {
		leases, err := d.list(ctx, o)
		if apierrors.IsResourceExpired(err) {
			items, o.Continue = nil, ""
			continue
		}
		if err != nil {
			return nil, err
		}
		for l := range leases.Items {
			i, err := d.item(&leases.Items[l])
			if err != nil {
				return nil, err
			}
			if strings.HasPrefix(i.Key, prefix) && i.Key > after {
				items = append(items, i)
			}
		}
		if o.Continue = leases.Continue; o.Continue == "" {
			break
		}
	}
	slices.SortFunc(items, func(a, b kv.Item) int { return cmp.Compare(a.Key, b.Key) })
	return items[:min(limit, len(items))], nil
}

// list is linearizable, because it names no version.
func (d *driver) list(ctx context.Context, o meta.ListOptions) (*coordination.LeaseList, error) {
	var leases coordination.LeaseList
	return &leases, d.do(ctx, "list", &leases, d.rest.Get().VersionedParams(&o, d.params))
}

// selector selects the Leases of keys that begin with one of the prefixes.
func (d *driver) selector(prefixes ...string) string {
	var kinds []string
	for _, p := range prefixes {
		kinds = append(kinds, kindOf(p))
	}
	return fmt.Sprintf("%s=%s,%s in (%s)", storeLabel, d.cfg.Name, kindLabel, strings.Join(kinds, ","))
}

// Incarnation implements kv.Driver.
func (d *driver) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	for {
		leases, err := d.list(ctx, meta.ListOptions{LabelSelector: d.selector(incarnationKey)})
		if err != nil {
			return kv.Incarnation{}, err
		}
		if len(leases.Items) > 0 {
			index, err := strconv.ParseUint(leases.ResourceVersion, 10, 64)
			return kv.Incarnation{ID: "lease " + string(leases.Items[0].UID), Index: index}, err
		}
		_, err = d.create(ctx, kv.Write{Key: incarnationKey, Value: []byte("{}"), Quiet: true})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return kv.Incarnation{}, err
		}
	}
}
