// Package ledgerdb reads the database of a ledger, in SQLite or Postgres.
package ledgerdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/tenurehq/tenure/lab/history"
)

type querier interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}

func eachRow(ctx context.Context, db querier, query string, args []any, row func(*sql.Rows) error) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("query the ledger's database: %w", err)
	}
	for err == nil && rows.Next() {
		err = row(rows)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// lagQuery returns the rows of a table whose range or token does not follow the row before.
const lagQuery = `SELECT of_what, n, was_n, first_n, was_last, token, was_token FROM (
	SELECT %[1]s AS of_what, n, %[3]s AS first_n, token,
		lag(n) OVER w AS was_n, lag(%[4]s) OVER w AS was_last, lag(token) OVER w AS was_token
	FROM %[2]s WINDOW w AS (PARTITION BY %[1]s ORDER BY n)
) AS steps WHERE first_n <= was_last OR token < was_token ORDER BY 1, n LIMIT 100`

// Step is a row whose range or token does not follow that of the row before it, of the same
// sequence or resource.
type Step struct {
	Of                              string
	N, WasN                         int
	First, WasLast, Token, WasToken int64
}

// Disorder calls see with the rows of the tables allocation and tick that do not follow the
// row before.
func Disorder(ctx context.Context, db querier, see func(table string, s Step)) error {
	for _, table := range []struct{ name, query string }{
		{"allocation", fmt.Sprintf(lagQuery, "resource || '/' || name", "allocation", "first_seq", "last_seq")},
		{"tick", fmt.Sprintf(lagQuery, "resource", "tick", "n", "n")},
	} {
		err := eachRow(ctx, db, table.query, nil, func(r *sql.Rows) error {
			var s Step
			err := r.Scan(&s.Of, &s.N, &s.WasN, &s.First, &s.WasLast, &s.Token, &s.WasToken)
			if err == nil {
				see(table.name, s)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Effects calls see with what a ledger's database has of a group: what took effect and what
// was refused, in the order of a history's file.
func Effects(ctx context.Context, db querier, group string, see func(history.Effect) error) error {
	for _, part := range []struct {
		what, query string
		scan        func(*history.Effect) []any
	}{
		{history.EffectSequence, "SELECT name, n, first_seq, last_seq, token, at_ms FROM allocation WHERE resource = $1 ORDER BY name, n",
			func(e *history.Effect) []any { return []any{&e.Name, &e.N, &e.First, &e.Last, &e.Token, &e.AtMS} }},
		// Name is the key of the tick until it is read.
		{history.EffectTick, "SELECT tick_key, n, token, at_ms FROM tick WHERE resource = $1 ORDER BY n",
			func(e *history.Effect) []any { return []any{&e.Name, &e.N, &e.Token, &e.AtMS} }},
		{history.EffectFiring, "SELECT job, n, at_ms, token, fired_ms FROM firing WHERE resource = $1 ORDER BY n",
			func(e *history.Effect) []any { return []any{&e.Name, &e.N, &e.InstantMS, &e.Token, &e.AtMS} }},
		// A checkpoint has its last write only.
		{history.EffectCheckpoint, "SELECT name, version, token, updated_ms FROM checkpoint WHERE resource = $1 ORDER BY name",
			func(e *history.Effect) []any { return []any{&e.Name, &e.N, &e.Token, &e.AtMS} }},
		{"write", "SELECT holder, token, reason, current_token, applied, at_ms FROM rejection WHERE resource = $1 ORDER BY id",
			func(e *history.Effect) []any {
				return []any{&e.Holder, &e.Token, &e.Refused, &e.Current, &e.Applied, &e.AtMS}
			}},
	} {
		err := eachRow(ctx, db, part.query, []any{group}, func(r *sql.Rows) error {
			e := history.Effect{What: part.what}
			if err := r.Scan(part.scan(&e)...); err != nil {
				return err
			}
			if e.What == history.EffectTick {
				e.InstantMS, e.Name = TickInstant(e.Name), ""
			}
			return see(e)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// TickInstant is the instant in the key of a tick; 0: there is none.
func TickInstant(key string) int64 {
	at, ok := strings.CutPrefix(key, "tick-")
	ms, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil {
		return 0
	}
	return ms
}

// RefusedWrites is what a ledger keeps least of.
const RefusedWrites = "refused writes"

// Deleted returns what the ledger has counted and no longer keeps.
func Deleted(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) (what []string, err error) {
	for _, part := range []struct{ what, query string }{
		{RefusedWrites, "SELECT (SELECT value FROM ledger_counter WHERE name = 'rejections') - (SELECT COUNT(*) FROM rejection)"},
		{"allocations", "SELECT (SELECT CAST(COALESCE(SUM(allocations), 0) AS BIGINT) FROM sequence) - (SELECT COUNT(*) FROM allocation)"},
		{"ticks", "SELECT (SELECT CAST(COALESCE(SUM(last_tick), 0) AS BIGINT) FROM fenced_resource) - (SELECT COUNT(*) FROM tick)"},
		{"firings", "SELECT (SELECT CAST(COALESCE(SUM(firings), 0) AS BIGINT) FROM fenced_resource) - (SELECT COUNT(*) FROM firing)"},
	} {
		var n int64
		if err := db.QueryRowContext(ctx, part.query).Scan(&n); err != nil {
			return nil, err
		}
		if n > 0 {
			what = append(what, part.what)
		}
	}
	return what, nil
}

func isPostgres(path string) bool {
	return strings.HasPrefix(path, "postgres://") || strings.HasPrefix(path, "postgresql://")
}

// Name is what to call a database: never its URL, which may contain a password.
func Name(path string) string {
	if u, err := url.Parse(path); err == nil && isPostgres(path) {
		return strings.TrimPrefix(u.Path, "/")
	}
	return filepath.Base(path)
}

// Open opens a ledger's database: a postgres URL or a SQLite file, which a ledger may
// be using if it is only read.
func Open(path string, write bool) (*sql.DB, error) {
	if isPostgres(path) {
		if _, err := url.Parse(path); err != nil {
			return nil, errors.New("invalid postgres URL") // the cause would show the password
		}
		return sql.Open("pgx", path)
	}
	// SQLite would create a missing file.
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "file", Path: full, RawQuery: "_pragma=busy_timeout(10000)"}
	if !write {
		u.RawQuery += "&_pragma=query_only(1)"
	}
	return sql.Open("sqlite", u.String())
}
