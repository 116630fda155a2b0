package zookeeper

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure/store"
)

// incarnation is one incarnation of the ensemble's data.
type incarnation struct {
	ID    string `json:"id"`
	Began int64  `json:"began"` // the index before it
}

// The driver's own nodes.
const (
	indexNode   = "/.index"   // written by every transaction: its mzxid is the index
	changesNode = "/.changes" // its children say what changed
	lifeNode    = "/.life"
)

func epochOf(zxid int64) int64 { return zxid >> 32 }

// greet is the first thing that happens on a link. It notices an ensemble that lost data.
//
// ZooKeeper numbers transactions by the epoch of its leader and a counter. So after a restore the
// index does not go back: the next leader has a larger epoch. But every new epoch closes all
// connections, every connection begins with greet, and greet writes an incarnation only if the
// index was not written since it was read. So the incarnation has the last index before the first
// write of the epoch.
func (l *link) greet(ctx context.Context) error {
	at := l.cfg.Path
	if l.cfg.User != "" {
		login := []byte(l.cfg.User + ":" + l.cfg.Password)
		if _, err := send(ctx, l, func(c *zk.Conn) (any, error) { return nil, c.AddAuth("digest", login) })(); err != nil {
			return err
		}
	}
	for range 10 {
		did, err := l.multi(ctx, &zk.SetDataRequest{Path: at + changesNode, Version: -1})()
		if errors.Is(err, zk.ErrNoNode) {
			if err = l.create(ctx); err == nil || errors.Is(err, zk.ErrNodeExists) {
				continue
			}
		}
		if err != nil {
			return err
		}
		l.epoch = epochOf(did[0].Stat.Mzxid)
		// After a write on the same link, reads are linearizable.
		index, err1 := l.get(ctx, at+indexNode)()
		node, err2 := l.get(ctx, at+lifeNode)()
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := json.Unmarshal(node.data, &l.incarnation); err != nil {
			return &store.ArgumentError{Field: "path", Value: at, Rule: "node " + lifeNode + " does not hold what this program writes"}
		}
		if epochOf(node.Mzxid) == l.epoch {
			l.enter(l.incarnation, index.Mzxid)
			return nil
		}
		_, err = l.multi(ctx,
			&zk.CheckVersionRequest{Path: at + indexNode, Version: index.Version},
			&zk.SetDataRequest{Path: at + lifeNode, Data: newIncarnation(l.epoch, index.Mzxid), Version: node.Version})()
		if err != nil && !errors.Is(err, zk.ErrBadVersion) {
			return err
		}
	}
	return fmt.Errorf("node %s%s keeps changing", at, lifeNode)
}

// enter notes the incarnation of a link, and whether data was lost.
func (d *Driver) enter(now incarnation, index int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.incarnation.ID != "" && d.incarnation != now && now.Began < d.high {
		d.losses++
		d.high = index
	}
	d.incarnation = now
}

func newIncarnation(epoch, began int64) []byte {
	return fmt.Appendf(nil, `{"id":"epoch %d %s","began":%d}`, epoch, rand.Text()[:8], began)
}

// create creates the path and the driver's own nodes in one transaction, so that it creates
// nothing if a right is missing.
func (l *link) create(ctx context.Context) error {
	var ops []any
	for i, c := range l.cfg.Path + "/" {
		if c != '/' || i == 0 {
			continue
		}
		path := l.cfg.Path[:i]
		exists, err := send(ctx, l, func(c *zk.Conn) (bool, error) {
			ok, _, err := c.Exists(path)
			return ok, err
		})()
		if err != nil {
			return err
		}
		if !exists {
			ops = append(ops, &zk.CreateRequest{Path: path, Acl: l.acl})
		}
	}
	for node, data := range map[string][]byte{indexNode: nil, changesNode: nil, lifeNode: newIncarnation(0, 0)} {
		ops = append(ops, &zk.CreateRequest{Path: l.cfg.Path + node, Data: data, Acl: l.acl})
	}
	_, err := l.multi(ctx, ops...)()
	return err
}

// own handles an error about a node of the driver itself. If the node is missing, it gives up the
// link: the next link creates the nodes again.
func (l *link) own(err error) error {
	if errors.Is(err, zk.ErrNoNode) {
		return l.lose(errDeleted)
	}
	return err
}
