package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure/store/kv"
)

var _ kv.Driver = (*Driver)(nil)

// Caps implements kv.Driver.
func (d *Driver) Caps() kv.Caps {
	return kv.Caps{MinTTL: d.cfg.MinTTL, MaxTTL: maxTTL, Lateness: lateness, Keys: maxKeys, Prefix: d.cfg.Path + "/"}
}

var (
	errUnknown = errors.New("the outcome is unknown")
	errDeleted = errors.New("somebody deleted nodes of the driver")
)

func lostLink(err error) bool {
	return errors.Is(err, ErrConnectionLost) || errors.Is(err, ErrSessionLost) || errors.Is(err, errDeleted)
}

// do makes a call. It tries again on another link unless the outcome is unknown.
func (d *Driver) do(ctx context.Context, what string, call func(context.Context, *link) error) error {
	ctx, cancel := bounded(ctx)
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
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func (d *Driver) path(key string) string { return d.cfg.Path + "/" + key }

// dir is the path of the node above a key.
func (d *Driver) dir(key string) string { return path.Dir(d.path(key)) }

// items reads keys in their order. It is linearizable behind a write of the same link.
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

// barrier writes the index. Everything that was acknowledged before is visible behind it on
// the same link. A sync would not do: a leader answers it without asking its followers, so one
// that has lost them answers too.
func (d *Driver) barrier(ctx context.Context, l *link) func() (uint64, error) {
	answer := l.multi(ctx, &zk.SetDataRequest{Path: d.cfg.Path + indexNode, Version: -1})
	return func() (uint64, error) {
		did, err := answer()
		if err != nil {
			return 0, l.own(err)
		}
		return d.heard(l, did[0].Stat.Mzxid)
	}
}

// heard takes in the index of an answer.
func (d *Driver) heard(l *link, zxid int64) (uint64, error) {
	if epochOf(zxid) != l.epoch {
		return 0, l.lose(fmt.Errorf("%w: %s changed its epoch: %w", errUnknown, l.server, ErrConnectionLost))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.high = max(d.high, zxid)
	return uint64(zxid), nil
}

// Commit implements kv.Driver with one multi.
func (d *Driver) Commit(ctx context.Context, t kv.Txn) (r kv.Result, err error) {
	err = d.do(ctx, "commit", func(ctx context.Context, l *link) (err error) {
		if len(t.If)+len(t.Then) > 0 {
			r, err = d.commit(ctx, l, t)
			return err
		}
		barrier, items := d.barrier(ctx, l), d.items(ctx, l, t.Read)
		r = kv.Result{OK: true, Incarnation: l.life.ID}
		if r.Index, err = barrier(); err == nil {
			r.Items, err = items()
		}
		return err
	})
	return r, err
}

// commit guesses what it must know of the nodes from a read that may be stale. If the
// transaction then fails, a linearizable read tells whether a condition does not hold, or the
// guess was wrong.
func (d *Driver) commit(ctx context.Context, l *link, t kv.Txn) (kv.Result, error) {
	for try := 0; ; try++ {
		known, err := d.look(ctx, l, t, try > 0)
		if err != nil {
			return kv.Result{}, err
		}
		if try > 0 && slices.ContainsFunc(t.If, func(c kv.Cond) bool {
			return c.Version != known[d.path(c.Key)].version() && (c.Version != kv.Any || known[d.path(c.Key)].version() == 0)
		}) {
			items, err := d.items(ctx, l, slices.Concat(t.Read, t.Else))()
			return kv.Result{Items: items, Incarnation: l.life.ID}, err
		}
		ops, ok := d.translate(t, known)
		if !ok {
			continue
		}
		answer, items := l.multi(ctx, ops...), d.items(ctx, l, t.Read)
		did, err := answer()
		switch {
		case err == nil:
			r, err := d.committed(l, t, did)
			if err == nil {
				r.Items, err = items()
			}
			if err != nil {
				err = fmt.Errorf("%w: %w", errUnknown, err)
			}
			return r, err
		case errors.Is(err, ErrConnectionLost), ctx.Err() != nil:
			return kv.Result{}, fmt.Errorf("%w: %w", errUnknown, err)
		case !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNodeExists) && !errors.Is(err, zk.ErrBadVersion):
			return kv.Result{}, err
		}
	}
}

// look reads the nodes of a transaction, after their directories. Unless all must be known, it
// reads only those with a condition on a version, or a write without a condition.
func (d *Driver) look(ctx context.Context, l *link, t kv.Txn, all bool) (map[string]got, error) {
	var dirs, paths []string
	conditions := map[string]bool{}
	add := func(key string) {
		dirs, paths = append(dirs, d.dir(key)), append(paths, d.path(key))
	}
	for _, c := range t.If {
		if conditions[c.Key] = true; all || c.Version != 0 && c.Version != kv.Any {
			add(c.Key)
		}
	}
	for _, w := range t.Then {
		if all || !conditions[w.Key] {
			add(w.Key)
		}
	}
	if all {
		if _, err := d.barrier(ctx, l)(); err != nil {
			return nil, err
		}
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	paths = slices.Concat(dirs, paths)
	answers := make([]func() (got, error), len(paths))
	for i, p := range paths {
		answers[i] = l.get(ctx, p)
	}
	known := map[string]got{}
	for i, p := range paths {
		g, err := answers[i]()
		if err == nil && g.version() == 0 && all && slices.Contains(dirs, p) {
			g, err = d.makeDir(ctx, l, p)
		}
		if err != nil {
			return nil, err
		}
		known[p] = g
	}
	return known, nil
}

// makeDir creates a directory and those above it.
func (d *Driver) makeDir(ctx context.Context, l *link, dir string) (got, error) {
	if dir == d.cfg.Path {
		return got{}, l.own(zk.ErrNoNode)
	}
	_, err := l.multi(ctx, &zk.CreateRequest{Path: dir, Acl: d.acl})()
	if errors.Is(err, zk.ErrNoNode) {
		if _, err = d.makeDir(ctx, l, path.Dir(dir)); err == nil {
			return d.makeDir(ctx, l, dir)
		}
	}
	if err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return got{}, err
	}
	return l.get(ctx, dir)()
}

// translate returns a transaction as ZooKeeper takes it, with a write of the index and, if
// something is to be announced, a change at its end. It returns false if it would fail.
//
// Versions are transaction ids, which never repeat. ZooKeeper compares data versions, which
// begin anew when a node is created anew. So every delete also writes the directory, and a
// condition on a version also compares the data version that the directory had before the node
// was read.
func (d *Driver) translate(t kv.Txn, known map[string]got) (ops []any, ok bool) {
	written, conditions := map[string]bool{}, map[string]uint64{}
	var announced []string
	for _, w := range t.Then {
		written[w.Key] = w.Value != nil
		if !w.Quiet {
			announced = append(announced, w.Key)
		}
	}
	missing := func(path string) {
		ops = append(ops, &zk.CreateRequest{Path: path, Acl: d.acl}, &zk.DeleteRequest{Path: path, Version: -1})
	}
	for _, c := range t.If {
		conditions[c.Key] = c.Version
		dir, path := d.dir(c.Key), d.path(c.Key)
		switch {
		case c.Version == kv.Any:
			ops = append(ops, &zk.CheckVersionRequest{Path: path, Version: -1})
		case c.Version == 0 && !written[c.Key]: // else the write is a create
			missing(path)
		case c.Version != 0:
			if known[path].version() != c.Version {
				return nil, false
			}
			ops = append(ops, &zk.CheckVersionRequest{Path: dir, Version: known[dir].Version}, &zk.CheckVersionRequest{Path: path, Version: known[path].Version})
		}
	}
	deletes := map[string]bool{}
	for _, w := range t.Then {
		path := d.path(w.Key)
		version, conditional := conditions[w.Key]
		exists := version != 0 || !conditional && known[path].version() != 0
		switch {
		case w.Value != nil && exists:
			ops = append(ops, &zk.SetDataRequest{Path: path, Data: w.Value, Version: -1})
		case w.Value != nil:
			ops = append(ops, &zk.CreateRequest{Path: path, Data: w.Value, Acl: d.acl})
		case exists:
			ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
			if dir := d.dir(w.Key); !deletes[dir] {
				deletes[dir] = true
				ops = append(ops, &zk.SetDataRequest{Path: dir, Version: -1})
			}
		case !conditional:
			missing(path)
		}
	}
	ops = append(ops, &zk.SetDataRequest{Path: d.cfg.Path + indexNode, Version: -1})
	if len(announced) > 0 {
		name := d.cfg.Path + changesNode + "/" + changePrefix
		ops = append(ops, &zk.CreateRequest{Path: name, Data: []byte(strings.Join(announced, "\n")), Acl: d.acl, Flags: zk.FlagSequence})
	}
	return ops, true
}

// committed takes in what a multi did.
func (d *Driver) committed(l *link, t kv.Txn, did []zk.MultiResponse) (r kv.Result, err error) {
	last := len(did) - 1
	if name := did[last].String; name != "" {
		d.trim(l, name)
		last--
	}
	r = kv.Result{OK: true, Incarnation: l.life.ID, Versions: make([]uint64, len(t.Then))}
	r.Index, err = d.heard(l, did[last].Stat.Mzxid)
	for i, w := range t.Then {
		if w.Value != nil {
			r.Versions[i] = r.Index
		}
	}
	return r, err
}

// List implements kv.Driver. The keys are one level below the last slash of the prefix.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) (all []kv.Item, err error) {
	err = d.do(ctx, "list "+prefix, func(ctx context.Context, l *link) error {
		all = nil
		dir := prefix[:strings.LastIndex(prefix, "/")+1]
		barrier, children := d.barrier(ctx, l), l.children(ctx, strings.TrimSuffix(d.path(dir), "/"), false)
		_, err := barrier()
		if err != nil {
			return err
		}
		list, err := children()
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
			// Nodes that were deleted meanwhile leave room for others.
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
		index, err := d.barrier(ctx, l)()
		i = kv.Incarnation{ID: l.life.ID, Began: uint64(l.life.Began), Index: index}
		return err
	})
	return i, err
}
