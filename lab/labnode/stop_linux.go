package labnode

import (
	"os"
	"runtime"
	"syscall"
)

// stopProcess stops this process until somebody lets it go on. The signal goes to the
// calling thread, which therefore does not run one instruction more: one to the process
// could be taken by another thread, and this one would go on for a while.
func stopProcess() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}
