package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tenurehq/tenure/reference/ledger/api"
)

// synchronous is FULL: SQLite syncs its log at every commit. NORMAL (1) would survive a killed
// process, but not a power failure.
const synchronous = 2

func (d *DB) openSQLite(ctx context.Context, path string) error {
	path, err := realPath(path)
	if err != nil {
		return err
	}
	if err := d.lockFile(ctx, path); err != nil {
		return err
	}
	// Connections do not create the file: a deleted one must not come back empty.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	// A reader waits only for a checkpoint that ends the log.
	pragmas := fmt.Sprintf("mode=rw&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(%d)&_pragma=foreign_keys(1)", synchronous)
	if d.writer, err = sql.Open("sqlite", fileURL(path, pragmas)); err != nil {
		return err
	}
	d.writer.SetMaxOpenConns(1)
	if d.Reader, err = sql.Open("sqlite", fileURL(path, "mode=rw&_pragma=busy_timeout(10000)&_pragma=query_only(1)")); err != nil {
		return err
	}
	d.Reader.SetMaxOpenConns(readers + 1)
	d.Reader.SetMaxIdleConns(readers)
	var mode string
	var sync int
	if err := d.writer.QueryRowContext(ctx, "SELECT journal_mode, synchronous FROM pragma_journal_mode, pragma_synchronous").Scan(&mode, &sync); err != nil {
		return d.failedToOpen(path, err)
	}
	if mode != "wal" || sync != synchronous {
		return fmt.Errorf("ledger: %s: the file system allows journal mode %s and synchronous %d; the ledger needs wal and %d", path, mode, sync, synchronous)
	}
	// While a connection is open, SQLite keeps the same log file.
	if d.pinned, err = d.Reader.Conn(ctx); err != nil {
		return err
	}
	if err := d.pinned.QueryRowContext(ctx, "SELECT COUNT(*) FROM sqlite_master").Scan(&sync); err != nil {
		return d.failedToOpen(path, err)
	}
	return d.remember(path, path+"-wal")
}

// LogBytes is more than the log of SQLite grows between two checkpoints.
const LogBytes = 5 << 20

// reserveLog allocates the whole log of SQLite before anybody waits for it. Syncing a growing
// file also allocates space, which takes seconds on a machine with busy cores. After a
// checkpoint SQLite overwrites its log from the start, and reuses space of a rolled back
// transaction. On a full disk the log grows as usual.
func (d *DB) reserveLog(ctx context.Context) error {
	var cache int
	err := d.Within(ctx, func(t *Tx) error {
		if err := t.conn.QueryRowContext(ctx, "PRAGMA cache_size").Scan(&cache); err != nil {
			return err
		}
		// Pages that do not fit into the cache go to the log before the transaction ends.
		for _, statement := range []string{"PRAGMA cache_size = 16", "CREATE TABLE reserved (room BLOB)", fmt.Sprintf("INSERT INTO reserved VALUES (zeroblob(%d))", LogBytes)} {
			if _, err := t.conn.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return ErrNothing
	})
	if sqliteCode(err) == sqlite3.SQLITE_FULL {
		return nil
	}
	if err == nil {
		_, err = d.conn.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA cache_size = %d", cache))
	}
	return err
}

// realPath resolves links, so that a file has one name.
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
			return "", fmt.Errorf("ledger: create %[2]s: there is no directory %[1]s", filepath.Dir(path), filepath.Base(path))
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

// lockFile prevents a second ledger on the file. The lock is that of SQLite on an empty database
// beside it, so it works wherever SQLite does, and ends with the process.
func (d *DB) lockFile(ctx context.Context, path string) error {
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
		d.unlock = func() error { return errors.Join(conn.Close(), db.Close()) }
		return nil
	}
	if conn != nil {
		_ = conn.Close()
	}
	_ = db.Close()
	if sqliteCode(err) == sqlite3.SQLITE_BUSY {
		return fmt.Errorf("%w: %s is served by another ledger; stop that one, or give this one its own file", api.ErrUnavailable, path)
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

// file is a file of the database as it was when it was opened.
type file struct {
	path string
	info fs.FileInfo
}

// remember records which files are open.
func (d *DB) remember(paths ...string) error {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		d.files = append(d.files, file{path, info})
	}
	return nil
}

// Intact returns an error if a file of the database was deleted or replaced: writes would then
// be lost.
func (d *DB) Intact() error {
	for _, f := range d.files {
		info, err := os.Stat(f.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: the file %s was deleted while it was served", api.ErrDataLost, filepath.Base(f.path))
		case err != nil:
			return fmt.Errorf("%w: %w", api.ErrUnavailable, err)
		case !os.SameFile(info, f.info):
			return fmt.Errorf("%w: the file %s was replaced while it was served", api.ErrDataLost, filepath.Base(f.path))
		}
	}
	return nil
}
