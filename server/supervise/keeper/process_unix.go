//go:build unix

package keeper

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// Process is the supervisor's side of a keeper.
type Process struct {
	// Messages of the keeper. Closed: the keeper is gone, or sent something invalid.
	Messages chan Message
	// Group is the process group of the command; 0: not started.
	Group int
	// Proves: the keeper can prove that this process has died.
	Proves bool

	isolated bool
	cmd      *exec.Cmd
	conn     *conn
	done     chan struct{} // closed by Release
	exited   chan struct{}
	spare    map[int]bool // our earlier children: not of the command
}

// Config says what a keeper runs.
type Config struct {
	Group, Node    string
	Path           string   // of the command
	Args           []string // with the command's name
	File           FencingFile
	Isolate        bool // in a pid namespace that ends with the keeper
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// New starts a keeper and waits until it is ready. It runs the command after a Start
// message.
func New(c Config) (*Process, error) {
	if err := becomeSubreaper(); err != nil {
		return nil, err
	}
	spare := map[int]bool{}
	for _, p := range descendants(nil) {
		spare[p.pid] = true
	}
	mine, its, err := socketpair()
	if err != nil {
		return nil, fmt.Errorf("socket to the keeper: %w", err)
	}
	me := openPidfd()
	cmd, err := c.start(its, me)
	_ = syscall.Close(its)
	if me != 0 {
		_ = syscall.Close(me)
	}
	if err != nil {
		_ = mine.Close()
		return nil, err
	}
	p := &Process{
		Messages: make(chan Message, 8), isolated: c.Isolate, cmd: cmd, conn: &conn{file: mine},
		done: make(chan struct{}), exited: make(chan struct{}), spare: spare, Proves: me != 0,
	}
	go p.conn.receive(p.Messages, p.done)
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	if err := p.awaitReady(); err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// start starts the keeper's process with its end of the socket and the pidfd of this process.
func (c Config) start(socket, me int) (*exec.Cmd, error) {
	program, err := self()
	if err != nil {
		return nil, err
	}
	var failed error // of the first way
	for _, add := range namespaces(c.Isolate) {
		cmd := exec.Command(program)
		cmd.Args = append([]string{"tenure", command, strconv.Itoa(socket), strconv.Itoa(me), c.Group, c.Path}, c.Args...)
		cmd.Env = append(os.Environ(), EnvGroup+"="+c.Group, EnvNode+"="+c.Node, EnvFencingFile+"="+c.File.path)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
		cmd.WaitDelay = time.Second
		// In its own process group it gets no signal that a terminal or a shell sends to ours.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		add(cmd.SysProcAttr)
		if err = cmd.Start(); err == nil {
			return cmd, nil
		}
		failed = cmp.Or(failed, err)
	}
	if c.Isolate {
		errno := syscall.ENOTSUP
		_ = errors.As(failed, &errno)
		return nil, isolateError(errno)
	}
	return nil, fmt.Errorf("cannot start the keeper: %w", failed)
}

// startTimeout bounds the start of the keeper's process.
const startTimeout = 30 * time.Second

func (p *Process) awaitReady() error {
	select {
	case m := <-p.Messages:
		switch {
		case m.Kind == ready:
			return nil
		case m.Kind == Failed && p.isolated:
			return isolateError(syscall.Errno(m.Errno))
		case m.Kind == Failed:
			return fmt.Errorf("the keeper cannot start: %w", syscall.Errno(m.Errno))
		}
		return errors.New("the keeper ended when it was started")
	case <-time.After(startTimeout):
		return fmt.Errorf("the keeper is not ready after %v", startTimeout)
	}
}

func isolateError(err syscall.Errno) error {
	return fmt.Errorf("isolate: cannot create a pid namespace with its own /proc: %w; this needs Linux, and root (CAP_SYS_ADMIN) or user namespaces; run as root or without --isolate", err)
}

// SetGroup sets Group to the command's process group, whose number in the keeper's pid
// namespace is given.
func (p *Process) SetGroup(number int) {
	if p.Group = number; p.isolated {
		p.Group = outsideNumber(descendants(p.spare), number)
	}
}

// socketpair makes a socket. The keeper inherits its end under the same number, so that
// files which our caller opened for the command keep their numbers.
func socketpair() (mine *os.File, its int, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, 0, err
	}
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		_, _ = syscall.Close(fds[0]), syscall.Close(fds[1])
		return nil, 0, err
	}
	return os.NewFile(uintptr(fds[0]), "keeper"), fds[1], nil
}

// Send sends a message and never blocks. A keeper that hangs may not get it.
func (p *Process) Send(m Message) error { return p.conn.send(m) }

// Unread reports whether a message waits to be read.
func (p *Process) Unread() (is bool) {
	raw, err := p.conn.file.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		is = err == nil && n > 0
	})
	return is
}

// Release ends a keeper whose command has ended or was not started, and waits for it. It
// kills a keeper that hangs. Release of a nil Process does nothing.
func (p *Process) Release() {
	if p == nil {
		return
	}
	_ = p.Send(Message{Kind: leave})
	close(p.done)
	_ = p.conn.file.Close()
	select {
	case <-p.exited:
	case <-time.After(ResponseTime):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	for range p.Messages { // until its reader has ended
	}
}

const (
	maxKillPause = 50 * time.Millisecond // between two rounds of killing
	stuckAfter   = 40                    // rounds after which processes count as stuck
)

// KillAll kills the keeper and all its descendants, for a keeper that hangs or is gone. It
// returns when no process is left, and calls stuck if that takes long.
func (p *Process) KillAll(stuck func(left int)) {
	signalTree(p.Group, descendants(p.spare), syscall.SIGKILL)
	_ = p.cmd.Process.Kill()
	<-p.exited
	pause := time.Millisecond
	round := 0
	// Twice, because a process can get a new parent while the threads are read.
	for quiet := 0; quiet < 2; {
		alive := 0
		procs := descendants(p.spare)
		for _, proc := range procs {
			if !proc.dead {
				alive++
				continue
			}
			_, _ = syscall.Wait4(proc.pid, nil, syscall.WNOHANG, nil)
		}
		if alive == 0 && groupGone(p.Group) {
			quiet++
			continue
		}
		quiet = 0
		if round++; round == stuckAfter {
			stuck(alive)
		}
		signalTree(p.Group, procs, syscall.SIGKILL)
		time.Sleep(pause)
		pause = min(2*pause, maxKillPause)
	}
}
