package database

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tenurehq/tenure/reference/ledger/api"
)

// read bounds a read and classifies its error. A read sees everything that was answered before
// it began.
func (d *DB) read(ctx context.Context, f func(context.Context, *sql.DB) error) error {
	if err := d.Intact(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	err := f(ctx, d.Reader)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return api.ErrNotFound
	}
	return fmt.Errorf("%w: %w", api.ErrUnavailable, err)
}

// Row reads one row. If there is none, the error is api.ErrNotFound.
func (d *DB) Row(ctx context.Context, query string, args []any, dest ...any) error {
	if !Storable(args) {
		return api.ErrNotFound
	}
	return d.read(ctx, func(ctx context.Context, db *sql.DB) error {
		return db.QueryRowContext(ctx, Translate(d.Dialect, query), args...).Scan(dest...)
	})
}

// Storable reports whether such names can exist: a database may fail on names that it cannot
// store.
func Storable(args []any) bool {
	for _, a := range args {
		if s, ok := a.(string); ok && (strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s)) {
			return false
		}
	}
	return true
}

// Each runs a query and calls scan for every row.
func (d *DB) Each(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	return d.read(ctx, func(ctx context.Context, db *sql.DB) error {
		rows, err := db.QueryContext(ctx, Translate(d.Dialect, query), args...)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// JSON scans a text into a JSON value; an empty text is nil.
type JSON struct{ To *json.RawMessage }

// Scan implements sql.Scanner.
func (r JSON) Scan(v any) error {
	switch v := v.(type) {
	case string:
		*r.To = json.RawMessage(v)
	case []byte:
		*r.To = append(json.RawMessage(nil), v...)
	default:
		return fmt.Errorf("%T is not a text", v)
	}
	if len(*r.To) == 0 {
		*r.To = nil
	}
	return nil
}

// Bool scans a number as a bool.
type Bool struct{ To *bool }

// Scan implements sql.Scanner.
func (t Bool) Scan(v any) error {
	n, ok := v.(int64)
	*t.To = n != 0
	if !ok {
		return fmt.Errorf("%T is not a number", v)
	}
	return nil
}
