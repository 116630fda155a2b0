package zookeeper

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure/store/kv"
)

const (
	// changePrefix is how the names of changes begin. ZooKeeper appends a number that counts.
	changePrefix = "c"
	// keepChanges are kept at least, for watchers that are late or connect again. Older ones
	// are deleted together, because every delete wakes the watchers.
	keepChanges = 256
	trimEvery   = 128
	// giveUpAfter is how long a watch goes without a connection before it ends.
	giveUpAfter = 10 * time.Second
)

// number is that of a change. It may wrap around.
func number(name string) (int32, error) {
	n, err := strconv.ParseInt(name[strings.LastIndex(name, "/")+1+len(changePrefix):], 10, 32)
	return int32(n), err
}

// trim deletes old changes now and then, beside everything else.
func (d *Driver) trim(l *link, name string) {
	newest, err := number(name)
	if err != nil || newest%trimEvery != 0 {
		return
	}
	l.start(func() {
		ctx, cancel := context.WithTimeout(d.ctx, defaultCall)
		defer cancel()
		dir := d.cfg.Path + changesNode
		names, err := l.children(ctx, dir)()
		if err != nil {
			return // the next one deletes more
		}
		for part := range slices.Chunk(names, maxKeys) {
			var ops []any
			for _, name := range part {
				if n, err := number(name); err == nil && newest-n > keepChanges {
					ops = append(ops, &zk.DeleteRequest{Path: dir + "/" + name, Version: -1})
				}
			}
			if len(ops) > 0 {
				_, _ = l.multi(ctx, ops...)()
			}
		}
	})
}

// Watch implements kv.Driver with one ZooKeeper watch on the list of changes, however many keys
// there are. The list outlives connections, so a watch that connects again misses nothing.
func (d *Driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return func(yield func(kv.Change, error) bool) {
		w := &watch{d: d, prefixes: prefixes, last: -1, alive: time.Now()}
		var ticks <-chan time.Time
		if tick > 0 {
			ticker := time.NewTicker(tick)
			defer ticker.Stop()
			ticks = ticker.C
		}
		for {
			l, fired, changes, err := w.arm(ctx)
			if err != nil {
				yield(kv.Change{}, fmt.Errorf("zookeeper: watch: %w", err))
				return
			}
			for _, c := range changes {
				if !yield(c, nil) {
					return
				}
			}
			for waiting := l != nil; waiting; {
				select {
				case <-fired:
					waiting = false
				case <-l.lost:
					waiting = false
				case <-ticks:
					if !yield(kv.Change{Tick: true}, nil) {
						return
					}
				case <-ctx.Done():
					waiting = false
				}
				w.alive = time.Now()
			}
		}
	}
}

type watch struct {
	d        *Driver
	prefixes []string
	begun    bool
	losses   int
	last     int32     // change that was told
	alive    time.Time // when the ensemble answered last
}

type children struct {
	names []string
	fired <-chan zk.Event
}

// arm sets the watch and returns what changed since the last time. Without a link the connection
// was lost meanwhile.
func (w *watch) arm(ctx context.Context) (*link, <-chan zk.Event, []kv.Change, error) {
	bound, cancel := context.WithDeadline(ctx, w.alive.Add(giveUpAfter))
	defer cancel()
	l, err := w.d.link(bound)
	if err != nil {
		return nil, nil, nil, err
	}
	list, err := send(bound, l, func(c *zk.Conn) (children, error) {
		names, _, fired, err := c.ChildrenW(w.d.cfg.Path + changesNode)
		return children{names, fired}, err
	})()
	if err == nil {
		var changes []kv.Change
		if changes, err = w.since(bound, l, list.names); err == nil {
			w.alive = time.Now()
			return l, list.fired, changes, nil
		}
	}
	if err = l.own(err); lostLink(err) && bound.Err() == nil {
		err = nil
	}
	return nil, nil, nil, err
}

// since reads the changes that were not told yet.
func (w *watch) since(ctx context.Context, l *link, names []string) ([]kv.Change, error) {
	w.d.mu.Lock()
	losses := w.d.losses
	w.d.mu.Unlock()
	newest := w.last
	var fresh []string
	for i, name := range names {
		n, err := number(name)
		if err != nil {
			continue // not a change
		}
		if !w.begun && i == 0 || n-newest > 0 {
			newest = n
		}
		if n-w.last > 0 {
			fresh = append(fresh, name)
		}
	}
	gap := !w.begun || losses != w.losses || int(newest-w.last) != len(fresh)
	var changes []kv.Change
	if !gap {
		slices.Sort(fresh)
		var answers []func() (got, error)
		for _, name := range fresh {
			answers = append(answers, l.get(ctx, w.d.cfg.Path+changesNode+"/"+name))
		}
		for _, answer := range answers {
			g, err := answer()
			if err != nil {
				return nil, err
			}
			gap = gap || g.version() == 0 // it was deleted meanwhile
			for key := range strings.SplitSeq(string(g.data), "\n") {
				if slices.ContainsFunc(w.prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
					changes = append(changes, kv.Change{Key: key})
				}
			}
		}
	}
	if gap {
		changes = []kv.Change{{}}
	}
	w.begun, w.losses, w.last = true, losses, newest
	return changes, nil
}
