//go:build unix

package keep

import (
	"os"
	"syscall"
	"unsafe"
)

// foreground returns the process group that the terminal listens to; 0: no terminal of
// ours.
func foreground(tty *os.File) int {
	var group int32
	if tty == nil || ioctl(tty, syscall.TIOCGPGRP, &group) != nil {
		return 0
	}
	return int(group)
}

// setForeground makes a process group the one that the terminal listens to. SIGTTOU must be
// ignored by a caller in the background.
func setForeground(tty *os.File, group int) {
	g := int32(group)
	_ = ioctl(tty, syscall.TIOCSPGRP, &g)
}

func ioctl(tty *os.File, request uintptr, group *int32) error {
	raw, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(group)))
	}); err != nil {
		return err
	}
	if errno != 0 {
		return errno
	}
	return nil
}
