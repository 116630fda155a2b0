//go:build unix

package keep

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// guard is the wrapper's side of a keeper process.
type guard struct {
	cmd    *exec.Cmd
	link   link
	says   chan message  // closed: the keeper is gone, or said nonsense
	done   chan struct{} // closed by release
	exited chan struct{}
	spare  map[int]bool // processes that were below us before: not of the tree
	group  int          // of the command; 0: not started
}

// spawn starts a keeper. It waits below this process, for a fraction of a second without
// anything to keep, until it is told to start the command.
func spawn(c *Config, path string, file tokenFile) (*guard, error) {
	if err := adopt(); err != nil {
		return nil, err
	}
	spare := map[int]bool{}
	for _, p := range below(nil) {
		spare[p.pid] = true
	}
	mine, its, err := pair()
	if err != nil {
		return nil, fmt.Errorf("keep: socket to the keeper: %w", err)
	}
	program, err := self()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Args = append([]string{"tenure", verb, c.Group, path}, c.Args...)
	cmd.Env = append(os.Environ(), EnvGroup+"="+c.Group, EnvNode+"="+c.ID, EnvTokenFile+"="+file.path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.ExtraFiles = []*os.File{its}
	cmd.WaitDelay = time.Second
	// Nobody who means the wrapper, a terminal or a shell, reaches the keeper too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = its.Close()
	if err != nil {
		_ = mine.Close()
		return nil, fmt.Errorf("keep: the keeper cannot be started: %w", err)
	}
	g := &guard{cmd: cmd, link: link{mine}, says: make(chan message, 8), done: make(chan struct{}), exited: make(chan struct{}), spare: spare}
	go g.link.receive(g.says, g.done)
	go func() {
		_ = cmd.Wait()
		close(g.exited)
	}()
	return g, nil
}

// pair makes a socket with two ends, neither of which a program inherits unless it is
// handed over.
func pair() (mine, its *os.File, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "keeper"), os.NewFile(uintptr(fds[1]), "wrapper"), nil
}

// release lets a keeper go that has nothing to keep, and waits for it. One that stands
// still is ended.
func (g *guard) release() {
	close(g.done)
	_ = g.link.file.Close()
	select {
	case <-g.exited:
	case <-time.After(sendWithin):
		_ = g.cmd.Process.Kill()
		<-g.exited
	}
	for range g.says { // its reader has ended
	}
}

// sweep is the second line: the keeper, and everything that was below it, is killed by the
// wrapper. It returns when nothing is left that runs.
func (g *guard) sweep() {
	send(g.group, below(g.spare), syscall.SIGKILL)
	_ = g.cmd.Process.Kill()
	<-g.exited
	const longest = 50 * time.Millisecond
	pause := time.Millisecond
	// Twice: between two looks at different threads a process can change its parent.
	for quiet := 0; quiet < 2; {
		alive := 0
		procs := below(g.spare)
		for _, p := range procs {
			if !p.dead {
				alive++
				continue
			}
			_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil)
		}
		if alive == 0 && gone(g.group) {
			quiet++
			continue
		}
		quiet = 0
		send(g.group, procs, syscall.SIGKILL)
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
}

// terminal is the terminal that the command is to be given, nil if there is none or this
// process is not in its foreground.
func terminal(stdin io.Reader) *os.File {
	f, ok := stdin.(*os.File)
	if !ok || foreground(f) != syscall.Getpgrp() {
		return nil
	}
	return f
}
