package embeddedetcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
)

// Free space that a member needs: a new one allocates two segments of its log at once.
const (
	spaceForNew      = 2*64*mib + 32*mib
	spaceForExisting = 16 * mib
)

// dataDir is a data directory that was checked and is locked against other engines.
type dataDir struct {
	path      string
	temporary bool
	used      bool      // it has a log from an earlier start
	fresh     bool      // it had no member folder, and the lock keeps others from making one
	made      []string  // directories that were created, deepest last
	sockets   string    // directory of the client socket; "": none
	lock      io.Closer // nil: this file system cannot lock directories
}

// openDataDir checks for problems that would make etcd end the process or wait forever:
// another process on the same directory, a full disk, a damaged log.
func openDataDir(path string) (d *dataDir, err error) {
	d = &dataDir{path: path}
	defer func() {
		if err != nil {
			d.abandon(false)
			d = nil
		}
	}()
	if path == "" {
		d.temporary = true
		if d.path, err = os.MkdirTemp("", "tenure-engine-"); err != nil {
			return d, fmt.Errorf("temporary data directory: %w", err)
		}
	} else if err := d.create(); err != nil {
		return d, err
	}
	if d.lock, err = lockDir(d.path); errors.Is(err, errLocked) {
		return d, inUse(d.path)
	} else if err != nil {
		return d, fmt.Errorf("open data directory %s: %w", d.path, err)
	}
	if err := d.examine(); err != nil {
		return d, err
	}
	return d, nil
}

func inUse(path string) error {
	return fmt.Errorf("data directory %s is in use by another process (another `tenure serve`?); stop that process, or use another directory", path)
}

func (d *dataDir) create() error {
	info, err := os.Stat(d.path)
	switch {
	case err == nil && !info.IsDir():
		return fmt.Errorf("data directory %s is a file", d.path)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("data directory: %w", plain(err))
	}
	var missing []string
	for at := filepath.Clean(d.path); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append([]string{at}, missing...)
	}
	for _, at := range missing {
		if err := os.Mkdir(at, 0o700); err != nil {
			return fmt.Errorf("data directory %s cannot be created: %w", d.path, plain(err))
		}
		d.made = append(d.made, at)
	}
	return nil
}

func (d *dataDir) examine() error {
	for _, sub := range []string{"", "member", "member/snap", "member/wal"} {
		at := filepath.Join(d.path, sub)
		info, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && sub != "" {
			d.fresh = d.fresh || sub == "member" && d.lock != nil
			continue
		}
		if err == nil && !info.IsDir() {
			return fmt.Errorf("data directory %s: %s is a file, not a directory", d.path, at)
		}
		if err == nil {
			_, err = os.ReadDir(at)
		}
		if err != nil {
			return fmt.Errorf("data directory %s cannot be read: %w", d.path, plain(err))
		}
		if err := tryWrite(at); err != nil {
			return fmt.Errorf("data directory %s cannot be written: %w", d.path, plain(err))
		}
	}
	walDir := filepath.Join(d.path, "member", "wal")
	d.used = wal.Exist(walDir)
	needed := int64(spaceForNew)
	if d.used {
		needed = spaceForExisting
	}
	if free, ok := freeBytes(d.path); ok && free < needed {
		return fmt.Errorf("data directory %s: the disk has %d MiB free, but a member needs %d MiB: %w", d.path, free/mib, needed/mib, syscall.ENOSPC)
	}
	if err := d.database(); err != nil {
		return err
	}
	if d.used {
		if err := verifyLog(walDir); err != nil {
			return fmt.Errorf("data directory %s: the log is damaged: %w; restore a backup, or let the cluster replace this member", d.path, err)
		}
	}
	return nil
}

// tryWrite checks that bytes reach the disk; the mode alone does not show that.
func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".try-")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, mib))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}

// database checks the database file. etcd would wait forever if another process, such as
// another etcd, has it open.
func (d *dataDir) database() error {
	path := filepath.Join(d.path, "member", "snap", "db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: 300 * time.Millisecond})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return inUse(d.path)
	case err != nil:
		return fmt.Errorf("data directory %s: the database %s is damaged: %w; restore a backup, or let the cluster replace this member", d.path, path, err)
	}
	var index uint64
	err = db.View(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket([]byte("meta")); meta != nil {
			if v := meta.Get([]byte("consistent_index")); len(v) == 8 {
				index = binary.BigEndian.Uint64(v)
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("data directory %s: %w", d.path, err)
	}
	// etcd would begin a new log and skip entries up to the old index.
	if index > 0 && !d.used {
		return fmt.Errorf("data directory %s has a database and no log; restore member/wal, or use an empty directory", d.path)
	}
	return nil
}

func verifyLog(walDir string) (err error) {
	defer func() {
		// etcd's decoders panic on complete but invalid records.
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	lg := zap.NewNop()
	snaps, err := wal.ValidSnapshotEntries(lg, walDir)
	if err == nil {
		last := &walpb.Snapshot{}
		if len(snaps) > 0 {
			last = snaps[len(snaps)-1]
		}
		_, err = wal.Verify(lg, walDir, last)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil // incomplete last record after a crash, which etcd repairs
	}
	return err
}

// maxSocketPath is a length that every system accepts for the path of a unix socket.
const maxSocketPath = 100

// socket makes a directory that only this user can enter, and returns the path of a socket
// in it. It is below the data directory or, if that path is too long, in the system's
// temporary directory. The data directory itself may have any mode.
func (d *dataDir) socket() (string, error) {
	at, err := filepath.Abs(filepath.Join(d.path, "client"))
	if err == nil && len(at)+len("/etcd.sock") > maxSocketPath {
		at, err = os.MkdirTemp("", "tenure-client-")
	} else if err == nil {
		// A crash may have left one behind. A new one has the right mode and owner.
		if err = os.RemoveAll(at); err == nil {
			err = os.Mkdir(at, 0o700)
		}
	}
	if err != nil {
		return "", fmt.Errorf("data directory %s: directory for the client socket: %w", d.path, err)
	}
	d.sockets = at
	return filepath.Join(at, "etcd.sock"), nil
}

// close unlocks the directory.
func (d *dataDir) close() error {
	var errs []error
	if d.sockets != "" {
		errs = append(errs, os.RemoveAll(d.sockets))
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
		d.lock = nil
	}
	if d.temporary && d.path != "" {
		errs = append(errs, os.RemoveAll(d.path))
	}
	return errors.Join(errs...)
}

// abandon undoes the changes of a failed start. keepLog keeps the log of a member of a
// cluster, which may have voted.
func (d *dataDir) abandon(keepLog bool) {
	if d.fresh && !(keepLog && wal.Exist(filepath.Join(d.path, "member", "wal"))) {
		_ = os.RemoveAll(filepath.Join(d.path, "member"))
	}
	_ = d.close()
	for i := len(d.made) - 1; i >= 0; i-- {
		if os.Remove(d.made[i]) != nil {
			return // it is not empty
		}
	}
}

// plain removes the name of the system call from an error.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", pe.Path, pe.Err)
	}
	return err
}
