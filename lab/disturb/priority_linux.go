package disturb

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// LowerPriority raises the nice value of a process and returns it. On Linux each thread has
// its own: all present threads get it, and new ones inherit it.
func LowerPriority(pid, by int) (nice int, err error) {
	const nicest = 19
	raw, err := syscall.Getpriority(syscall.PRIO_PROCESS, pid)
	if err != nil {
		return 0, err
	}
	nice = min(20-raw+by, nicest) // the system call returns 20 - nice
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("%w: no threads in /proc/%d/task", os.ErrProcessDone, pid)
	}
	for _, path := range tasks {
		tid, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			return 0, err
		}
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, tid, nice); err != nil && err != syscall.ESRCH {
			return 0, err
		}
	}
	return nice, nil
}
