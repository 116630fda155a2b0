//go:build unix

package chaos

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/tenurehq/tenure/app/fleet/api"
)

// guard lets a process go on when this one ends, however that ends: a shell that waits
// for the end of its input.
type guard struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// newGuard guards a process; armed: it may stop itself later, for as long as a node is
// armed.
func newGuard(pid int, armed bool) (*guard, error) {
	again := 0
	if armed {
		again = int(api.ArmedFor.Seconds()) + 1
	}
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("read done && exit; i=0; while kill -CONT %d && [ $i -lt %d ]; do i=$((i+1)); sleep 1; done", pid, again))
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
