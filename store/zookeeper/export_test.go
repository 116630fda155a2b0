package zookeeper

import (
	"context"

	"github.com/tenurehq/tenure/store/kv"
)

// CommitOnce makes the first try of a Commit: it reads, calls between, and then writes what follows
// from the read.
func (d *Driver) CommitOnce(ctx context.Context, t kv.Txn, between func()) error {
	return d.do(ctx, "commit once", func(ctx context.Context, l *link) error {
		known, err := d.look(ctx, l, t, false)
		if err != nil {
			return err
		}
		between()
		_, err = l.multi(ctx, d.translate(t, known)...)()
		return err
	})
}

// Connected reports whether the driver has a connection.
func (d *Driver) Connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current != nil && d.current.ctx.Err() == nil
}
