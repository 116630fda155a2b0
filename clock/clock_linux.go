package clock

import (
	"encoding/binary"
	"os"
	"syscall"
	"unsafe"
)

// CLOCK_BOOTTIME and the timerfd constants are not named by package syscall.
const (
	clockBoottime   = 7
	timerAbsolute   = 1
	timerNonblock   = syscall.O_NONBLOCK
	timerCloexec    = syscall.O_CLOEXEC
	timerfdReadSize = 8
)

func (system) Now() Instant {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		// Linux has had the clock since 2.6.39. Without it a leader could not know when its
		// trust ends.
		panic("clock: CLOCK_BOOTTIME cannot be read: " + errno.Error())
	}
	return Instant(ts.Nano())
}

// bootTimer is a timerfd on CLOCK_BOOTTIME: unlike the runtime's timers it has
// run out when the machine wakes from a suspend, so a lost term ends at once.
type bootTimer struct {
	file *os.File
	c    chan struct{}
	done chan struct{}
}

type itimerspec struct{ interval, value syscall.Timespec }

// newSystemTimer returns nil when the process has no file descriptor to spare.
func newSystemTimer() Timer {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, clockBoottime, timerNonblock|timerCloexec, 0)
	if errno != 0 {
		return nil
	}
	t := &bootTimer{
		file: os.NewFile(fd, "timerfd"),
		c:    make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	go t.read()
	return t
}

func (t *bootTimer) read() {
	defer close(t.done)
	buf := make([]byte, timerfdReadSize)
	for {
		if n, err := t.file.Read(buf); err != nil || n != len(buf) || binary.NativeEndian.Uint64(buf) == 0 {
			return
		}
		select {
		case t.c <- struct{}{}:
		default:
		}
	}
}

func (t *bootTimer) C() <-chan struct{} { return t.c }

func (t *bootTimer) Set(at Instant) {
	var spec itimerspec // zero disarms
	if at != Never {
		at = max(at, 1)
		spec.value = syscall.NsecToTimespec(int64(at))
	}
	conn, err := t.file.SyscallConn()
	if err != nil {
		return
	}
	// Through the connection, so that a concurrent Stop cannot hand the
	// descriptor's number to somebody else in between.
	_ = conn.Control(func(fd uintptr) {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, fd, timerAbsolute, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	})
}

func (t *bootTimer) Stop() {
	_ = t.file.Close()
	<-t.done
}
