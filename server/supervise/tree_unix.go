//go:build unix && !linux

package supervise

import (
	"errors"
	"os"
	"syscall"
)

// wholeTree: only the command's process group is seen here.
const wholeTree = false

func adopt() error { return nil }

type proc struct {
	pid, group int
	dead       bool
}

func below(map[int]bool) []proc { return nil }

func send(group int, _ []proc, sig syscall.Signal) { _ = syscall.Kill(-group, sig) }

func gone(group int) bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }

func dieWithParent(*syscall.SysProcAttr) {}

func self() (string, error) { return os.Executable() }
