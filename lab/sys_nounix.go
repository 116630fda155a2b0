//go:build !unix

package lab

import (
	"errors"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

// Hold is not supported.
func Hold(string) (release func(), err error) { return nil, errors.ErrUnsupported }
