//go:build unix

package supervise

import (
	"io"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// terminal returns the terminal to give to the command; nil: there is none, or this process
// is not in its foreground. A command whose input is not the terminal may still use it, but
// not if our output is a pipe: then the reader of the pipe keeps the terminal.
func terminal(stdin io.Reader, stdout, stderr io.Writer) *os.File {
	ours := func(f any) *os.File {
		if file, ok := f.(*os.File); ok && foreground(file) == syscall.Getpgrp() {
			return file
		}
		return nil
	}
	if f := ours(stdin); f != nil || piped(stdout) {
		return f
	}
	for _, w := range []io.Writer{stdout, stderr} {
		if f := ours(w); f != nil {
			return f
		}
	}
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	if ours(f) == nil {
		_ = f.Close()
		return nil
	}
	return f
}

// closeTerminal closes the terminal if terminal opened it.
func closeTerminal(tty *os.File, given ...any) {
	if !slices.Contains(given, any(tty)) {
		_ = tty.Close()
	}
}

func piped(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeNamedPipe != 0
}

// foreground returns the foreground process group; 0: it is not our terminal.
func foreground(tty *os.File) int {
	var group int32 // not unix.IoctlGetInt: its 64 bits are wrong on big-endian machines
	control(tty, func(fd int) {
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	})
	return int(group)
}

// setForeground sets the foreground process group. A caller in the background must ignore
// SIGTTOU.
func setForeground(tty *os.File, group int) {
	control(tty, func(fd int) { _ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, group) })
}

func control(f *os.File, do func(fd int)) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { do(int(fd)) })
	}
}
