package ledger

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tenurehq/tenure/app/ledger/api"
)

// store is the database: one connection that writes, some that read.
type store struct {
	postgres bool
	writer   *sql.DB
	reader   *sql.DB
	unlock   func() error
	files    []file    // of SQLite
	pinned   *sql.Conn // of SQLite
	// commit ends a transaction; tests make it fail.
	commit func(context.Context, *tx) error

	// conn is the connection that writes, nil if there is none now. Only the
	// committer uses it.
	conn *tx
}

// tx is the connection of a transaction, with the statements that were prepared on
// it: to parse them anew costs as much as to run them.
type tx struct {
	conn     *sql.Conn
	prepared map[string]*sql.Stmt
}

func (t *tx) prepare(ctx context.Context, statement string) (*sql.Stmt, error) {
	if p := t.prepared[statement]; p != nil {
		return p, nil
	}
	p, err := t.conn.PrepareContext(ctx, statement)
	if err == nil {
		t.prepared[statement] = p
	}
	return p, err
}

func (t *tx) exec(ctx context.Context, statement string, args ...any) error {
	p, err := t.prepare(ctx, statement)
	if err == nil {
		_, err = p.ExecContext(ctx, args...)
	}
	return err
}

func (t *tx) query(ctx context.Context, statement string, args ...any) (*sql.Rows, error) {
	p, err := t.prepare(ctx, statement)
	if err != nil {
		return nil, err
	}
	return p.QueryContext(ctx, args...)
}

// number runs a query that returns one.
func (t *tx) number(ctx context.Context, statement string) (n uint64, err error) {
	p, err := t.prepare(ctx, statement)
	if err == nil {
		err = p.QueryRowContext(ctx).Scan(&n)
	}
	return n, err
}

// discard closes the connection, whatever state it is in. SQLite would keep one with
// open statements, and its lock.
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

func openStore(ctx context.Context, cfg Config) (*store, error) {
	s := &store{postgres: cfg.postgres(), unlock: func() error { return nil }, commit: commit}
	var err error
	if s.postgres {
		err = s.openPostgres(cfg)
	} else {
		err = s.openSQLite(ctx, cfg.DB)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(s.failedToOpen(cfg, err), s.close())
	}
	if !s.postgres {
		if err := s.reserveLog(ctx); err != nil {
			return nil, errors.Join(s.failedToOpen(cfg, err), s.close())
		}
	}
	return s, nil
}

func (s *store) failedToOpen(cfg Config, err error) error {
	var schema *SchemaError
	var pg *pgconn.ConnectError
	switch {
	case errors.As(err, &schema):
		return err
	case errors.As(err, &pg), s.postgres && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: PostgreSQL does not answer: %w", api.ErrUnavailable, err)
	case s.postgres:
		return fmt.Errorf("ledger: PostgreSQL: %w", err)
	case sqliteCode(err) == sqlite3.SQLITE_NOTADB:
		return &SchemaError{fmt.Sprintf("%s is not a database", cfg.DB)}
	}
	return fmt.Errorf("ledger: %s: %w", cfg.DB, err)
}

const (
	readers = 4
	// synchronous is SQLite's FULL: it syncs its log at every commit. NORMAL (1) would be
	// enough for a killed process, but not for a machine that loses power.
	synchronous = 2
)

func (s *store) openPostgres(cfg Config) error {
	pg, err := pgx.ParseConfig(cfg.DB)
	if err != nil {
		return &ConfigError{Field: "db", Rule: "not a PostgreSQL URL: " + err.Error()}
	}
	// A ledger that vanished must not keep its locks.
	pg.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(cfg.Timeout.Milliseconds())
	if _, given := pg.RuntimeParams["application_name"]; !given {
		pg.RuntimeParams["application_name"] = "tenure ledger"
	}
	if pg.ConnectTimeout == 0 {
		pg.ConnectTimeout = cfg.Timeout
	}
	connector := stdlib.GetConnector(*pg, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		// An answer means that it is on disk, whatever the server's default.
		_, err := c.Exec(ctx, "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'")
		if err != nil {
			return err
		}
		// The ledger asks by key only. Statistics from before ten million jobs came must
		// not tempt the server to read them all.
		_, err = c.Exec(ctx, "SELECT set_config(name, 'off', false) FROM unnest(ARRAY['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin']) AS name")
		return err
	}))
	s.writer, s.reader = sql.OpenDB(connector), sql.OpenDB(connector)
	s.writer.SetMaxOpenConns(1)
	s.reader.SetMaxOpenConns(readers)
	s.reader.SetMaxIdleConns(readers)
	return nil
}

func (s *store) openSQLite(ctx context.Context, path string) error {
	path, err := realPath(path)
	if err != nil {
		return err
	}
	if err := s.lockFile(ctx, path); err != nil {
		return err
	}
	// Connections do not create the file: one that was deleted must not come back empty.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	// A reader waits only for a checkpoint that ends the log.
	pragmas := fmt.Sprintf("mode=rw&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(%d)&_pragma=foreign_keys(1)", synchronous)
	if s.writer, err = sql.Open("sqlite", fileURL(path, pragmas)); err != nil {
		return err
	}
	s.writer.SetMaxOpenConns(1)
	if s.reader, err = sql.Open("sqlite", fileURL(path, "mode=rw&_pragma=busy_timeout(10000)&_pragma=query_only(1)")); err != nil {
		return err
	}
	s.reader.SetMaxOpenConns(readers + 1)
	s.reader.SetMaxIdleConns(readers)
	var mode string
	var sync int
	if err := s.writer.QueryRowContext(ctx, "SELECT journal_mode, synchronous FROM pragma_journal_mode, pragma_synchronous").Scan(&mode, &sync); err != nil {
		return s.failedToOpen(Config{DB: path}, err)
	}
	if mode != "wal" || sync != synchronous {
		return fmt.Errorf("ledger: %s: the file system gives journal mode %s and synchronous %d, wanted are wal and %d", path, mode, sync, synchronous)
	}
	// While a connection is open SQLite keeps its log, so that the log's file stays the same.
	if s.pinned, err = s.reader.Conn(ctx); err != nil {
		return err
	}
	if err := s.pinned.QueryRowContext(ctx, "SELECT COUNT(*) FROM sqlite_master").Scan(&sync); err != nil {
		return s.failedToOpen(Config{DB: path}, err)
	}
	return s.remember(path, path+"-wal")
}

// logBytes is more than SQLite's log grows to from one checkpoint to the next.
const logBytes = 5 << 20

// reserveLog makes SQLite's log as long as it will be, before anybody waits for it. To
// sync a file that grows is to find it room as well, which takes seconds where
// processes compute on every core. After a checkpoint SQLite writes its log over, from
// the beginning; what a transaction wrote that was then rolled back is room like any
// other. On a full disk the log is left to grow as it can.
func (s *store) reserveLog(ctx context.Context) error {
	var cache int
	err := s.within(ctx, func(t *tx) error {
		if err := t.conn.QueryRowContext(ctx, "PRAGMA cache_size").Scan(&cache); err != nil {
			return err
		}
		// What does not fit into the cache goes to the log before the transaction ends.
		for _, statement := range []string{"PRAGMA cache_size = 16", "CREATE TABLE reserved (room BLOB)", fmt.Sprintf("INSERT INTO reserved VALUES (zeroblob(%d))", logBytes)} {
			if _, err := t.conn.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return errNothing
	})
	if sqliteCode(err) == sqlite3.SQLITE_FULL {
		return nil
	}
	if err == nil {
		_, err = s.conn.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA cache_size = %d", cache))
	}
	return err
}

// realPath is the one name of a file that may have several.
func realPath(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return "", fmt.Errorf("ledger: %s is a directory: give the path of a file in it", path)
	case err == nil:
		path, err = filepath.EvalSymlinks(path)
	case errors.Is(err, fs.ErrNotExist):
		var dir string
		if dir, err = filepath.EvalSymlinks(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("ledger: there is no directory %s for %s: create it", filepath.Dir(path), filepath.Base(path))
		}
		path = filepath.Join(dir, filepath.Base(path))
	}
	if err != nil {
		return "", fmt.Errorf("ledger: %w", err)
	}
	return filepath.Abs(path)
}

func fileURL(path, query string) string {
	return "file:" + (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath() + "?" + query
}

// lockFile keeps a second ledger from the file. The lock is SQLite's own, on an
// empty database beside it, so it works wherever SQLite does and ends with the
// process.
func (s *store) lockFile(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", fileURL(path+"-lock", "_pragma=busy_timeout(0)"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err == nil {
		_, err = conn.ExecContext(ctx, "BEGIN EXCLUSIVE")
	}
	if err == nil {
		s.unlock = func() error { return errors.Join(conn.Close(), db.Close()) }
		return nil
	}
	if conn != nil {
		_ = conn.Close()
	}
	_ = db.Close()
	if sqliteCode(err) == sqlite3.SQLITE_BUSY {
		return fmt.Errorf("%w: %s is served by another ledger: stop that one, or give this one a file of its own", api.ErrUnavailable, path)
	}
	return fmt.Errorf("ledger: %s-lock: %w", path, err)
}

func sqliteCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff // without the extension
	}
	return 0
}

func (s *store) close() error {
	var errs []error
	if s.conn != nil {
		errs = append(errs, s.conn.conn.Close())
	}
	if s.pinned != nil {
		// A copy of the database file alone is then a whole backup.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _ = s.writer.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
		errs = append(errs, s.pinned.Close())
	}
	for _, db := range []*sql.DB{s.reader, s.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(append(errs, s.unlock())...)
}

func commit(ctx context.Context, t *tx) error { return t.exec(ctx, "COMMIT") }

// within runs f in a transaction. An error that is api.ErrUnknown came from the
// commit: whether it was made nobody knows. After any other nothing was. After an
// error the connection is given up: its state is unknown too, and the next begins
// with what is in the database.
func (s *store) within(ctx context.Context, f func(*tx) error) (err error) {
	if s.conn == nil {
		conn, err := s.writer.Conn(ctx)
		if err != nil {
			return err
		}
		s.conn = &tx{conn, make(map[string]*sql.Stmt)}
	}
	defer func() {
		if err != nil {
			s.conn.discard()
			s.conn = nil
		}
	}()
	begin := "BEGIN IMMEDIATE"
	if s.postgres {
		// Whatever the default: who waited for a lock wants to see what is then.
		begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
	}
	if err := s.conn.exec(ctx, begin); err != nil {
		return err
	}
	switch err := f(s.conn); {
	case errors.Is(err, errNothing):
		return s.conn.exec(ctx, "ROLLBACK")
	case err != nil:
		return err
	}
	if err := s.commit(ctx, s.conn); err != nil {
		return fmt.Errorf("%w: the commit failed: %w", api.ErrUnknown, err)
	}
	return nil
}

// errNothing ends a transaction that changed nothing: there is nothing to sync.
var errNothing = errors.New("nothing changed")

// again reports that PostgreSQL undid a transaction for no fault of its own.
func again(err error) bool {
	var e *pgconn.PgError
	return !errors.Is(err, api.ErrUnknown) && errors.As(err, &e) && (e.Code == "40001" || e.Code == "40P01")
}

// poisoned reports that the database refuses what one of the batches says: the others
// may well be made without it.
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

// describe says which database, without its password.
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
