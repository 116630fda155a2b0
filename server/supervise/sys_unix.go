//go:build unix

package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	ossignal "os/signal"
	"slices"
	"syscall"
)

// listen takes the signals that are the command's. What was ignored when we were started,
// as nohup does, stays so, for the command too.
func (r *runner) listen() (stop func()) {
	r.signals = make(chan os.Signal, 8)
	passed := slices.DeleteFunc([]os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT,
	}, ossignal.Ignored)
	ossignal.Notify(r.signals, passed...)
	if !ossignal.Ignored(syscall.SIGPIPE) {
		// Nobody reads what we say: that is no reason to end. Caught, not ignored: the
		// command is not to inherit it.
		ossignal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	return func() { ossignal.Stop(r.signals) }
}

// asksForEnd: the others mean the command, and there is none yet.
func asksForEnd(sig os.Signal) bool {
	return sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGHUP || sig == syscall.SIGQUIT
}

// unread reports whether something waits to be read.
func (l *link) unread() (is bool) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		is = err == nil && n > 0
	})
	return is
}

func writeNow(fd uintptr, b []byte) (int, error) { return syscall.Write(int(fd), b) }

func number(sig os.Signal) int {
	n, _ := sig.(syscall.Signal)
	return int(n)
}

func cannotRun(name string, err error) *CodeError {
	if errors.Is(err, exec.ErrDot) {
		return &CodeError{CodeNotFound, fmt.Errorf("%s is in this folder, which is not searched: say ./%s", name, name)}
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &CodeError{CodeNotFound, fmt.Errorf("%s: no such command: is it installed here, and in PATH?", name)}
	}
	return &CodeError{CodeCannotRun, fmt.Errorf("%s cannot be run: %w", name, err)}
}

func (s *service) cannotRun(errno syscall.Errno) outcome {
	e := cannotRun(s.Args[0], errno)
	return outcome{code: e.Code, err: e.Err}
}
