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

// What must be free: a new member allocates two segments of its log at once, one
// that exists has its own already.
const (
	roomToBegin    = 2*64*mib + 32*mib
	roomToContinue = 16 * mib
)

// dataDir is a directory that was found fit and is held against other engines.
type dataDir struct {
	path      string
	temporary bool
	used      bool      // there is a log from an earlier start
	fresh     bool      // there was no member folder, and the lock keeps others from making one
	made      []string  // directories that were created, deepest last
	sockets   string    // the directory of the client socket; "": there is none
	lock      io.Closer // nil: this file system has none for directories
}

// openDataDir finds out in advance what etcd would end the process for, or wait
// for without end: another process on the same directory, a full disk, a damaged
// log.
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
		return d, fmt.Errorf("data directory %s cannot be opened: %w", d.path, err)
	}
	if err := d.examine(); err != nil {
		return d, err
	}
	return d, nil
}

func inUse(path string) error {
	return fmt.Errorf("data directory %s is in use by another process: stop that engine, or give this one a directory of its own", path)
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
	room := int64(roomToBegin)
	if d.used {
		room = roomToContinue
	}
	if free, ok := freeBytes(d.path); ok && free < room {
		return fmt.Errorf("data directory %s: the disk has %d MiB free, and a member needs %d MiB: %w", d.path, free/mib, room/mib, syscall.ENOSPC)
	}
	if err := d.database(); err != nil {
		return err
	}
	if d.used {
		if err := verifyLog(walDir); err != nil {
			return fmt.Errorf("data directory %s: its log is damaged: %w; restore a backup of it, or let the cluster replace this member", d.path, err)
		}
	}
	return nil
}

// tryWrite makes sure that bytes reach the disk, not only that the mode says so.
func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".try-")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, mib))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}

// database looks at the file that etcd would wait for without end if another
// process held it: any etcd, not only ours.
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
		return fmt.Errorf("data directory %s: its database %s is damaged: %w; restore a backup of it, or let the cluster replace this member", d.path, path, err)
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
	// etcd would begin a new log and skip its entries up to the old index.
	if index > 0 && !d.used {
		return fmt.Errorf("data directory %s has a database and no log: restore its member/wal folder, or begin with an empty directory", d.path)
	}
	return nil
}

func verifyLog(walDir string) (err error) {
	defer func() {
		// etcd's decoders panic on records that are whole and make no sense.
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
		return nil // the torn tail of a crash, which etcd repairs
	}
	return err
}

// maxSocketPath is what every system accepts as the path of a unix socket.
const maxSocketPath = 100

// socket makes a directory that only this user can enter, and returns the path of a
// socket in it. The directory is below the data directory, or, where that path is too
// long for a socket, in the system's temporary directory. The mode of the data directory
// itself does not matter: an operator may have made it.
func (d *dataDir) socket() (string, error) {
	at, err := filepath.Abs(filepath.Join(d.path, "client"))
	if err == nil && len(at)+len("/etcd.sock") > maxSocketPath {
		at, err = os.MkdirTemp("", "tenure-client-")
	} else if err == nil {
		// A crash leaves it behind. Made anew, its mode and owner are certain.
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

// close gives the directory back.
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

// abandon undoes what was done to the directory by a start that failed. The log
// of a member of a cluster is kept: others may count on the votes in it.
func (d *dataDir) abandon(keepLog bool) {
	if d.fresh && !(keepLog && wal.Exist(filepath.Join(d.path, "member", "wal"))) {
		_ = os.RemoveAll(filepath.Join(d.path, "member"))
	}
	_ = d.close()
	for i := len(d.made) - 1; i >= 0; i-- {
		if os.Remove(d.made[i]) != nil {
			return // not empty, so no longer only ours
		}
	}
}

// plain takes the name of the system call off: the path was named already or is
// part of what is left.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", pe.Path, pe.Err)
	}
	return err
}
