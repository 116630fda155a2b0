package labnode

import (
	"os"
	"runtime"
	"syscall"
)

// stopProcess stops this process until another one resumes it. It signals the calling thread,
// which therefore executes no further instruction: a signal to the process could be taken by
// another thread, and this one would continue for a while.
func stopProcess() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}
