//go:build unix

package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	ossignal "os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// verb is how the wrapper starts the keeper: PROGRAM keeper LINK GROUP PATH ARG0 ARGS….
// LINK is the number of the socket, one that nobody had given to the wrapper.
const verb = "keeper"

// Called reports whether this process was started to be a keeper. A main asks before it
// does anything else, and then calls Main.
func Called(args []string) bool { return len(args) > 1 && args[1] == verb }

// Main is the keeper's main. It returns the exit code: 0 when nothing of the tree is left.
func Main(args []string) int {
	// A keeper waits. It is to cost little while it does.
	debug.SetGCPercent(25)
	runtime.GOMAXPROCS(2)
	// The command dies with the thread that started it.
	runtime.LockOSThread()
	fd, ok := linkOf(args)
	if !ok {
		_, _ = fmt.Fprintln(os.Stderr, "error: keeper is not for people: it is started by exec")
		return CodeFailed
	}
	syscall.CloseOnExec(fd)
	_ = syscall.SetNonblock(fd, true)
	k := &keeper{link: &link{file: os.NewFile(uintptr(fd), "wrapper")}, path: args[4], argv: args[5:], clock: clock.System()}
	if err := adopt(); err != nil {
		_ = k.link.send(message{Kind: isFailed, Errno: int(syscall.ENOSYS)})
		return CodeFailed
	}
	return k.run()
}

func linkOf(args []string) (fd int, ok bool) {
	if len(args) < 6 {
		return 0, false
	}
	var st syscall.Stat_t
	fd, err := strconv.Atoi(args[2])
	return fd, err == nil && fd > 2 && syscall.Fstat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFSOCK
}

// deaf are the signals that a keeper must outlive. They are caught and not ignored: what
// is ignored the command would inherit, as it does what was ignored before (nohup).
func deaf() []os.Signal {
	return slices.DeleteFunc([]os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGTSTP,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPIPE,
	}, ossignal.Ignored)
}

type keeper struct {
	link  *link
	path  string
	argv  []string
	clock clock.Clock
	vigil vigil

	deaths chan os.Signal
	group  int // of the command, and its number; 0: not started
	over   bool
	status syscall.WaitStatus
	left   int // what the command has left behind
}

func (k *keeper) run() int {
	k.deaths = make(chan os.Signal, 1)
	ossignal.Notify(k.deaths, syscall.SIGCHLD)
	ossignal.Notify(make(chan os.Signal, 1), deaf()...)
	if k.link.send(message{Kind: isReady}) != nil { // the wrapper is gone already
		tidy()
		return CodeFailed
	}
	orders := make(chan message)
	done := make(chan struct{})
	go k.link.receive(orders, done)
	timer := k.clock.NewTimer()
	timer.Set(clock.Never)
	for {
		select {
		case m, ok := <-orders:
			if !ok {
				orders = nil
				if k.group == 0 {
					tidy()
					return 0
				}
				k.stop(orphaned)
				break
			}
			if !k.order(m) {
				return 0
			}
		case <-k.deaths:
		case <-timer.C():
		}
		if k.group == 0 {
			continue
		}
		tell, now := k.vigil.due(k.clock.Now())
		if tell {
			k.tell()
		}
		if now {
			k.killAll()
		}
		if k.reap() {
			close(done)
			return k.report(orders == nil)
		}
		timer.Set(k.vigil.next())
	}
}

// order obeys the wrapper, and reports whether there is anything left to keep.
func (k *keeper) order(m message) bool {
	now := k.clock.Now()
	switch m.Kind {
	case doStart:
		return k.start(m)
	case doExtend:
		k.vigil.extend(m.Deadline)
	case doSignal:
		if k.group != 0 && !k.over {
			k.pass(syscall.Signal(m.Signal))
		}
	case doStop:
		k.stop(asked)
	case doKill:
		k.vigil.kill(now, forced)
	case doLeave:
		return k.group != 0
	}
	return true
}

// pass hands a signal to the command's group. What asks for an end also wakes those who
// were stopped, as shells do: they could not hear it.
func (k *keeper) pass(sig syscall.Signal) {
	_ = syscall.Kill(-k.group, sig)
	switch sig {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		_ = syscall.Kill(-k.group, syscall.SIGCONT)
	}
}

func (k *keeper) start(m message) bool {
	k.vigil = vigil{grace: m.Grace, deadline: m.Deadline}
	if k.clock.Now() >= k.vigil.next() {
		// Nothing ran, so there is nothing to stop.
		_ = k.link.send(message{Kind: isEnded, Why: expired})
		return false
	}
	attr := &syscall.ProcAttr{
		Env:   environment(m),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	}
	dieWithParent(attr.Sys)
	pid, err := syscall.ForkExec(k.path, k.argv, attr)
	if err != nil {
		errno := syscall.EIO
		_ = errors.As(err, &errno)
		_ = k.link.send(message{Kind: isFailed, Errno: int(errno)})
		return false
	}
	k.group = pid
	_ = k.link.send(message{Kind: isStarted, PID: pid})
	return true
}

// environment is the keeper's, which the wrapper has prepared, and what only the term
// knows.
func environment(m message) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == EnvToken || name == EnvSession || name == EnvDeployment // of an exec around us
	})
	return append(env, EnvToken+"="+m.Token, EnvSession+"="+m.Session, EnvDeployment+"="+m.Deployment)
}

// stop tells the tree, once.
func (k *keeper) stop(why ending) {
	if k.vigil.stop(k.clock.Now(), why) && k.vigil.grace > 0 {
		k.tell()
	}
}

// tell asks the tree to end, those who were stopped too.
func (k *keeper) tell() {
	k.send(syscall.SIGTERM)
	k.send(syscall.SIGCONT)
}

func (k *keeper) send(sig syscall.Signal) { send(k.group, below(nil), sig) }

// reap takes in everybody who has ended, and reports whether nobody is left: the kernel
// says so of all children and whatever was handed to us, in one answer.
func (k *keeper) reap() bool {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.ECHILD):
			return gone(k.group)
		case err != nil || pid == 0:
			return false
		case pid == k.group && ws.Stopped():
			_ = k.link.send(message{Kind: isStill, Signal: int(ws.StopSignal())})
		case pid == k.group:
			k.over, k.status = true, ws
			if k.vigil.why == goesOn {
				k.left = len(slices.DeleteFunc(below(nil), func(p proc) bool { return p.dead }))
				k.stop(exited)
			}
		}
	}
}

// killAll kills until nobody is left, however long that takes: a process that the kernel
// holds fast is not gone.
func (k *keeper) killAll() {
	pause := time.Millisecond
	for round := 1; ; round++ {
		k.send(syscall.SIGKILL)
		if k.reap() {
			return
		}
		if round == patient {
			_ = k.link.send(message{Kind: isStuck, Left: len(below(nil))})
		}
		select {
		case <-k.deaths:
		case <-time.After(pause):
			pause = min(2*pause, longestPause)
		}
	}
}

// report says how it ended, to a wrapper that stands still too: there is nothing else left
// to do.
func (k *keeper) report(alone bool) int {
	err := k.link.insist(message{Kind: isEnded, Why: k.vigil.why, Status: uint32(k.status), Left: k.left})
	if alone || err != nil {
		tidy()
		return 1
	}
	// The wrapper hangs up when it has read that.
	_ = k.link.file.SetReadDeadline(time.Now().Add(obeyWithin))
	_, _ = io.Copy(io.Discard, k.link.file)
	return 0
}

// tidy removes what a wrapper that is gone would have removed.
func tidy() {
	if path := os.Getenv(EnvTokenFile); path != "" {
		_ = os.Remove(path)
		_ = os.Remove(path + newSuffix)
		_ = os.Remove(filepath.Dir(path))
	}
}
