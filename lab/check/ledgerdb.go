package check

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
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"
)

// ledgerTimeout bounds what a ledger's database is asked.
const ledgerTimeout = 5 * time.Minute

// lagQuery returns the rows of a table that do not follow the one before. A step that
// rises at every row rises from every row to every later one.
const lagQuery = `SELECT of_what, n, was_n, first_n, was_last, token, was_token FROM (
	SELECT %[1]s AS of_what, n, %[3]s AS first_n, token,
		lag(n) OVER w AS was_n, lag(%[4]s) OVER w AS was_last, lag(token) OVER w AS was_token
	FROM %[2]s WINDOW w AS (PARTITION BY %[1]s ORDER BY n)
) AS steps WHERE first_n <= was_last OR token < was_token ORDER BY 1, n LIMIT 100`

// Ledger checks a ledger's database with SQL: its sequences rise from allocation to
// allocation (G6) and so do their tokens and those of its ticks (G2). db is a SQLite
// file or a postgres URL; it is only read.
func Ledger(ctx context.Context, db string) Verdict {
	return readLedger(ctx, db, "").verdict()
}

// readLedger also keeps the allocations of a group, if one is given: what callers have
// must be among them.
func readLedger(ctx context.Context, path, group string) *kept {
	k := &kept{group: group, tally: newTally("G6", "ledger", "allocations", "ticks", "numbers", "calls compared", "calls not compared")}
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if err := k.read(ctx, path); err != nil {
		k.unread = true
		k.doubt(nil, "the ledger's database cannot be read: %v", err)
	}
	return k
}

func (k *kept) read(ctx context.Context, path string) error {
	t := k.tally
	db, name, err := openLedger(path, readOnly)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	// One transaction, so that a ledger at work does not move on between the queries.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()

	var allocations, ticks, numbers int64
	if err := tx.QueryRowContext(ctx, "SELECT COUNT(*), CAST(COALESCE(SUM(last_seq - first_seq + 1), 0) AS BIGINT) FROM allocation").Scan(&allocations, &numbers); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM tick").Scan(&ticks); err != nil {
		return err
	}
	t.counts["allocations"], t.counts["ticks"], t.counts["numbers"] = allocations, ticks, numbers
	if err := steps(ctx, tx, t, name+" allocation", fmt.Sprintf(lagQuery, "resource || '/' || name", "allocation", "first_seq", "last_seq")); err != nil {
		return err
	}
	if err := steps(ctx, tx, t, name+" tick", fmt.Sprintf(lagQuery, "resource", "tick", "n", "n")); err != nil {
		return err
	}
	forgotten, err := Forgotten(ctx, tx)
	if err != nil {
		return err
	}
	for _, what := range forgotten {
		if what != refusedWrites { // they are not looked at here
			t.doubt(nil, "the ledger has forgotten %s: start it with a larger --history", what)
		}
	}
	if k.group == "" {
		return nil
	}
	return k.allocations(ctx, tx)
}

// Effects calls see with what the ledger's database has of a group: what took effect and
// what was refused, in the order of a history's file.
func Effects(ctx context.Context, db interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}, group string, see func(Effect) error) error {
	for _, part := range []struct {
		query string
		scan  func(*sql.Rows, *Effect) error
	}{
		{"SELECT name, n, first_seq, last_seq, token, at_ms FROM allocation WHERE resource = $1 ORDER BY name, n", func(r *sql.Rows, e *Effect) error {
			e.What = EffectSequence
			return r.Scan(&e.Name, &e.N, &e.First, &e.Last, &e.Token, &e.AtMS)
		}},
		{"SELECT tick_key, n, token, at_ms FROM tick WHERE resource = $1 ORDER BY n", func(r *sql.Rows, e *Effect) error {
			e.What = EffectTick
			var key string
			err := r.Scan(&key, &e.N, &e.Token, &e.AtMS)
			e.InstantMS = TickInstant(key)
			return err
		}},
		{"SELECT job, n, at_ms, token, fired_ms FROM firing WHERE resource = $1 ORDER BY n", func(r *sql.Rows, e *Effect) error {
			e.What = EffectFiring
			return r.Scan(&e.Name, &e.N, &e.InstantMS, &e.Token, &e.AtMS)
		}},
		// Of a checkpoint there is only the last write.
		{"SELECT name, version, token, updated_ms FROM checkpoint WHERE resource = $1 ORDER BY name", func(r *sql.Rows, e *Effect) error {
			e.What = EffectCheckpoint
			return r.Scan(&e.Name, &e.N, &e.Token, &e.AtMS)
		}},
		{"SELECT holder, token, reason, current_token, applied, at_ms FROM rejection WHERE resource = $1 ORDER BY id", func(r *sql.Rows, e *Effect) error {
			e.What = "write"
			return r.Scan(&e.Holder, &e.Token, &e.Refused, &e.Current, &e.Applied, &e.AtMS)
		}},
	} {
		rows, err := db.QueryContext(ctx, part.query, group)
		if err != nil {
			return fmt.Errorf("the ledger's database: %w", err)
		}
		for err == nil && rows.Next() {
			var e Effect
			if err = part.scan(rows, &e); err == nil {
				err = see(e)
			}
		}
		if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	return nil
}

// TickInstant is the instant that the key of a tick names; 0: none.
func TickInstant(key string) int64 {
	at, ok := strings.CutPrefix(key, "tick-")
	ms, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil {
		return 0
	}
	return ms
}

// refusedWrites is what a ledger keeps least of.
const refusedWrites = "refused writes"

// Forgotten says of what the ledger has counted more than it has kept.
func Forgotten(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) (what []string, err error) {
	for _, part := range []struct{ what, query string }{
		{refusedWrites, "SELECT (SELECT value FROM ledger_counter WHERE name = 'rejections') - (SELECT COUNT(*) FROM rejection)"},
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

func steps(ctx context.Context, tx *sql.Tx, t *tally, table, query string) error {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var of string
		var n, wasN, first, was, token, wasToken int64
		if err := rows.Scan(&of, &n, &wasN, &first, &was, &token, &wasToken); err != nil {
			return err
		}
		at := []Place{{table, int(n)}, {table, int(wasN)}}
		if first <= was {
			t.violated(at, "%s: %d was taken by token %d after %d", of, first, token, was)
		} else {
			t.violated(at, "%s: token %d wrote after token %d", of, token, wasToken)
		}
	}
	return rows.Err()
}

// OpenLedger opens a ledger's database: a SQLite file, which a ledger may be using if
// it is not written to, or a postgres URL.
func OpenLedger(path string, write bool) (*sql.DB, error) {
	if write {
		db, _, err := openLedger(path, "")
		return db, err
	}
	db, _, err := openLedger(path, readOnly)
	return db, err
}

const readOnly = "&_pragma=query_only(1)"

// openLedger also returns what to call the database: never its URL, which may hold a
// password.
func openLedger(path, pragmas string) (db *sql.DB, name string, err error) {
	if strings.HasPrefix(path, "postgres://") || strings.HasPrefix(path, "postgresql://") {
		u, err := url.Parse(path)
		if err != nil {
			return nil, "", fmt.Errorf("no postgres URL")
		}
		db, err = sql.Open("pgx", path)
		return db, strings.TrimPrefix(u.Path, "/"), err
	}
	// SQLite would make a file that is missing.
	if _, err := os.Stat(path); err != nil {
		return nil, "", err
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return nil, "", err
	}
	u := url.URL{Scheme: "file", Path: full, RawQuery: "_pragma=busy_timeout(10000)" + pragmas}
	db, err = sql.Open("sqlite", u.String())
	return db, filepath.Base(path), err
}
