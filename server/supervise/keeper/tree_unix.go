//go:build unix && !linux

package keeper

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// WholeTree: only the command's process group is stopped.
const WholeTree = false

func becomeSubreaper() error { return nil }

type proc struct {
	pid, group int
	dead       bool
}

func descendants(map[int]bool) []proc { return nil }

func signalTree(group int, _ []proc, sig syscall.Signal) { _ = syscall.Kill(-group, sig) }

func groupGone(group int) bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }

func dieWithParent(*syscall.SysProcAttr) {}

// namespaces: there is no way to isolate a keeper.
func namespaces(isolate bool) []func(*syscall.SysProcAttr) {
	if isolate {
		return nil
	}
	return []func(*syscall.SysProcAttr){func(*syscall.SysProcAttr) {}}
}

func enterNamespace() error { return nil }

func outsideNumber(_ []proc, inside int) int { return inside }

func openPidfd() int { return 0 }

func died(int, time.Duration) bool { return false }

func self() (string, error) { return os.Executable() }
