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
	cmd := exec.Command("bash", "--norc", "--noprofile", "-i")
	cmd.Env = append(os.Environ(), mainEnv+"=1", "PS1=> ", "TERM=dumb")
	term := openTerminal(t, cmd)
	shows, types := term.shows, term.types
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

// terminal is a terminal in which a command runs.
type terminal struct {
	t      *testing.T
	ours   *os.File
	screen child.Buffer
	seen   int
}

// openTerminal starts a command in a terminal of 80 columns and 24 lines. Both end with the test.
func openTerminal(t *testing.T, cmd *exec.Cmd) *terminal {
	t.Helper()
	ours, its := pty(t)
	size := [4]uint16{24, 80}
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, ours.Fd(), syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		t.Fatal(errno)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = its, its, its
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, ours: ours}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := ours.Read(buf)
			_, _ = term.screen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = its.Close()
		awaitTerminalClosed(t, read)
		_ = ours.Close()
	})
	return term
}

// shows waits for output after what was seen before.
func (term *terminal) shows(what string) {
	term.t.Helper()
	until(term.t, fmt.Sprintf("the terminal shows %q", what), func() bool {
		text := term.screen.String()[term.seen:]
		i := strings.Index(text, what)
		if i >= 0 {
			term.seen += i + len(what)
		}
		return i >= 0
	})
}

func (term *terminal) types(text string) {
	term.t.Helper()
	if _, err := term.ours.WriteString(text); err != nil {
		term.t.Fatal(err)
	}
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
