// Package database is the database of a ledger, SQLite in the process or PostgreSQL by URL: its
// schema, its transactions, and reads beside them.
package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// DB is an open database: one connection writes, several read.
type DB struct {
	Dialect sqlfence.Dialect
	Reader  *sql.DB
	// Commit ends a transaction; tests replace it.
	Commit func(context.Context, *Tx) error

	timeout time.Duration
	writer  *sql.DB
	unlock  func() error
	files   []file    // of SQLite
	pinned  *sql.Conn // of SQLite
	// conn is the connection that writes; nil: none is open. Only the committer uses it.
	conn *Tx
}

// Tx is the connection of a transaction, with its prepared statements: parsing them again costs
// as much as running them.
type Tx struct {
	Dialect  sqlfence.Dialect
	conn     *sql.Conn
	prepared map[string]*sql.Stmt
}

func (t *Tx) prepare(ctx context.Context, statement string) (*sql.Stmt, error) {
	if p := t.prepared[statement]; p != nil {
		return p, nil
	}
	p, err := t.conn.PrepareContext(ctx, Translate(t.Dialect, statement))
	if err == nil {
		t.prepared[statement] = p
	}
	return p, err
}

// Exec and QueryRow make Tx a sqlfence.Runner. They take the statements of the ledger, see
// Translate, and those of the fence.
func (t *Tx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	p, err := t.prepare(ctx, statement)
	if err != nil {
		return 0, err
	}
	done, err := p.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return done.RowsAffected()
}

// QueryRow reads one row.
func (t *Tx) QueryRow(ctx context.Context, statement string, args ...any) sqlfence.Row {
	p, err := t.prepare(ctx, statement)
	if err != nil {
		return failedRow{err}
	}
	return p.QueryRowContext(ctx, args...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// Run is Exec without the number of rows.
func (t *Tx) Run(ctx context.Context, statement string, args ...any) error {
	_, err := t.Exec(ctx, statement, args...)
	return err
}

// Row is one row as a JSON array: a group is read and written with a few statements, however
// many callers it has.
type Row []any

// RunRows runs a statement on {rows}, if there are any.
func (t *Tx) RunRows(ctx context.Context, statement string, rows []Row) error {
	if len(rows) == 0 {
		return nil
	}
	data, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return t.Run(ctx, statement, string(data))
}

// ReadRows runs a query on {rows}, the keys, and puts the result into a map. dest says where the
// columns go.
func ReadRows[K comparable, V any](ctx context.Context, t *Tx, query string, keys []Row, into map[K]V, dest func(*K, *V) []any) error {
	if len(keys) == 0 {
		return nil
	}
	data, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	p, err := t.prepare(ctx, query)
	if err != nil {
		return err
	}
	rows, err := p.QueryContext(ctx, string(data))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var k K
		var v V
		if err := rows.Scan(dest(&k, &v)...); err != nil {
			return err
		}
		into[k] = v
	}
	return rows.Err()
}

// discard closes the connection in any state. SQLite would keep one with open statements, and
// its lock.
func (t *Tx) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = t.conn.ExecContext(ctx, "ROLLBACK")
	for _, p := range t.prepared {
		_ = p.Close()
	}
	_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = t.conn.Close()
}

// Postgres reports whether a database is named by the URL of a PostgreSQL.
func Postgres(name string) bool {
	return strings.HasPrefix(name, "postgres://") || strings.HasPrefix(name, "postgresql://")
}

// Open opens the database, the path of a SQLite file or a postgres:// URL, and updates its
// schema. The timeout bounds every read.
func Open(ctx context.Context, name string, timeout time.Duration) (*DB, error) {
	d := &DB{Dialect: sqlfence.SQLite, timeout: timeout, unlock: func() error { return nil }, Commit: Commit}
	var err error
	if Postgres(name) {
		d.Dialect = sqlfence.Postgres
		err = d.openPostgres(name)
	} else {
		err = d.openSQLite(ctx, name)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = d.migrate(ctx)
	if err == nil && d.Dialect == sqlfence.SQLite {
		err = d.reserveLog(ctx)
	}
	if err != nil {
		return nil, errors.Join(d.failedToOpen(name, err), d.Close())
	}
	return d, nil
}

func (d *DB) failedToOpen(name string, err error) error {
	var schema *SchemaError
	var pg *pgconn.ConnectError
	postgres := d.Dialect == sqlfence.Postgres
	switch {
	case errors.As(err, &schema):
		return err
	case errors.As(err, &pg), postgres && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: PostgreSQL does not answer: %w", api.ErrUnavailable, err)
	case postgres:
		return fmt.Errorf("ledger: PostgreSQL: %w", err)
	case sqliteCode(err) == sqlite3.SQLITE_NOTADB:
		return &SchemaError{fmt.Sprintf("%s is not a database", name)}
	}
	return fmt.Errorf("ledger: %s: %w", name, err)
}

// readers is how many connections read.
const readers = 4

// Close closes all connections.
func (d *DB) Close() error {
	var errs []error
	if d.conn != nil {
		errs = append(errs, d.conn.conn.Close())
	}
	if d.pinned != nil {
		// After this, a copy of the database file alone is a complete backup.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _ = d.writer.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
		errs = append(errs, d.pinned.Close())
	}
	for _, db := range []*sql.DB{d.Reader, d.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(append(errs, d.unlock())...)
}

// Writer is the connection that writes; nil: none is open.
func (d *DB) Writer() *sql.Conn {
	if d.conn == nil {
		return nil
	}
	return d.conn.conn
}

// Commit commits.
func Commit(ctx context.Context, t *Tx) error { return t.Run(ctx, "COMMIT") }

// Within runs f in a transaction. An error that is api.ErrUnknown came from the commit, whose
// outcome is unknown. After any other error nothing was changed. After an error the connection
// is discarded, because its state is unknown.
func (d *DB) Within(ctx context.Context, f func(*Tx) error) (err error) {
	if d.conn == nil {
		conn, err := d.writer.Conn(ctx)
		if err != nil {
			return err
		}
		d.conn = &Tx{d.Dialect, conn, make(map[string]*sql.Stmt)}
	}
	defer func() {
		if err != nil {
			d.conn.discard()
			d.conn = nil
		}
	}()
	begin := "BEGIN IMMEDIATE"
	if d.Dialect == sqlfence.Postgres {
		// After a wait for a lock the transaction must see the current state.
		begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
	}
	if err := d.conn.Run(ctx, begin); err != nil {
		return err
	}
	switch err := f(d.conn); {
	case errors.Is(err, ErrNothing):
		return d.conn.Run(ctx, "ROLLBACK")
	case err != nil:
		return err
	}
	if err := d.Commit(ctx, d.conn); err != nil {
		return fmt.Errorf("%w: the commit failed: %w", api.ErrUnknown, err)
	}
	return nil
}

// ErrNothing ends a transaction that changed nothing, without a sync.
var ErrNothing = errors.New("nothing changed")

// Repeatable reports that PostgreSQL rolled a transaction back because of others.
func Repeatable(err error) bool { return !errors.Is(err, api.ErrUnknown) && sqlfence.Repeatable(err) }

// Poisoned reports that the database refuses the content of one batch. The others may succeed
// without it.
func Poisoned(err error) bool {
	if errors.Is(err, api.ErrUnknown) {
		return false
	}
	var e *pgconn.PgError
	if errors.As(err, &e) && len(e.Code) == 5 {
		switch e.Code[:2] {
		case "22", "23", "54": // data, constraint, limit
			return true
		}
	}
	switch sqliteCode(err) {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG:
		return true
	}
	return false
}
