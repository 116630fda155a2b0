package advise

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// timeError is what adjtimex answers when nothing disciplines the clock.
const timeError = 5

// ThisClock asks the kernel.
func ThisClock() Clock {
	out := Clock{Boottime: true}
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) == nil && unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) == nil {
		out.Suspended = max(0, time.Duration(boot.Nano()-mono.Nano()))
	}
	if state, err := unix.Adjtimex(&unix.Timex{}); err == nil {
		out.Known, out.Unsynchronized = true, state == timeError
	}
	return out
}

// Throttled is how often the kernel has held this process's control group back.
func Throttled() int64 {
	file, err := os.Open("/sys/fs/cgroup/cpu.stat")
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && name == "nr_throttled" {
			n, _ := strconv.ParseInt(value, 10, 64)
			return n
		}
	}
	return 0
}
