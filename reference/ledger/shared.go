package ledger

import (
	"context"
	"encoding/json"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// sharedState is the shared records that a group touches.
type sharedState struct {
	records map[sharedKey]sharedRow
	// marks are those of the resources that have the names of the spaces.
	marks map[string]fence.Mark
	// floor is the highest version of a deleted record. New records begin above it, so that no
	// version is used twice.
	floor uint64
	count uint64
	most  uint64
	// counted: floor or count has changed.
	counted bool
}

// sharedKey names a shared record. Deployments do not see each other's.
type sharedKey struct{ deployment, space, name string }

func keyOf(w api.SharedWrite) sharedKey { return sharedKey{w.Deployment, w.Space, w.Key} }

type sharedRow struct {
	version uint64 // 0: there is none
	value   string
	changed bool
}

func (s *sharedState) apply(w api.SharedWrite) (version uint64, err error) {
	here := keyOf(w)
	if m := s.marks[w.Space]; m.Token > 0 && m.Deployment != w.Deployment {
		return 0, &fence.ForeignError{Stamp: fence.Stamp{Deployment: w.Deployment, Group: w.Space}, Mark: m}
	}
	row := s.records[here]
	if w.Version != nil && *w.Version != row.version {
		return 0, &api.VersionError{Space: w.Space, Key: w.Key, Version: *w.Version, Current: row.version}
	}
	switch {
	case w.Delete && row.version == 0:
		return 0, api.ErrNotFound
	case w.Delete:
		s.floor, s.count, s.counted = max(s.floor, row.version), s.count-1, true
		s.records[here] = sharedRow{changed: true}
		return row.version, nil
	case row.version == 0 && s.count >= s.most:
		return 0, api.ErrTooManyRecords
	case row.version == 0:
		row.version = s.floor
		s.count, s.counted = s.count+1, true
	}
	row.version++
	s.records[here] = sharedRow{row.version, string(w.Value), true}
	return row.version, nil
}

// loadShared locks the counters before it reads: a record that does not exist cannot be locked.
func (t *tx) loadShared(ctx context.Context, on map[sharedKey]bool, into *sharedState) error {
	if len(on) == 0 {
		return nil
	}
	if err := t.QueryRow(ctx, "SELECT value FROM ledger_counter WHERE name = 'shared' {lock}").Scan(&into.count); err != nil {
		return err
	}
	if err := t.QueryRow(ctx, "SELECT value FROM ledger_counter WHERE name = 'shared_floor'").Scan(&into.floor); err != nil {
		return err
	}
	into.records, into.marks = make(map[sharedKey]sharedRow, len(on)), make(map[string]fence.Mark)
	keys, spaces := make([]row, 0, len(on)), make([]row, 0, len(on))
	for k := range on {
		keys, spaces = append(keys, row{k.deployment, k.space, k.name}), append(spaces, row{k.space})
	}
	err := readRows(ctx, t, "SELECT resource, deployment, grp, token FROM tenure_mark WHERE resource IN (SELECT e->>0 FROM {rows})", spaces, into.marks, func(name *string, m *fence.Mark) []any {
		return []any{name, &m.Deployment, &m.Group, &m.Token}
	})
	if err != nil {
		return err
	}
	return readRows(ctx, t, "SELECT s.deployment, s.space, s.name, s.version FROM {rows} JOIN shared s ON s.deployment = e->>0 AND s.space = e->>1 AND s.name = e->>2", keys, into.records, func(k *sharedKey, r *sharedRow) []any {
		return []any{&k.deployment, &k.space, &k.name, &r.version}
	})
}

// sharedWrites are the shared records that the group changed.
func sharedWrites(from *sharedState, nowMS int64) []rowsWrite {
	var made, gone, counters []row
	for k, r := range from.records {
		switch {
		case r.changed && r.version != 0:
			made = append(made, row{k.deployment, k.space, k.name, r.version, r.value, nowMS})
		case r.changed:
			gone = append(gone, row{k.deployment, k.space, k.name})
		}
	}
	if from.counted {
		counters = []row{{"shared", from.count}, {"shared_floor", from.floor}}
	}
	return []rowsWrite{
		{`INSERT INTO shared (deployment, space, name, version, value, updated_ms)
			SELECT e->>0, e->>1, e->>2, CAST(e->>3 AS BIGINT), e->>4, CAST(e->>5 AS BIGINT) FROM {rows} WHERE true
			ON CONFLICT (deployment, space, name) DO UPDATE SET version = excluded.version, value = excluded.value, updated_ms = excluded.updated_ms`, made},
		{"DELETE FROM shared WHERE (deployment, space, name) IN (SELECT e->>0, e->>1, e->>2 FROM {rows})", gone},
		{"UPDATE ledger_counter SET value = CAST(e->>1 AS BIGINT) FROM {rows} WHERE name = e->>0", counters},
	}
}

// Shared returns a shared record.
func (l *Ledger) Shared(ctx context.Context, deployment, space, key string) (r api.SharedRecord, err error) {
	err = l.row(ctx, "SELECT deployment, space, name, version, value, updated_ms FROM shared WHERE deployment = $1 AND space = $2 AND name = $3",
		[]any{deployment, space, key}, &r.Deployment, &r.Space, &r.Key, &r.Version, raw{&r.Value}, &r.UpdatedMS)
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
	return api.SharedAnswer{Deployment: w.Deployment, Space: w.Space, Key: w.Key, Version: v.version, AtMS: v.answer.AtMS}, v.err
}
