package advise

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// timeError is what adjtimex returns if nothing synchronises the clock.
const timeError = 5

// ThisClock returns what the kernel knows of this machine's clock.
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

// Throttled returns how often the kernel has throttled the CPU of this control group.
func Throttled() int64 {
	text, _ := os.ReadFile("/sys/fs/cgroup/cpu.stat")
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "nr_throttled "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}
