//go:build !unix

package servertest

import (
	"errors"
	"os"
)

func signalZero(*os.Process) error { return errors.ErrUnsupported }
