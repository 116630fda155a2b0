//go:build !unix

package lab

import (
	"errors"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

// Hold cannot tell whether another has the lock.
func Hold(string) (release func(), err error) { return nil, errors.ErrUnsupported }
