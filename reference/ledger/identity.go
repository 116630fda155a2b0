package ledger

import (
	"context"
	"fmt"

	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
)

// identity says which ledger this is.
type identity struct {
	api.Identity
	// seen is the highest revision that a caller has seen and that this database does not have;
	// 0: none. While it is set, every write is refused.
	seen uint64
}

const selectIdentity = "SELECT id, revision, seen FROM ledger_identity"

func identityIn(ctx context.Context, t *database.Tx) (i identity, err error) {
	err = t.QueryRow(ctx, selectIdentity).Scan(&i.ID, &i.Revision, &i.seen)
	return i, err
}

func (i identity) lost() error {
	return fmt.Errorf("%w: ledger %s is at revision %d, and revision %d was acknowledged", api.ErrDataLost, i.ID, i.Revision, i.seen)
}

// expected refuses a caller that has seen another ledger, unless an operator has accepted that
// this one replaces it.
func expected(ctx context.Context, t *database.Tx, i identity, seen api.Identity) error {
	if seen.ID == "" || seen.ID == i.ID {
		return nil
	}
	var accepted int
	if err := t.QueryRow(ctx, "SELECT COUNT(*) FROM ledger_acceptance WHERE replaced = $1", seen.ID).Scan(&accepted); err != nil || accepted > 0 {
		return err
	}
	return fmt.Errorf("%w: this is ledger %s, and the caller has seen ledger %s", api.ErrDataLost, i.ID, seen.ID)
}

// acceptState accepts the state of the database, under a new id. Callers that have seen the replaced
// ledger are served again.
func acceptState(ctx context.Context, t *database.Tx, i *identity, replaces, holder string, nowMS int64) error {
	switch {
	case replaces == "" && i.seen == 0:
		return &api.RequestError{Field: "replaces", Rule: "must name the ledger that this one replaces: this one has not lost data, as far as it knows"}
	case replaces == "":
		replaces = i.ID
	}
	next := identity{Identity: api.Identity{ID: database.NewID(), Revision: i.Revision}}
	// Callers that have seen this ledger until now are served as well.
	for _, replaced := range []string{replaces, i.ID} {
		err := t.Run(ctx, "INSERT INTO ledger_acceptance (replaced, id, revision, seen, holder, at_ms) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
			replaced, next.ID, int64(i.Revision), int64(i.seen), holder, nowMS)
		if err != nil {
			return err
		}
	}
	*i = next
	return t.Run(ctx, "UPDATE ledger_identity SET id = $1, seen = 0", next.ID)
}

// Known is the identity that the last commit saw.
func (l *Ledger) Known() api.Identity { return *l.known.Load() }

// Identity returns the id and the revision of this ledger.
func (l *Ledger) Identity(ctx context.Context) (api.Identity, error) {
	i, err := l.identity(ctx)
	return i.Identity, err
}

func (l *Ledger) identity(ctx context.Context) (i identity, err error) {
	err = l.db.Row(ctx, selectIdentity, nil, &i.ID, &i.Revision, &i.seen)
	return i, err
}

// Accept accepts the state of this ledger although callers have seen a later one. It is for
// operators. replaces names the ledger that this one replaces; empty: itself, before it lost
// data. The ledger gets a new id, records the acceptance, and serves callers of the replaced
// ledger again.
func (l *Ledger) Accept(ctx context.Context, replaces, holder string) (api.Identity, error) {
	if replaces != "" {
		if err := api.Name("replaces", replaces); err != nil {
			return api.Identity{}, err
		}
	}
	v := l.wait(ctx, &op{kind: accept, replaces: replaces, batch: api.Batch{Holder: holder}})
	if v.Err == nil {
		l.cfg.Logger.Warn("an operator accepted the state of the ledger", "id", v.Answer.Ledger.ID, "revision", v.Answer.Ledger.Revision, "replaces", replaces, "by", holder)
	}
	return v.Answer.Ledger, v.Err
}
