package ledger

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/tenurehq/tenure/app/ledger/api"
)

// sharedState is the shared records that a group touches.
type sharedState struct {
	records map[at]sharedRow // at.resource is the space
	// floor is the highest version that a deleted record had: those that are made
	// later begin above it, so that no version comes back.
	floor uint64
	count uint64
	most  uint64
	// counted: floor or count have changed.
	counted bool
}

type sharedRow struct {
	version uint64 // 0: there is none
	value   string
	changed bool
}

func (s *sharedState) apply(w api.SharedWrite) (version uint64, err error) {
	here := at{w.Space, w.Key}
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

// loadShared locks the counters before it reads: what is not there yet cannot be
// locked itself.
func (s *store) loadShared(ctx context.Context, t *tx, on map[at]bool, into *sharedState) error {
	if len(on) == 0 {
		return nil
	}
	var err error
	if into.count, err = t.number(ctx, s.words("SELECT value FROM ledger_counter WHERE name = 'shared' {lock}")); err != nil {
		return err
	}
	if into.floor, err = t.number(ctx, "SELECT value FROM ledger_counter WHERE name = 'shared_floor'"); err != nil {
		return err
	}
	into.records = make(map[at]sharedRow, len(on))
	return s.query(ctx, t, "SELECT s.space, s.name, s.version FROM {rows} JOIN shared s ON s.space = e->>0 AND s.name = e->>1", keys(on), func(rows *sql.Rows) error {
		var k at
		var r sharedRow
		err := rows.Scan(&k.resource, &k.name, &r.version)
		into.records[k] = r
		return err
	})
}

func (s *store) saveShared(ctx context.Context, t *tx, from *sharedState, nowMS int64) (changed bool, err error) {
	var made, gone []row
	for k, r := range from.records {
		switch {
		case r.changed && r.version != 0:
			made = append(made, row{k.resource, k.name, r.version, r.value, nowMS})
		case r.changed:
			gone = append(gone, row{k.resource, k.name})
		}
	}
	if err := s.exec(ctx, t, `INSERT INTO shared (space, name, version, value, updated_ms)
		SELECT e->>0, e->>1, CAST(e->>2 AS BIGINT), e->>3, CAST(e->>4 AS BIGINT) FROM {rows} WHERE true
		ON CONFLICT (space, name) DO UPDATE SET version = excluded.version, value = excluded.value, updated_ms = excluded.updated_ms`, made); err != nil {
		return false, err
	}
	if err := s.exec(ctx, t, "DELETE FROM shared WHERE (space, name) IN (SELECT e->>0, e->>1 FROM {rows})", gone); err != nil {
		return false, err
	}
	if from.counted {
		err = s.exec(ctx, t, "UPDATE ledger_counter SET value = CAST(e->>1 AS BIGINT) FROM {rows} WHERE name = e->>0",
			[]row{{"shared", from.count}, {"shared_floor", from.floor}})
	}
	return len(made)+len(gone) > 0, err
}

// Shared returns a shared record.
func (l *Ledger) Shared(ctx context.Context, space, key string) (r api.SharedRecord, err error) {
	err = l.row(ctx, "SELECT space, name, version, value, updated_ms FROM shared WHERE space = $1 AND name = $2",
		[]any{space, key}, &r.Space, &r.Key, &r.Version, raw{&r.Value}, &r.UpdatedMS)
	return r, err
}

// PutShared replaces a shared record and returns its new version. The version given,
// if any, is the one that it must have now; 0: it must not exist. If it has another
// the error is an *api.VersionError.
func (l *Ledger) PutShared(ctx context.Context, space, key string, value json.RawMessage, version *uint64) (uint64, error) {
	a, err := l.share(ctx, api.SharedWrite{Space: space, Key: key, Value: value, Version: version})
	return a.Version, err
}

// DeleteShared deletes a shared record, of that version if one is given. That there
// is none is api.ErrNotFound.
func (l *Ledger) DeleteShared(ctx context.Context, space, key string, version *uint64) error {
	_, err := l.share(ctx, api.SharedWrite{Space: space, Key: key, Version: version, Delete: true})
	return err
}

func (l *Ledger) share(ctx context.Context, w api.SharedWrite) (api.SharedAnswer, error) {
	if err := w.Validate(); err != nil {
		return api.SharedAnswer{}, err
	}
	v := l.wait(ctx, &op{kind: share, shared: &w, size: overhead + len(w.Value), done: make(chan struct{})})
	return api.SharedAnswer{Space: w.Space, Key: w.Key, Version: v.version, AtMS: v.answer.AtMS}, v.err
}
