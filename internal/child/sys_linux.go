package child

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// DieWithParent makes the command end with this process. It reaches a paused process too, which cannot see its input end.
func DieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// Paused reports whether the process stands still: it reads the state that follows the name in parentheses.
func Paused(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(rest, []byte("T"))
}
