package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/tenurehq/tenure/internal/child"
)

// At a terminal the command is in the foreground: it reads the input, only it gets Ctrl-C,
// and after Ctrl-Z the shell gets the terminal back and fg resumes the command.
func (e *execRig) terminal(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ours, its := pty(t)
	cmd := exec.Command("bash", "--norc", "--noprofile", "-i")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = its, its, its
	cmd.Env = append(os.Environ(), mainEnv+"=1", "PS1=> ", "TERM=dumb")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var screen child.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := ours.Read(buf)
			_, _ = screen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = its.Close()
		awaitTerminalClosed(t, read)
		_ = ours.Close()
	}()
	seen := 0
	// shows waits for output after what was seen before.
	shows := func(what string) {
		t.Helper()
		until(t, fmt.Sprintf("the terminal shows %q", what), func() bool {
			text := screen.String()[seen:]
			i := strings.Index(text, what)
			if i >= 0 {
				seen += i + len(what)
			}
			return i >= 0
		})
	}
	types := func(text string) {
		t.Helper()
		if _, err := ours.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	shows("> ")
	types(fmt.Sprintf("%s exec --store=%s --ttl=60s tty -- bash -c 'trap \"echo caught\" INT; echo go; while read line; do echo got-$line; done; echo line $?'\n", self, etcdURL(e.engine.Members[0].Addr())))
	shows("\ngo")
	types("hello\n")
	shows("got-hello")
	types("\x03")
	shows("caught")
	types("\x1a")
	shows("Stopped")
	types("echo shell-$((1+1))\n")
	shows("\nshell-2")
	types("fg\n")
	types("again\n")
	shows("got-again")
	types("\x04")
	shows("\nline")
	types("echo code-$?\n")
	shows("\ncode-0")
}

// awaitTerminalClosed waits until no process has the terminal open; then its reader ends.
func awaitTerminalClosed(t *testing.T, read <-chan struct{}) {
	t.Helper()
	select {
	case <-read:
	case <-time.After(execWait):
		t.Error("a process still has the terminal open")
	}
}

// pty opens a terminal: input that is written to ours is read from its.
func pty(t *testing.T) (ours, its *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	var n, unlock uint32
	for request, arg := range map[uintptr]*uint32{syscall.TIOCGPTN: &n, syscall.TIOCSPTLCK: &unlock} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, ours.Fd(), request, uintptr(unsafe.Pointer(arg))); errno != 0 {
			t.Fatal(errno)
		}
	}
	its, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ours, its
}
