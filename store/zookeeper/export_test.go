package zookeeper

import (
	"context"

	"github.com/tenurehq/tenure/store/kv"
)

// CommitOnce makes a transaction as Commit does first: it reads, and then writes by what it
// read. Something else happens in between.
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

// Connected reports whether the driver has a connection that it has not given up.
func (d *Driver) Connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current != nil && d.current.ctx.Err() == nil
}
