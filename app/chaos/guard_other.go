//go:build !unix

package chaos

import (
	"errors"
	"os"
)

type guard struct{}

func newGuard(int, bool) (*guard, error) { return nil, errors.ErrUnsupported }

func (*guard) end() {}

func terminate(*os.Process) error { return errors.ErrUnsupported }

func suspend(*os.Process) error { return errors.ErrUnsupported }

func resume(*os.Process) error { return errors.ErrUnsupported }
