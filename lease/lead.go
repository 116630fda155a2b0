package lease

import (
	"context"
	"errors"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Lead is the whole of leading in one call: it campaigns for the group as the candidate id,
// runs work for each term won until ctx ends or work returns tenure.ErrDone, and gives
// everything up at the end. See tenure.Lead for what work must do. Whoever needs another
// timing, several groups with one session, or an address for observers uses New.
func Lead(ctx context.Context, st store.Store, group, id string, work func(context.Context, *tenure.Term) error, opts ...tenure.Option) (err error) {
	if ctx == nil {
		return errNoContext
	}
	n, err := New(st, Config{Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{group}})
	if err != nil {
		return err
	}
	defer func() {
		// Lead has waited for work, so what is left is to close the session.
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
