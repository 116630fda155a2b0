package check

import (
	"context"
	"crypto/sha256"
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
	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/lab/history" // the driver "sqlite"
)

// ledgerTimeout bounds the queries to a ledger's database.
const ledgerTimeout = 5 * time.Minute

var ledgerCounts = []string{"allocations", "ticks", "numbers", "calls compared", "calls not compared"}

// Ledger checks a ledger's database with SQL: the numbers of a sequence rise (G6), and so
// do the tokens of its allocations and ticks (G2). db is a SQLite file or a postgres URL; it
// is only read.
func Ledger(ctx context.Context, db string) Verdict {
	v := newVerdict(check{guarantee: "G6", name: "ledger", looked: ledgerCounts})
	ledgerCheck(ctx, db)(v, newFacts())
	return v.decide()
}

// ledgerCheck also compares the database with the history. Every answer to a client must
// lie in one allocation of its token. The effects in the history must be those of the
// database in the same order.
func ledgerCheck(ctx context.Context, path string) func(*Verdict, *facts) watcher {
	return func(v *Verdict, f *facts) watcher {
		var (
			kept     allocations // the ledger may have removed the oldest
			effects  [][8]byte   // digests of the effects
			compared int
			differs  bool
			early    bool
		)
		keep := func(e history.Effect) error {
			digest, err := digestOf(e)
			effects = append(effects, digest)
			if ofNumbers(e.What, e.Name) && f.room(kept.n+1, maxAllocations) {
				kept.add(e)
			}
			return err
		}
		if err := readLedger(ctx, v, path, f.run.Group, keep); err != nil {
			v.doubt(nil, "the ledger's database cannot be read: %v", err)
			return watcher{}
		}
		if f.run.Group == "" {
			return watcher{}
		}
		return watcher{
			effect: func(e history.Effect) {
				if differs {
					return
				}
				compared++
				if digest, err := digestOf(e); err != nil || compared > len(effects) || digest != effects[compared-1] {
					differs = true
					v.violated(at{e.Line}, "the ledger's database has another effect at this position (%d of %d)", compared, len(effects))
				}
			},
			answer: func(c history.Call, _ peak) {
				if c.Last < kept.least {
					if v.count("calls not compared"); !early {
						early = true
						v.doubt(at{c.Line}, "a client has %d to %d, and the ledger has deleted what is below %d; start it with a larger --history", c.First, c.Last, kept.least)
					}
					return
				}
				v.count("calls compared")
				if kept.holding(c.Token, c.First, c.Last) == nil {
					v.violated(at{c.Line}, "a client has %d to %d under token %d, and the ledger has no such allocation", c.First, c.Last, c.Token)
				}
			},
			end: func() {
				if f.whole() && !differs && compared < len(effects) {
					v.violated(nil, "the ledger's database has %d effects, and the history has only the first %d", len(effects), compared)
				}
			},
		}
	}
}

// digestOf is enough of a digest to compare two effects.
func digestOf(e history.Effect) ([8]byte, error) {
	line, err := history.Encode(e)
	sum := sha256.Sum256(line)
	return [8]byte(sum[:8]), err
}

// lagQuery returns the rows of a table whose range or token does not follow the row before.
const lagQuery = `SELECT of_what, n, was_n, first_n, was_last, token, was_token FROM (
	SELECT %[1]s AS of_what, n, %[3]s AS first_n, token,
		lag(n) OVER w AS was_n, lag(%[4]s) OVER w AS was_last, lag(token) OVER w AS was_token
	FROM %[2]s WINDOW w AS (PARTITION BY %[1]s ORDER BY n)
) AS steps WHERE first_n <= was_last OR token < was_token ORDER BY 1, n LIMIT 100`

// readLedger checks the tables, and calls keep with the effects of a group if one is given.
func readLedger(ctx context.Context, v *Verdict, path, group string, keep func(history.Effect) error) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	db, err := OpenLedger(path, false)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	// One transaction, so that all queries see the same state of a running ledger.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := tx.QueryRowContext(ctx, "SELECT (SELECT COUNT(*) FROM allocation), (SELECT CAST(COALESCE(SUM(last_seq - first_seq + 1), 0) AS BIGINT) FROM allocation), (SELECT COUNT(*) FROM tick)").
		Scan(v.counter("allocations"), v.counter("numbers"), v.counter("ticks")); err != nil {
		return err
	}
	for _, table := range []struct{ name, query string }{
		{"allocation", fmt.Sprintf(lagQuery, "resource || '/' || name", "allocation", "first_seq", "last_seq")},
		{"tick", fmt.Sprintf(lagQuery, "resource", "tick", "n", "n")},
	} {
		err := eachRow(ctx, tx, table.query, nil, func(r *sql.Rows) error {
			var of string
			var n, wasN, first, was, token, wasToken int64
			if err := r.Scan(&of, &n, &wasN, &first, &was, &token, &wasToken); err != nil {
				return err
			}
			file := ledgerName(path) + " " + table.name
			places := at{{File: file, Line: int(n)}, {File: file, Line: int(wasN)}}
			if first <= was {
				v.violated(places, "%s: %d was taken by token %d after %d", of, first, token, was)
			} else {
				v.violated(places, "%s: token %d wrote after token %d", of, token, wasToken)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	deleted, err := Deleted(ctx, tx)
	if err != nil {
		return err
	}
	for _, what := range deleted {
		if what != refusedWrites { // they are not compared here
			v.doubt(nil, "the ledger has deleted %s; start it with a larger --history", what)
		}
	}
	if group == "" {
		return nil
	}
	return Effects(ctx, tx, group, keep)
}

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

// refusedWrites is what a ledger keeps least of.
const refusedWrites = "refused writes"

// Deleted returns what the ledger has counted and no longer keeps.
func Deleted(ctx context.Context, db interface {
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

func isPostgres(path string) bool {
	return strings.HasPrefix(path, "postgres://") || strings.HasPrefix(path, "postgresql://")
}

// ledgerName is what to call a database: never its URL, which may contain a password.
func ledgerName(path string) string {
	if u, err := url.Parse(path); err == nil && isPostgres(path) {
		return strings.TrimPrefix(u.Path, "/")
	}
	return filepath.Base(path)
}

// OpenLedger opens a ledger's database: a postgres URL or a SQLite file, which a ledger may
// be using if it is only read.
func OpenLedger(path string, write bool) (*sql.DB, error) {
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
