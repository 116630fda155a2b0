package lease

import (
	"context"
	"errors"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Lead campaigns for the group as the candidate id, runs work for each term that it wins
// until ctx ends or work returns tenure.ErrDone, and then closes its session. See
// tenure.Lead for what work must do. Use New for another timing, several groups with one
// session, or an address for observers.
func Lead(ctx context.Context, st store.Store, group, id string, work func(context.Context, *tenure.Term) error, opts ...tenure.Option) (err error) {
	if ctx == nil {
		return errNoContext
	}
	n, err := New(st, Config{Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{group}})
	if err != nil {
		return err
	}
	defer func() {
		// tenure.Lead has waited for work, so Close only has to close the session.
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.cfg.TTL)
		defer cancel()
		err = errors.Join(err, n.Close(cctx))
	}()
	e, err := n.Elector(group)
	if err != nil {
		return err
	}
	return tenure.Lead(ctx, e, work, opts...)
}
