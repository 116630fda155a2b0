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

// life is one incarnation of the ensemble's data.
type life struct {
	ID    string `json:"id"`
	Began int64  `json:"began"` // the index before it
}

// The driver's own nodes.
const (
	indexNode   = "/.index"   // written by every transaction: its mzxid is the index
	changesNode = "/.changes" // its children tell what changed
	lifeNode    = "/.life"
)

func epochOf(zxid int64) int64 { return zxid >> 32 }

// greet is the first thing that happens on a link. It notices an ensemble that lost data.
//
// ZooKeeper numbers transactions by the epoch of its leader and a counter. So the index of an
// ensemble that was restored from a backup does not go back: its next leader has a larger
// epoch. But every epoch closes all connections, every connection begins here, and a life is
// written only if nobody has written the index since it was read. So the life says which
// index was the last one before the first write of the epoch.
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
		// Behind a write of the same link, reads are linearizable.
		index, err1 := l.get(ctx, at+indexNode)()
		life, err2 := l.get(ctx, at+lifeNode)()
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := json.Unmarshal(life.data, &l.life); err != nil {
			return &store.ArgumentError{Field: "path", Value: at, Rule: "node " + lifeNode + " does not hold what this program writes"}
		}
		if epochOf(life.Mzxid) == l.epoch {
			l.enter(l.life, index.Mzxid)
			return nil
		}
		_, err = l.multi(ctx,
			&zk.CheckVersionRequest{Path: at + indexNode, Version: index.Version},
			&zk.SetDataRequest{Path: at + lifeNode, Data: newLife(l.epoch, index.Mzxid), Version: life.Version})()
		if err != nil && !errors.Is(err, zk.ErrBadVersion) {
			return err
		}
	}
	return fmt.Errorf("node %s%s keeps changing", at, lifeNode)
}

// enter records the life that a link belongs to.
func (d *Driver) enter(now life, index int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.life.ID != "" && d.life != now && now.Began < d.high {
		d.losses++
		d.high = index
	}
	d.life = now
}

func newLife(epoch, began int64) []byte {
	return fmt.Appendf(nil, `{"id":"epoch %d %s","began":%d}`, epoch, rand.Text()[:8], began)
}

// create creates the path and the driver's own nodes in one transaction, so that nothing is
// left behind if a right is missing.
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
	for node, data := range map[string][]byte{indexNode: nil, changesNode: nil, lifeNode: newLife(0, 0)} {
		ops = append(ops, &zk.CreateRequest{Path: l.cfg.Path + node, Data: data, Acl: l.acl})
	}
	_, err := l.multi(ctx, ops...)()
	return err
}

// own explains an error about a node of the driver itself. A new link creates them again.
func (l *link) own(err error) error {
	if errors.Is(err, zk.ErrNoNode) {
		return l.lose(errDeleted)
	}
	return err
}
