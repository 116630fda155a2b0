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

// listen catches the signals that are passed to the command. Signals that were ignored
// when we were started, as by nohup, remain ignored, for the command too.
func (r *runner) listen() (stop func()) {
	r.signals = make(chan os.Signal, 8)
	passed := slices.DeleteFunc([]os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT,
	}, ossignal.Ignored)
	ossignal.Notify(r.signals, passed...)
	if !ossignal.Ignored(syscall.SIGPIPE) {
		// A closed standard error must not end us. Catch the signal: the command would inherit
		// an ignored one.
		ossignal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	return func() { ossignal.Stop(r.signals) }
}

// asksForEnd reports whether a signal ends this process while there is no command.
func asksForEnd(sig os.Signal) bool {
	return sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGHUP || sig == syscall.SIGQUIT
}

func number(sig os.Signal) int {
	n, _ := sig.(syscall.Signal)
	return int(n)
}

func cannotRun(name string, err error) *CodeError {
	if errors.Is(err, exec.ErrDot) {
		return &CodeError{CodeNotFound, fmt.Errorf("%s is in the current directory, which is not searched; use ./%s", name, name)}
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &CodeError{CodeNotFound, fmt.Errorf("%s: command not found; check that it is installed and in PATH", name)}
	}
	return &CodeError{CodeCannotRun, fmt.Errorf("%s cannot be run: %w", name, err)}
}
