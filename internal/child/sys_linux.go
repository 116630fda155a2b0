package child

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// DieWithParent kills the command when this process ends. This also ends a paused process,
// which does not notice that its input ended.
func DieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// Paused reports whether the process is stopped. Its state follows its name in parentheses.
func Paused(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(rest, []byte("T"))
}
