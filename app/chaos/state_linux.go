package chaos

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
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

// mine reports whether a file is this user's.
func mine(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Getuid()
}
