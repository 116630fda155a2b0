//go:build !unix

package child

import (
	"errors"
	"os"
)

var errNoSignals = errors.New("this system has no such signal")

// Pause cannot be had.
func Pause(*os.Process) error { return errNoSignals }

// Resume cannot be had.
func Resume(*os.Process) error { return errNoSignals }

// Interrupt ends it at once.
func Interrupt(p *os.Process) error { return p.Kill() }

// LockFile does without: side by side, two builds write the same program.
func LockFile(string) (unlock func(), err error) { return func() {}, nil }
