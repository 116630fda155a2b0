package process

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/tenurehq/tenure/lab/labapi"
)

// state is the letter of a process's state; 0: there is no such process. It follows the
// name in parentheses, which may contain anything.
func state(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	i := bytes.LastIndex(stat, []byte(") "))
	if i < 0 || i+2 >= len(stat) {
		return 0
	}
	return stat[i+2]
}

// IsStopped reports whether a process is stopped by a signal.
func IsStopped(pid int) bool { return state(pid) == 'T' }

// Alive reports whether a process runs or is stopped. One that ended and was not waited for
// is not alive.
func Alive(pid int) bool {
	s := state(pid)
	return s != 0 && s != 'Z' && s != 'X'
}

// StartedFor reports whether a process has the address of a URL among its arguments, or its port
// alone: a server of another project may take no other.
func StartedFor(pid int, at string) bool {
	_, address, _ := strings.Cut(at, "://")
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || address == "" {
		return false
	}
	_, port, _ := net.SplitHostPort(address)
	return bytes.Contains(args, []byte(address)) || port != "" && slices.ContainsFunc(strings.Split(string(args), "\x00"), func(arg string) bool {
		return arg == port || strings.HasSuffix(arg, "="+port)
	})
}

// Guard resumes a process when this one ends, for whatever reason: a shell that waits for
// the end of its input.
type Guard struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// NewGuard guards a process. An armed one may stop itself later.
func NewGuard(pid int, armed bool) (*Guard, error) {
	again := 0
	if armed {
		again = int(labapi.ArmedFor.Seconds()) + 1
	}
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("read done && exit; i=0; while kill -CONT %d && [ $i -lt %d ]; do i=$((i+1)); sleep 1; done", pid, again))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C does not reach it
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &Guard{cmd, stdin}, cmd.Start()
}

// End dismisses the guard.
func (g *Guard) End() {
	_, _ = io.WriteString(g.stdin, "done\n")
	_ = g.stdin.Close()
	_ = g.cmd.Wait()
}

// EndWithParent ends a program when this one ends, for whatever reason, and keeps Ctrl-C
// from it.
func EndWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// Traced is how many threads of a process are traced, and how many there are.
func Traced(pid int) (n, all int) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return 0, 0
	}
	for _, path := range tasks {
		status, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if all++; !bytes.Contains(status, []byte("\nTracerPid:\t0\n")) {
			n++
		}
	}
	return n, all
}

// OwnedByUser reports whether a file is this user's.
func OwnedByUser(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Getuid()
}
