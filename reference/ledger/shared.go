package ledger

import (
	"context"
	"encoding/json"

	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
)

// Shared returns a shared record.
func (l *Ledger) Shared(ctx context.Context, deployment, space, key string) (r api.SharedRecord, err error) {
	err = l.db.Row(ctx, "SELECT deployment, space, name, version, value, updated_ms FROM shared WHERE deployment = $1 AND space = $2 AND name = $3",
		[]any{deployment, space, key}, &r.Deployment, &r.Space, &r.Key, &r.Version, database.JSON{To: &r.Value}, &r.UpdatedMS)
	return r, err
}

// PutShared replaces a shared record and returns its new version. The record must have the given
// version; 0: it must not exist; nil: any. If it has another, the error is an *api.VersionError.
func (l *Ledger) PutShared(ctx context.Context, deployment, space, key string, value json.RawMessage, version *uint64) (uint64, error) {
	a, err := l.share(ctx, api.SharedWrite{Deployment: deployment, Space: space, Key: key, Value: value, Version: version})
	return a.Version, err
}

// DeleteShared deletes a shared record, of the given version if there is one. If there is no
// record, the error is api.ErrNotFound.
func (l *Ledger) DeleteShared(ctx context.Context, deployment, space, key string, version *uint64) error {
	_, err := l.share(ctx, api.SharedWrite{Deployment: deployment, Space: space, Key: key, Version: version, Delete: true})
	return err
}

func (l *Ledger) share(ctx context.Context, w api.SharedWrite) (api.SharedAnswer, error) {
	if err := w.Validate(); err != nil {
		return api.SharedAnswer{}, err
	}
	v := l.wait(ctx, &op{kind: share, shared: &w, seen: w.Seen, size: len(w.Value)})
	return api.SharedAnswer{Deployment: w.Deployment, Space: w.Space, Key: w.Key, Version: v.Version, AtMS: v.Answer.AtMS}, v.Err
}
