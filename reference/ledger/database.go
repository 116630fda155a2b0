package ledger

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// database is the database of a ledger: one connection writes, several read.
type database struct {
	dialect sqlfence.Dialect
	writer  *sql.DB
	reader  *sql.DB
	unlock  func() error
	files   []file    // of SQLite
	pinned  *sql.Conn // of SQLite
	// commit ends a transaction; tests replace it.
	commit func(context.Context, *tx) error

	// conn is the connection that writes; nil: none is open. Only the committer uses it.
	conn *tx
}

// tx is the connection of a transaction, with its prepared statements: parsing them again costs
// as much as running them.
type tx struct {
	dialect  sqlfence.Dialect
	conn     *sql.Conn
	prepared map[string]*sql.Stmt
}

func (t *tx) prepare(ctx context.Context, statement string) (*sql.Stmt, error) {
	if p := t.prepared[statement]; p != nil {
		return p, nil
	}
	p, err := t.conn.PrepareContext(ctx, translate(t.dialect, statement))
	if err == nil {
		t.prepared[statement] = p
	}
	return p, err
}

// Exec and QueryRow make tx a sqlfence.Runner. They take the statements of the ledger, see
// translate, and those of the fence.
func (t *tx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
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
func (t *tx) QueryRow(ctx context.Context, statement string, args ...any) sqlfence.Row {
	p, err := t.prepare(ctx, statement)
	if err != nil {
		return failedRow{err}
	}
	return p.QueryRowContext(ctx, args...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

func (t *tx) exec(ctx context.Context, statement string, args ...any) error {
	_, err := t.Exec(ctx, statement, args...)
	return err
}

// row is one row as a JSON array: a group is read and written with a few statements, however
// many callers it has.
type row []any

// execRows runs a statement on {rows}, if there are any.
func (t *tx) execRows(ctx context.Context, statement string, rows []row) error {
	if len(rows) == 0 {
		return nil
	}
	data, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return t.exec(ctx, statement, string(data))
}

// readRows runs a query on {rows}, the keys, and puts the result into a map. dest says where the
// columns go.
func readRows[K comparable, V any](ctx context.Context, t *tx, query string, keys []row, into map[K]V, dest func(*K, *V) []any) error {
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
func (t *tx) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = t.conn.ExecContext(ctx, "ROLLBACK")
	for _, p := range t.prepared {
		_ = p.Close()
	}
	_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = t.conn.Close()
}

func openDatabase(ctx context.Context, cfg Config) (*database, error) {
	d := &database{dialect: sqlfence.SQLite, unlock: func() error { return nil }, commit: commit}
	var err error
	if cfg.postgres() {
		d.dialect = sqlfence.Postgres
		err = d.openPostgres(cfg)
	} else {
		err = d.openSQLite(ctx, cfg.DB)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	err = d.migrate(ctx)
	if err == nil && d.dialect == sqlfence.SQLite {
		err = d.reserveLog(ctx)
	}
	if err != nil {
		return nil, errors.Join(d.failedToOpen(cfg.DB, err), d.close())
	}
	return d, nil
}

func (d *database) failedToOpen(name string, err error) error {
	var schema *SchemaError
	var pg *pgconn.ConnectError
	postgres := d.dialect == sqlfence.Postgres
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

func (d *database) close() error {
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
	for _, db := range []*sql.DB{d.reader, d.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(append(errs, d.unlock())...)
}

func commit(ctx context.Context, t *tx) error { return t.exec(ctx, "COMMIT") }

// within runs f in a transaction. An error that is api.ErrUnknown came from the commit, whose
// outcome is unknown. After any other error nothing was changed. After an error the connection
// is discarded, because its state is unknown.
func (d *database) within(ctx context.Context, f func(*tx) error) (err error) {
	if d.conn == nil {
		conn, err := d.writer.Conn(ctx)
		if err != nil {
			return err
		}
		d.conn = &tx{d.dialect, conn, make(map[string]*sql.Stmt)}
	}
	defer func() {
		if err != nil {
			d.conn.discard()
			d.conn = nil
		}
	}()
	begin := "BEGIN IMMEDIATE"
	if d.dialect == sqlfence.Postgres {
		// Whoever waited for a lock must see the state after it.
		begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
	}
	if err := d.conn.exec(ctx, begin); err != nil {
		return err
	}
	switch err := f(d.conn); {
	case errors.Is(err, errNothing):
		return d.conn.exec(ctx, "ROLLBACK")
	case err != nil:
		return err
	}
	if err := d.commit(ctx, d.conn); err != nil {
		return fmt.Errorf("%w: the commit failed: %w", api.ErrUnknown, err)
	}
	return nil
}

// errNothing ends a transaction that changed nothing, without a sync.
var errNothing = errors.New("nothing changed")

// repeatable reports that PostgreSQL rolled a transaction back because of others.
func repeatable(err error) bool { return !errors.Is(err, api.ErrUnknown) && sqlfence.Repeatable(err) }

// poisoned reports that the database refuses the content of one batch. The others may succeed
// without it.
func poisoned(err error) bool {
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

// describe names the database without its password.
func describe(db string) string {
	if !strings.Contains(db, "://") {
		return db
	}
	u, err := url.Parse(db)
	if err != nil {
		return scheme(db)
	}
	return u.Redacted()
}
