//go:build !unix

package enginetest

import (
	"errors"
	"os"
)

var errNoSignals = errors.New("this system has no such signal")

func pause(*os.Process) error       { return errNoSignals }
func resume(*os.Process) error      { return errNoSignals }
func interrupt(p *os.Process) error { return p.Kill() }

// lockFile does without: side by side, two builds write the same program.
func lockFile(string) (unlock func(), err error) { return func() {}, nil }
