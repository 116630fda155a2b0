//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filefence

import (
	"errors"
	"os"
	"syscall"
)

const canLock = true

// tryLock takes the kernel's lock on this open file. It ends when the file is closed, even if
// the process is killed.
func tryLock(f *os.File) (bool, error) {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		default:
			return err == nil, err
		}
	}
}
