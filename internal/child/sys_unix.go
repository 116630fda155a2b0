//go:build unix

package child

import (
	"errors"
	"os"
	"syscall"
)

// Pause stops the process (SIGSTOP).
func Pause(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// Resume resumes a stopped process.
func Resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// Interrupt asks the process to exit.
func Interrupt(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

// LockFile takes a lock. It waits while another process holds it.
func LockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
