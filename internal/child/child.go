package child

import (
	"os/exec"
	"runtime"
)

// Process is a running program.
type Process struct {
	Cmd *exec.Cmd
	// Exited is closed when it has ended; Err is set before.
	Exited chan struct{}
	Err    error
}

// Start starts the command. attend, if given, is called when the command runs, and reads its
// pipes until they end.
func Start(cmd *exec.Cmd, attend func()) (*Process, error) {
	p := &Process{Cmd: cmd, Exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Linux ends the child when the thread that started it ends (see DieWithParent), so
		// this thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if attend != nil {
			attend()
		}
		p.Err = cmd.Wait()
		close(p.Exited)
	}()
	return p, <-started
}

// Kill kills the process, paused or not, and waits for its end.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.Exited
}
