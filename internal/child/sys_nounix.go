//go:build !unix

package child

import (
	"errors"
	"os"
)

var errNoSignals = errors.New("this system has no such signal")

// Pause is not supported.
func Pause(*os.Process) error { return errNoSignals }

// Resume is not supported.
func Resume(*os.Process) error { return errNoSignals }

// Interrupt kills the process.
func Interrupt(p *os.Process) error { return p.Kill() }

// LockFile does not lock.
func LockFile(string) (unlock func(), err error) { return func() {}, nil }
