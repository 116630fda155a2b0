package worker

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tenurehq/tenure/reference/api"
)

// fileStore keeps orders on disk, with a single connection that holds the lock of SQLite for as long
// as it is open.
type fileStore struct {
	db       *sql.DB
	remember int
}

const (
	storeFile    = "orders.db"
	storeVersion = 1
)

const schema = `
CREATE TABLE standing (
	name TEXT NOT NULL PRIMARY KEY,
	body TEXT NOT NULL
) STRICT;
CREATE TABLE firing (
	n       INTEGER PRIMARY KEY AUTOINCREMENT,
	job     TEXT NOT NULL,
	at_ms   INTEGER NOT NULL,
	body    TEXT NOT NULL,
	done_ms INTEGER NOT NULL DEFAULT 0,
	failed  TEXT NOT NULL DEFAULT '',
	UNIQUE (job, at_ms)
) STRICT;
CREATE INDEX firing_waiting ON firing (n) WHERE done_ms = 0;
PRAGMA user_version = 1;`

// errInUse: another worker uses the directory.
var errInUse = errors.New("another worker uses it; stop that one, or give this one its own directory")

func openStore(ctx context.Context, dir string, remember int) (*fileStore, error) {
	path, err := filepath.Abs(filepath.Join(dir, storeFile))
	if err != nil {
		return nil, err
	}
	const pragmas = "_pragma=busy_timeout(0)&_pragma=locking_mode(EXCLUSIVE)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: filepath.ToSlash(path)}).EscapedPath()+"?"+pragmas)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	db.SetConnMaxIdleTime(0)
	db.SetConnMaxLifetime(0)
	s := &fileStore{db: db, remember: remember}
	if err := s.prepare(ctx); err != nil {
		var e *sqlite.Error
		if errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_BUSY {
			err = errInUse
		}
		return nil, errors.Join(fmt.Errorf("worker: %s: %w", path, err), db.Close())
	}
	return s, nil
}

func (s *fileStore) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var version int
	if err := s.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	switch version {
	case 0:
		return s.tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, schema)
			return err
		})
	case storeVersion:
		// A write takes the lock.
		return s.tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "DELETE FROM standing WHERE false")
			return err
		})
	}
	return fmt.Errorf("its version is %d and this program knows %d; run the program that wrote it", version, storeVersion)
}

// errNotStored: nothing was changed on disk.
var errNotStored = errors.New("nothing was stored")

// tx is not canceled with its caller: a transaction that was begun ends.
func (s *fileStore) tx(ctx context.Context, f func(context.Context, *sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotStored, err)
	}
	if err := f(ctx, tx); err != nil {
		_ = tx.Rollback()
		return fmt.Errorf("%w: %w", errNotStored, err)
	}
	return tx.Commit()
}

// errTooMany: too many orders wait now.
var errTooMany = errors.New("too many orders")

// accept stores orders, all or none, and returns how many firings are new.
func (s *fileStore) accept(ctx context.Context, o api.Orders, mostWaiting, mostStanding int) (fresh int, err error) {
	err = s.tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if o.Replace {
			if _, err := tx.ExecContext(ctx, "DELETE FROM standing"); err != nil {
				return err
			}
		}
		for _, order := range o.Orders {
			body, err := json.Marshal(order)
			if err != nil {
				return err
			}
			if order.EveryMS > 0 {
				_, err = tx.ExecContext(ctx, "INSERT INTO standing (name, body) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body", order.Name, string(body))
			} else {
				var r sql.Result
				if r, err = tx.ExecContext(ctx, "INSERT INTO firing (job, at_ms, body) VALUES (?, ?, ?) ON CONFLICT (job, at_ms) DO NOTHING", order.Job, order.AtMS, string(body)); err == nil {
					n, _ := r.RowsAffected()
					fresh += int(n)
				}
			}
			if err != nil {
				return err
			}
		}
		if fresh > 0 && fresh > mostWaiting {
			return fmt.Errorf("%w: %d are new and there is room for %d", errTooMany, fresh, mostWaiting)
		}
		if !slices.ContainsFunc(o.Orders, func(o api.Order) bool { return o.EveryMS > 0 }) {
			return nil // firings are not refused because of standing orders
		}
		var standing int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM standing").Scan(&standing); err != nil {
			return err
		}
		if standing > mostStanding {
			return tooManyStanding(o, standing, mostStanding)
		}
		return nil
	})
	return fresh, err
}

// standing returns the standing orders.
func (s *fileStore) standing(ctx context.Context) ([]api.Order, error) {
	return list(ctx, s.db, func(rows *sql.Rows) (o api.Order, err error) {
		var body string
		if err = rows.Scan(&body); err == nil {
			err = json.Unmarshal([]byte(body), &o)
		}
		return o, err
	}, "SELECT body FROM standing ORDER BY name")
}

// accepted is a firing that waits.
type accepted struct {
	n    int64
	body string
}

// waiting returns firings after the n-th that are not done.
func (s *fileStore) waiting(ctx context.Context, n int64, most int) ([]accepted, error) {
	return list(ctx, s.db, func(rows *sql.Rows) (a accepted, err error) {
		return a, rows.Scan(&a.n, &a.body)
	}, "SELECT n, body FROM firing WHERE done_ms = 0 AND n > ? ORDER BY n LIMIT ?", n, most)
}

func list[T any](ctx context.Context, db *sql.DB, scan func(*sql.Rows) (T, error), query string, args ...any) (all []T, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// count returns how many firings wait.
func (s *fileStore) count(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = s.db.QueryRowContext(ctx, "SELECT count(*) FROM firing WHERE done_ms = 0").Scan(&n)
	return n, err
}

// done is a finished firing, and its error if it failed.
type done struct {
	n      int64
	failed string
}

// finish records finished firings and deletes old ones.
func (s *fileStore) finish(ctx context.Context, all []done) error {
	now := time.Now().UnixMilli()
	return s.tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, d := range all {
			if _, err := tx.ExecContext(ctx, "UPDATE firing SET done_ms = ?, failed = ?, body = '' WHERE n = ?", now, d.failed, d.n); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM firing WHERE n IN (
			SELECT n FROM firing WHERE n <= (SELECT max(n) FROM firing) - ? AND done_ms > 0 ORDER BY n LIMIT 1000)`, s.remember)
		return err
	})
}

func (s *fileStore) close() error { return s.db.Close() }
