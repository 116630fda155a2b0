//go:build unix

package chaos

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// guard lets a process go on when this one ends, however that ends: a shell that waits
// for the end of its input.
type guard struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func newGuard(pid int) (*guard, error) {
	// Twice: a process that was to stop itself may do so a little later.
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("read done && exit; kill -CONT %d; sleep 2; kill -CONT %d", pid, pid))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &guard{cmd, stdin}, nil
}

// end dismisses it: the process goes on.
func (g *guard) end() {
	if w, ok := g.stdin.(io.Writer); ok {
		_, _ = io.WriteString(w, "done\n")
	}
	_ = g.stdin.Close()
	_ = g.cmd.Wait()
}

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

func suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
