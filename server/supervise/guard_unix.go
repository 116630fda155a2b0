//go:build unix

package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// guard is the wrapper's side of a keeper process.
type guard struct {
	cmd    *exec.Cmd
	link   *link
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
	program, err := self()
	if err != nil {
		return nil, err
	}
	mine, its, err := pair()
	if err != nil {
		return nil, fmt.Errorf("keep: socket to the keeper: %w", err)
	}
	cmd := exec.Command(program)
	cmd.Args = append([]string{"tenure", verb, strconv.Itoa(its), c.Group, path}, c.Args...)
	cmd.Env = append(os.Environ(), EnvGroup+"="+c.Group, EnvNode+"="+c.ID, EnvTokenFile+"="+file.path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.WaitDelay = time.Second
	// Nobody who means the wrapper, a terminal or a shell, reaches the keeper too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = syscall.Close(its)
	if err != nil {
		_ = mine.Close()
		return nil, fmt.Errorf("keep: the keeper cannot be started: %w", err)
	}
	g := &guard{cmd: cmd, link: &link{file: mine}, says: make(chan message, 8), done: make(chan struct{}), exited: make(chan struct{}), spare: spare}
	go g.link.receive(g.says, g.done)
	go func() {
		_ = cmd.Wait()
		close(g.exited)
	}()
	return g, nil
}

// pair makes a socket with two ends. The keeper inherits its own under the number that it
// has here: whatever numbers our caller has given to files for the command stay theirs.
func pair() (mine *os.File, its int, err error) {
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

// release lets a keeper go that has nothing to keep, and waits for it. One that stands
// still is ended.
func (g *guard) release() {
	_ = g.link.send(message{Kind: doLeave})
	close(g.done)
	_ = g.link.file.Close()
	select {
	case <-g.exited:
	case <-time.After(obeyWithin):
		_ = g.cmd.Process.Kill()
		<-g.exited
	}
	for range g.says { // its reader has ended
	}
}

const (
	longestPause = 50 * time.Millisecond // between two rounds of killing
	patient      = 40                    // rounds before it is said aloud that somebody is left
)

// sweep is the second line: the keeper, and everything that was below it, is killed by the
// wrapper. It returns when nothing is left that runs; stuck is told if that takes long.
func (g *guard) sweep(stuck func(left int)) {
	send(g.group, below(g.spare), syscall.SIGKILL)
	_ = g.cmd.Process.Kill()
	<-g.exited
	pause := time.Millisecond
	round := 0
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
		if round++; round == patient {
			stuck(alive)
		}
		send(g.group, procs, syscall.SIGKILL)
		time.Sleep(pause)
		pause = min(2*pause, longestPause)
	}
}
