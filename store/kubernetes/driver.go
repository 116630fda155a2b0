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
	quietLabel = "tenure/quiet" // the last write need not be announced: watches leave the Lease out

	valueNote   = "tenure/value"
	createdNote = "tenure/created" // version of the first write; not there: it was the last one
	writeNote   = "tenure/write"   // differs with each write, so that no write leaves the version as it is
)

const (
	maxName = 253 // of a Lease
	// page is how many Leases one answer has at most.
	page = 500
	// incarnationKey is a Lease of the driver. Its UID tells whether the Leases were copied into
	// another cluster, as by a backup tool.
	incarnationKey = "incarnation"
)

// driver knows Leases.
type driver struct {
	cfg    Config
	rest   rest.Interface
	params runtime.ParameterCodec
	ctx    context.Context // ends with close
	cancel context.CancelFunc

	mu      sync.Mutex
	lives   map[string]life      // by name
	refused map[string]time.Time // by verb: since when, zero if it is allowed
}

// life is one life of a Lease, from its creation to its deletion.
type life struct {
	uid     types.UID
	created uint64
}

var _ kv.Driver = (*driver)(nil)

// Caps implements kv.Driver.
func (d *driver) Caps() kv.Caps {
	return kv.Caps{MinTTL: d.cfg.MinTTL, MaxTTL: maxTTL, Lateness: lateness, Keys: 1, Prefix: d.cfg.Namespace + "/" + d.cfg.Name + "."}
}

func (d *driver) name(key string) string { return d.cfg.Name + "." + encodeKey(key) }

// Commit implements kv.Driver: one request for the write and one for each read.
func (d *driver) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if len(t.If) > 1 || len(t.Then) > 1 || len(t.If) == 1 && len(t.Then) == 1 && t.If[0].Key != t.Then[0].Key {
		return kv.Result{}, errors.New("kubernetes: a transaction has one key")
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	r := kv.Result{OK: true}
	var cond *kv.Cond
	if len(t.If) == 1 {
		cond = &t.If[0]
	}
	switch {
	case len(t.Then) == 1:
		version, ok, err := d.write(ctx, cond, t.Then[0])
		if err != nil {
			return kv.Result{}, err
		}
		if r.OK, r.Index = ok, version; ok {
			r.Versions = []uint64{version}
		}
	case cond != nil:
		i, err := d.read(ctx, cond.Key)
		if err != nil {
			return kv.Result{}, err
		}
		r.OK = i.Version == cond.Version || cond.Version == kv.Any && i.Version != 0
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

// write writes or deletes a key if the condition holds. nil: none.
func (d *driver) write(ctx context.Context, cond *kv.Cond, w kv.Write) (version uint64, ok bool, err error) {
	for {
		switch {
		case w.Value == nil:
			return d.remove(ctx, cond, w)
		case cond != nil && cond.Version == 0:
			return d.create(ctx, w)
		}
		version, ok, err = d.patch(ctx, cond, w)
		switch {
		case apierrors.IsConflict(err) && (cond == nil || cond.Version == kv.Any):
			continue // it was written or made anew meanwhile
		case apierrors.IsConflict(err):
			return 0, false, nil
		case err != nil || ok || cond != nil:
			return version, ok, err
		}
		if version, ok, err = d.create(ctx, w); err != nil || ok {
			return version, ok, err
		}
	}
}

func (d *driver) create(ctx context.Context, w kv.Write) (version uint64, ok bool, err error) {
	o := newObject(w)
	o.Metadata.Name = d.name(w.Key)
	o.Metadata.Labels[storeLabel], o.Metadata.Labels[kindLabel] = &d.cfg.Name, new(kindOf(w.Key))
	if !w.Quiet {
		delete(o.Metadata.Labels, quietLabel) // here nil would be a value
	}
	l, err := d.call(ctx, "create", func() *rest.Request { return post(d.rest, o) })
	if apierrors.IsAlreadyExists(err) {
		return 0, false, nil
	}
	if apierrors.IsNotFound(err) {
		return 0, false, d.noNamespace()
	}
	if err != nil {
		return 0, false, err
	}
	i, err := d.item(l)
	return i.Version, err == nil, err
}

func (d *driver) noNamespace() error {
	return &store.ArgumentError{Field: "namespace", Value: d.cfg.Namespace, Rule: "does not exist: create it, or name another"}
}

// patch writes over a key. It is not ok if there is none. A patch and not an update, because an
// update needs the version, and creates the Lease if it is missing.
func (d *driver) patch(ctx context.Context, cond *kv.Cond, w kv.Write) (version uint64, ok bool, err error) {
	name := d.name(w.Key)
	d.mu.Lock()
	now, known := d.lives[name]
	d.mu.Unlock()
	if !known {
		i, err := d.read(ctx, w.Key)
		if err != nil || i.Version == 0 {
			return 0, false, err
		}
		d.mu.Lock()
		now = d.lives[name]
		d.mu.Unlock()
	}
	o := newObject(w)
	o.Metadata.UID = now.uid
	if cond != nil && cond.Version != kv.Any {
		o.Metadata.ResourceVersion = strconv.FormatUint(cond.Version, 10)
	}
	o.Metadata.Annotations[createdNote] = strconv.FormatUint(now.created, 10)
	l, err := d.call(ctx, "patch", func() *rest.Request { return d.rest.Patch(types.MergePatchType).Name(name).Body(encode(o)) })
	if err != nil {
		d.forget(name)
		return 0, false, ignoreNotFound(err)
	}
	i, err := d.item(l)
	return i.Version, err == nil, err
}

// remove deletes a key. Watches do not see the deletion of a quiet Lease, so it is made a loud
// one before.
func (d *driver) remove(ctx context.Context, cond *kv.Cond, w kv.Write) (_ uint64, ok bool, err error) {
	name := d.name(w.Key)
	if cond != nil && cond.Version == 0 {
		i, err := d.read(ctx, w.Key)
		return 0, err == nil && i.Version == 0, err
	}
	missing := cond == nil // what no condition asks for may be gone
	var pre meta.Preconditions
	if cond != nil && cond.Version != kv.Any {
		pre.ResourceVersion = new(strconv.FormatUint(cond.Version, 10))
	}
	if !w.Quiet {
		loud := object{Metadata: metadata{Labels: map[string]*string{quietLabel: nil}}}
		if pre.ResourceVersion != nil {
			loud.Metadata.ResourceVersion = *pre.ResourceVersion
		}
		l, err := d.call(ctx, "patch", func() *rest.Request { return d.rest.Patch(types.MergePatchType).Name(name).Body(encode(loud)) })
		switch {
		case apierrors.IsNotFound(err):
			return 0, missing, nil
		case apierrors.IsConflict(err):
			return 0, false, nil
		case err != nil:
			return 0, false, err
		case pre.ResourceVersion != nil:
			pre.ResourceVersion = &l.ResourceVersion
		}
	}
	err = d.do(ctx, "delete", nil, func() *rest.Request { return d.rest.Delete().Name(name).Body(&meta.DeleteOptions{Preconditions: &pre}) })
	d.forget(name)
	switch {
	case apierrors.IsNotFound(err):
		return 0, missing, nil
	case apierrors.IsConflict(err):
		return 0, false, nil
	}
	return 0, err == nil, err
}

// read is linearizable: the API server asks etcd's quorum.
func (d *driver) read(ctx context.Context, key string) (kv.Item, error) {
	name := d.name(key)
	l, err := d.call(ctx, "get", func() *rest.Request { return d.rest.Get().Name(name) })
	if err != nil {
		d.forget(name)
		return kv.Item{Key: key}, ignoreNotFound(err)
	}
	return d.item(l)
}

// item is what a Lease holds.
func (d *driver) item(l *coordination.Lease) (kv.Item, error) {
	i := kv.Item{Key: decodeKey(strings.TrimPrefix(l.Name, d.cfg.Name+".")), Value: []byte(l.Annotations[valueNote])}
	var err error
	if i.Version, err = strconv.ParseUint(l.ResourceVersion, 10, 64); err != nil {
		return i, fmt.Errorf("kubernetes: lease %s has the version %q: this API server's versions are no numbers", l.Name, l.ResourceVersion)
	}
	i.Created = i.Version
	if created, err := strconv.ParseUint(l.Annotations[createdNote], 10, 64); err == nil {
		i.Created = created
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	const most = 1 << 16
	if len(d.lives) >= most {
		clear(d.lives)
	}
	d.lives[l.Name] = life{l.UID, i.Created}
	return i, nil
}

func (d *driver) forget(name string) {
	d.mu.Lock()
	delete(d.lives, name)
	d.mu.Unlock()
}

// List implements kv.Driver. Names are not in the order of keys, so all of a kind are read.
func (d *driver) List(ctx context.Context, prefix, after string, limit int) ([]kv.Item, error) {
	ctx, cancel := bounded(ctx)
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
	return &leases, d.do(ctx, "list", &leases, func() *rest.Request { return d.rest.Get().VersionedParams(&o, d.params) })
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
	ctx, cancel := bounded(ctx)
	defer cancel()
	for {
		l, err := d.call(ctx, "get", func() *rest.Request { return d.rest.Get().Name(d.name(incarnationKey)) })
		if apierrors.IsNotFound(err) {
			if _, _, err := d.create(ctx, kv.Write{Key: incarnationKey, Value: []byte("{}"), Quiet: true}); err != nil {
				return kv.Incarnation{}, err
			}
			continue
		}
		if err != nil {
			return kv.Incarnation{}, err
		}
		leases, err := d.list(ctx, meta.ListOptions{LabelSelector: d.selector(incarnationKey), Limit: 1})
		if err != nil {
			return kv.Incarnation{}, err
		}
		index, err := strconv.ParseUint(leases.ResourceVersion, 10, 64)
		return kv.Incarnation{ID: "lease " + string(l.UID), Index: index}, err
	}
}
