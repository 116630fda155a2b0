package zookeeper

import (
	"context"
	"fmt"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure/store/kv"
)

const (
	// changePrefix is the prefix of the names of changes. ZooKeeper appends a sequence number.
	changePrefix = "c"
	// keepChanges is how many changes are kept at least, for watchers that are slow or
	// reconnect. Older ones are deleted together, because every delete wakes the watchers.
	keepChanges = 256
	trimEvery   = 128
	// giveUpAfter is how long a watch continues without a connection before it ends.
	giveUpAfter = 10 * time.Second
)

// number is the sequence number of a change. It may wrap around.
func number(name string) (int32, error) {
	n, err := strconv.ParseInt(strings.TrimPrefix(path.Base(name), changePrefix), 10, 32)
	return int32(n), err
}

// trim deletes old changes after every trimEvery changes, in the background.
func (d *Driver) trim(l *link, name string) {
	newest, err := number(name)
	if err != nil || newest%trimEvery != 0 {
		return
	}
	d.start(func() {
		ctx, cancel := kv.Bounded(d.ctx)
		defer cancel()
		dir := d.cfg.Path + changesNode
		list, err := l.children(ctx, dir, false)()
		if err != nil {
			return // the next trim deletes more
		}
		var old []any
		for _, name := range list.names {
			if n, err := number(name); err == nil && newest-n > keepChanges {
				old = append(old, &zk.DeleteRequest{Path: dir + "/" + name, Version: -1})
			}
		}
		if len(old) > 0 {
			_, _ = l.multi(ctx, old...)()
		}
	})
}

// Watch implements kv.Driver with one ZooKeeper watch on the list of changes, however many keys
// there are. The list outlives connections, so a watch that reconnects misses nothing.
func (d *Driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return kv.Follow{Life: d.ctx, Tick: tick, Prefixes: prefixes, Retry: pause, GiveUp: giveUpAfter}.Watch(ctx, func(f *kv.Follow) func(context.Context) error {
		return (&watch{Follow: f, d: d}).next
	})
}

type watch struct {
	*kv.Follow
	d      *Driver
	begun  bool
	losses int
	last   int32 // the last change that was yielded
}

// next yields the changes since the last call, and waits for the next change.
func (w *watch) next(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, giveUpAfter-w.Quiet())
	defer cancel()
	l, changed, err := w.arm(bound)
	for err == nil {
		select {
		case <-w.Ticks:
			err = w.Ticked()
			continue
		case <-changed:
		case <-l.ctx.Done():
		case <-ctx.Done():
		}
		w.Heard()
		return nil
	}
	return fmt.Errorf("zookeeper: watch: %w", err)
}

// arm sets the watch and yields the changes since the last call.
func (w *watch) arm(ctx context.Context) (l *link, changed <-chan zk.Event, err error) {
	if l, err = w.d.link(ctx); err != nil {
		return nil, nil, err
	}
	dir := w.d.cfg.Path + changesNode
	list, err := l.children(ctx, dir, true)()
	if err != nil {
		return nil, nil, l.own(err)
	}
	w.d.mu.Lock()
	losses := w.d.losses
	w.d.mu.Unlock()
	newest := w.last
	var fresh []string
	for _, name := range list.names {
		n, err := number(name)
		if err != nil {
			continue // not a change
		}
		if n-w.last > 0 || !w.begun {
			fresh = append(fresh, name)
		}
		if n-newest > 0 || !w.begun && len(fresh) == 1 {
			newest = n
		}
	}
	gap := !w.begun || losses != w.losses || int(newest-w.last) != len(fresh)
	if gap {
		fresh = nil
	}
	slices.Sort(fresh)
	answers := make([]func() (got, error), len(fresh))
	for i, name := range fresh {
		answers[i] = l.get(ctx, dir+"/"+name)
	}
	var keys []string
	for _, answer := range answers {
		g, err := answer()
		if err != nil {
			return nil, nil, err
		}
		gap = gap || g.version() == 0 // it was deleted meanwhile
		keys = append(keys, strings.Split(string(g.data), "\n")...)
	}
	if w.begun, w.losses, w.last = true, losses, newest; len(list.names) == 0 {
		w.last = -1 // before the first one
	}
	if gap {
		return l, list.changed, w.Gap()
	}
	return l, list.changed, w.Changed(keys...)
}
