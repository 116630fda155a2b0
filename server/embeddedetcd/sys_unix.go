//go:build linux || darwin

package embeddedetcd

import (
	"errors"
	"io"
	"os"
	"syscall"
)

var errLocked = errors.New("locked by another process")

// lockDir locks the directory itself, so that no lock file remains after a crash. Closing
// unlocks it. On file systems that cannot do it the result is nil, and only etcd's lock on
// the database remains.
func lockDir(path string) (io.Closer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, plain(err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(errLocked, f.Close())
	}
	if err != nil {
		return nil, f.Close()
	}
	return f, nil
}

func freeBytes(path string) (int64, bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true //nolint:unconvert // Bsize is uint32 on Darwin
}
