package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure/store/kv"
)

var _ kv.Driver = (*Driver)(nil)

// Caps implements kv.Driver.
func (d *Driver) Caps() kv.Caps {
	return kv.Caps{Engine: "zookeeper", MinTTL: d.cfg.MinTTL, MaxTTL: maxTTL, Lateness: lateness, Keys: maxKeys, Prefix: d.cfg.Path + "/"}
}

var (
	errUnknown = errors.New("the outcome is unknown")
	errDeleted = errors.New("somebody deleted nodes of the driver")
)

func lostLink(err error) bool {
	return errors.Is(err, ErrConnectionLost) || errors.Is(err, ErrSessionLost) || errors.Is(err, errDeleted)
}

// do makes a call. It retries on another link unless the outcome is unknown.
func (d *Driver) do(ctx context.Context, what string, call func(context.Context, *link) error) error {
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	for {
		l, err := d.link(ctx)
		if err == nil {
			err = call(ctx, l)
		}
		switch {
		case err == nil:
			return nil
		case !lostLink(err) || errors.Is(err, errUnknown) || ctx.Err() != nil:
			return fmt.Errorf("zookeeper: %s: %w", what, err)
		}
		kv.Pause(ctx, pause)
	}
}

func (d *Driver) path(key string) string { return d.cfg.Path + "/" + key }

// dir is the path of the node above a key.
func (d *Driver) dir(key string) string { return path.Dir(d.path(key)) }

// items reads keys in order. It is linearizable after a write on the same link.
func (d *Driver) items(ctx context.Context, l *link, keys []string) func() ([]kv.Item, error) {
	answers := make([]func() (got, error), len(keys))
	for i, k := range keys {
		answers[i] = l.get(ctx, d.path(k))
	}
	return func() ([]kv.Item, error) {
		items := make([]kv.Item, len(keys))
		for i, k := range keys {
			g, err := answers[i]()
			if err != nil {
				return nil, err
			}
			items[i] = kv.Item{Key: k, Value: g.data, Version: uint64(g.Mzxid), Created: uint64(g.Czxid)}
		}
		return items, nil
	}
}

// Commit implements kv.Driver with one multi. It writes the index even if it only reads: then the
// reads after it on the same link see everything that was acknowledged before. See "Linearizable
// reads" in the package comment.
func (d *Driver) Commit(ctx context.Context, t kv.Txn) (r kv.Result, err error) {
	err = d.do(ctx, "commit", func(ctx context.Context, l *link) (err error) {
		r, err = d.commit(ctx, l, t)
		return err
	})
	return r, err
}

// commit translates the transaction with a read that may be stale. If the transaction then
// fails, a linearizable read shows whether a condition does not hold.
func (d *Driver) commit(ctx context.Context, l *link, t kv.Txn) (kv.Result, error) {
	for again := false; ; again = true {
		known, err := d.look(ctx, l, t, again)
		if err != nil {
			return kv.Result{}, err
		}
		if slices.ContainsFunc(t.If, func(c kv.Cond) bool { return !c.Holds(known[d.path(c.Key)].version()) }) {
			if !again {
				continue
			}
			items, err := d.items(ctx, l, slices.Concat(t.Read, t.Else))()
			return kv.Result{Items: items, Incarnation: l.incarnation.ID}, err
		}
		answer, items := l.multi(ctx, d.translate(t, known)...), d.items(ctx, l, t.Read)
		did, err := answer()
		if err == nil {
			r, err := d.committed(l, t, did)
			if err == nil {
				r.Items, err = items()
			}
			if err != nil && len(t.Then) > 0 {
				err = fmt.Errorf("%w: %w", errUnknown, err)
			}
			return r, err
		}
		changed := errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrBadVersion)
		switch {
		case len(t.If)+len(t.Then) == 0:
			return kv.Result{}, l.own(err)
		case errors.Is(err, ErrConnectionLost) || ctx.Err() != nil:
			return kv.Result{}, fmt.Errorf("%w: %w", errUnknown, err)
		case !changed:
			return kv.Result{}, err
		}
	}
}

// look reads the nodes of a transaction, each after its directory. With again, the read is
// linearizable and creates missing directories.
func (d *Driver) look(ctx context.Context, l *link, t kv.Txn, again bool) (map[string]got, error) {
	if again {
		if _, err := d.commit(ctx, l, kv.Txn{}); err != nil {
			return nil, err
		}
	}
	var keys []string
	for _, c := range t.If {
		keys = append(keys, c.Key)
	}
	for _, w := range t.Then {
		keys = append(keys, w.Key)
	}
	answers, known := map[string]func() (got, error){}, map[string]got{}
	for _, key := range keys {
		for _, path := range []string{d.dir(key), d.path(key)} {
			if answers[path] == nil {
				answers[path] = l.get(ctx, path)
			}
		}
	}
	for path, answer := range answers {
		g, err := answer()
		if err != nil {
			return nil, err
		}
		known[path] = g
	}
	for _, key := range keys {
		if dir := d.dir(key); again && known[dir].version() == 0 {
			if err := d.makeDir(ctx, l, dir); err != nil {
				return nil, err
			}
		}
	}
	return known, nil
}

// makeDir creates a directory and those above it.
func (d *Driver) makeDir(ctx context.Context, l *link, dir string) error {
	if dir == d.cfg.Path {
		return l.lose(errDeleted)
	}
	if above := path.Dir(dir); above != d.cfg.Path {
		if err := d.makeDir(ctx, l, above); err != nil {
			return err
		}
	}
	_, err := l.multi(ctx, &zk.CreateRequest{Path: dir, Acl: d.acl})()
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return l.own(err)
}

// translate returns the operations of a transaction for ZooKeeper. At the end it adds a write of
// the index and, unless all writes are quiet, a change for the watchers.
//
// Versions are transaction ids, which never repeat. But ZooKeeper compares data versions, which
// start again when a node is deleted and created. So every delete also writes the directory, and
// a condition on a version also compares the data version that the directory had before the node
// was read.
func (d *Driver) translate(t kv.Txn, known map[string]got) (ops []any) {
	add := func(op ...any) { ops = append(ops, op...) }
	check := func(path string, version int32) { add(&zk.CheckVersionRequest{Path: path, Version: version}) }
	set := func(path string, data []byte) { add(&zk.SetDataRequest{Path: path, Data: data, Version: -1}) }
	create := func(path string, data []byte, flags int32) {
		add(&zk.CreateRequest{Path: path, Data: data, Acl: d.acl, Flags: flags})
	}
	remove := func(path string) { add(&zk.DeleteRequest{Path: path, Version: -1}) }
	for _, c := range t.If {
		dir, path := d.dir(c.Key), d.path(c.Key)
		switch c.Version {
		case 0:
			create(path, nil, 0)
			remove(path)
		case kv.Any:
			check(path, -1)
		default:
			check(dir, known[dir].Version)
			check(path, known[path].Version)
		}
	}
	var announced []string
	deletes := map[string]bool{}
	for _, w := range t.Then {
		path := d.path(w.Key)
		switch exists := known[path].version() != 0; {
		case w.Value != nil && exists:
			set(path, w.Value)
		case w.Value != nil:
			create(path, w.Value, 0)
		case exists:
			remove(path)
			deletes[d.dir(w.Key)] = true
		default: // it must still be missing
			create(path, nil, 0)
			remove(path)
		}
		if !w.Quiet {
			announced = append(announced, w.Key)
		}
	}
	for dir := range deletes {
		set(dir, nil)
	}
	set(d.cfg.Path+indexNode, nil)
	if len(announced) > 0 {
		create(d.cfg.Path+changesNode+"/"+changePrefix, []byte(strings.Join(announced, "\n")), zk.FlagSequence)
	}
	return ops
}

// committed processes the result of a multi.
func (d *Driver) committed(l *link, t kv.Txn, did []zk.MultiResponse) (kv.Result, error) {
	last := did[len(did)-1]
	if last.Stat == nil {
		d.trim(l, last.String)
		last = did[len(did)-2]
	}
	zxid := last.Stat.Mzxid
	if epochOf(zxid) != l.epoch {
		return kv.Result{}, l.lose(fmt.Errorf("%w: %s changed its epoch", ErrConnectionLost, l.server))
	}
	d.mu.Lock()
	d.high = max(d.high, zxid)
	d.mu.Unlock()
	r := kv.Result{OK: true, Index: uint64(zxid), Incarnation: l.incarnation.ID, Versions: make([]uint64, len(t.Then))}
	for i, w := range t.Then {
		if w.Value != nil {
			r.Versions[i] = r.Index
		}
	}
	return r, nil
}

// List implements kv.Driver. The keys are one level below the last slash of the prefix.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) (all []kv.Item, err error) {
	err = d.do(ctx, "list "+prefix, func(ctx context.Context, l *link) error {
		all = nil
		if _, err := d.commit(ctx, l, kv.Txn{}); err != nil {
			return err
		}
		dir := prefix[:strings.LastIndex(prefix, "/")+1]
		list, err := l.children(ctx, strings.TrimSuffix(d.path(dir), "/"), false)()
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		var keys []string
		for _, name := range list.names {
			if key := dir + name; strings.HasPrefix(key, prefix) && key > after {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		for err == nil && len(keys) > 0 && len(all) < limit {
			// Nodes may have been deleted meanwhile: then read more to fill the page.
			n := min(limit-len(all), len(keys))
			var page []kv.Item
			page, err = d.items(ctx, l, keys[:n])()
			keys = keys[n:]
			all = append(all, slices.DeleteFunc(page, func(i kv.Item) bool { return len(i.Value) == 0 })...) // gone, or a directory
		}
		return err
	})
	return all, err
}

// Incarnation implements kv.Driver.
func (d *Driver) Incarnation(ctx context.Context) (i kv.Incarnation, err error) {
	err = d.do(ctx, "read the incarnation", func(ctx context.Context, l *link) error {
		r, err := d.commit(ctx, l, kv.Txn{})
		i = kv.Incarnation{ID: l.incarnation.ID, Began: uint64(l.incarnation.Began), Index: r.Index}
		return err
	})
	return i, err
}
