package chaos

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// state is the letter of a process's state; 0: there is no such process. It follows the
// name in parentheses, which may hold anything.
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

func still(pid int) bool { return state(pid) == 'T' }

// alive: a process that has ended and was not waited for yet is not.
func alive(pid int) bool {
	s := state(pid)
	return s != 0 && s != 'Z' && s != 'X'
}

// startedFor reports whether a process was told the address of a URL when it was started.
func startedFor(pid int, at string) bool {
	_, address, _ := strings.Cut(at, "://")
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && address != "" && bytes.Contains(args, []byte(address))
}

// endWithParent ends a program when this one ends, however that ends, and keeps Ctrl-C
// from it.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// traced is how many threads of a process another one traces, and how many there are.
func traced(pid int) (n, all int) {
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

// mine reports whether a file is this user's.
func mine(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Getuid()
}
