//go:build unix

package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	ossignal "os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// command is the first argument of a keeper: PROGRAM exec-keeper SOCKET SUPERVISOR GROUP PATH
// ARG0 ARGS…, where SOCKET is the number of an open file, and SUPERVISOR that of the
// supervisor's pidfd; 0: there is none.
const command = "exec-keeper"

// Called reports whether this process was started as a keeper. A main asks before it does
// anything else, and then calls Main.
func Called(args []string) bool { return len(args) > 1 && args[1] == command }

// Main is the keeper's main. It returns the exit code: 0 when no process is left. It calls end
// to close the session of a supervisor that has died.
func Main(args []string, end func(context.Context, Close) error) int {
	debug.SetGCPercent(25) // a keeper waits, so it should need little memory
	runtime.GOMAXPROCS(2)
	runtime.LockOSThread() // the command dies with the thread that started it
	fd, supervisor, ok := filesOf(args)
	if !ok {
		_, _ = fmt.Fprintln(os.Stderr, "error: only `tenure exec` can start the keeper")
		return exitFailed
	}
	syscall.CloseOnExec(fd)
	_ = syscall.SetNonblock(fd, true)
	k := &keeper{conn: &conn{file: os.NewFile(uintptr(fd), "supervisor")}, supervisor: supervisor, end: end, path: args[5], argv: args[6:], clock: clock.System()}
	if supervisor != 0 {
		syscall.CloseOnExec(supervisor)
	}
	if err := errors.Join(enterNamespace(), becomeSubreaper()); err != nil {
		_ = k.conn.send(failed(err))
		return exitFailed
	}
	return k.run()
}

// filesOf returns the socket, and the pidfd of the supervisor.
func filesOf(args []string) (fd, supervisor int, ok bool) {
	if len(args) < 7 {
		return 0, 0, false
	}
	var st syscall.Stat_t
	fd, err := strconv.Atoi(args[2])
	supervisor, serr := strconv.Atoi(args[3])
	return fd, supervisor, errors.Join(err, serr) == nil && fd > 2 && syscall.Fstat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFSOCK
}

// survivedSignals are caught, not ignored: the command would inherit ignored signals, as
// it does those that were ignored before (nohup).
func survivedSignals() []os.Signal {
	return slices.DeleteFunc([]os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGTSTP,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPIPE,
	}, ossignal.Ignored)
}

type keeper struct {
	conn     *conn
	path     string
	argv     []string
	clock    clock.Clock
	watchdog watchdog

	supervisor int // its pidfd; 0: none
	end        func(context.Context, Close) error
	close      *Close // nil: the session cannot be closed

	deaths chan os.Signal
	group  int  // the command's process group, and its process id; 0: not started
	exited bool // the command has
	status syscall.WaitStatus
	left   int // processes that the command left behind
}

func (k *keeper) run() int {
	k.deaths = make(chan os.Signal, 1)
	ossignal.Notify(k.deaths, syscall.SIGCHLD)
	ossignal.Notify(make(chan os.Signal, 1), survivedSignals()...)
	if k.conn.send(Message{Kind: ready}) != nil { // the supervisor is gone already
		removeFencingFile()
		return exitFailed
	}
	orders := make(chan Message)
	go k.conn.receive(orders, nil)
	timer := k.clock.NewTimer()
	timer.Set(clock.Never)
	for {
		select {
		case m, ok := <-orders:
			if !ok {
				orders = nil
				if k.group == 0 {
					removeFencingFile()
					return 0
				}
				k.stop(Orphaned)
				break
			}
			if !k.obey(m) {
				return 0
			}
		case <-k.deaths:
		case <-timer.C():
		}
		if k.group == 0 {
			continue
		}
		term, kill := k.watchdog.due(k.clock.Now())
		if term {
			k.terminate()
		}
		if kill {
			k.killAll()
		}
		if k.reap() {
			return k.report(orders)
		}
		timer.Set(k.watchdog.next())
	}
}

// obey carries out a message, and reports whether the keeper is still needed.
func (k *keeper) obey(m Message) bool {
	switch m.Kind {
	case Start:
		return k.start(m)
	case Extend:
		k.watchdog.extend(m.Deadline)
		_ = k.conn.send(Message{Kind: Extended, Deadline: k.watchdog.deadline})
	case Signal:
		if k.group != 0 && !k.exited {
			k.forward(syscall.Signal(m.Signal))
		}
	case Stop:
		k.stop(Asked)
	case Kill:
		k.watchdog.kill(k.clock.Now(), Forced)
	case leave:
		return k.group != 0
	}
	return true
}

// forward sends a signal to the command's group. After one that ends processes it sends
// SIGCONT, as shells do: a stopped process would not get the signal.
func (k *keeper) forward(sig syscall.Signal) {
	_ = syscall.Kill(-k.group, sig)
	switch sig {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		_ = syscall.Kill(-k.group, syscall.SIGCONT)
	}
}

func (k *keeper) start(m Message) bool {
	k.watchdog, k.close = watchdog{grace: m.Grace, deadline: m.Deadline}, m.Close
	if k.clock.Now() >= k.watchdog.next() {
		_ = k.conn.send(Message{Kind: Ended, Reason: Expired}) // the command was not started
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
		_ = k.conn.send(failed(err))
		return false
	}
	k.group = pid
	_ = k.conn.send(Message{Kind: Started, PID: pid})
	return true
}

func failed(err error) Message {
	errno := syscall.EIO
	_ = errors.As(err, &errno)
	return Message{Kind: Failed, Errno: int(errno)}
}

// environment adds the variables of the term to those that the supervisor has set.
func environment(m Message) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == EnvToken || name == EnvSession || name == EnvDeployment // of an outer exec
	})
	return append(env, EnvToken+"="+m.Token, EnvSession+"="+m.Session, EnvDeployment+"="+m.Deployment)
}

// stop sends SIGTERM, once.
func (k *keeper) stop(reason Reason) {
	if k.watchdog.stop(k.clock.Now(), reason) && k.watchdog.grace > 0 {
		k.terminate()
	}
}

func (k *keeper) terminate() {
	k.signalTree(syscall.SIGTERM)
	k.signalTree(syscall.SIGCONT)
}

func (k *keeper) signalTree(sig syscall.Signal) { signalTree(k.group, descendants(nil), sig) }

// reap collects processes that have ended, and reports whether none is left. The kernel's
// answer covers our children and the orphans that we adopted.
func (k *keeper) reap() bool {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.ECHILD):
			return groupGone(k.group)
		case err != nil || pid == 0:
			return false
		case pid == k.group && ws.Stopped():
			_ = k.conn.send(Message{Kind: Stopped, Signal: int(ws.StopSignal())})
		case pid == k.group:
			k.exited, k.status = true, ws
			if k.watchdog.reason == "" {
				k.left = len(slices.DeleteFunc(descendants(nil), func(p proc) bool { return p.dead }))
				k.stop(Exited)
			}
		}
	}
}

// killAll kills until no process is left, however long that takes.
func (k *keeper) killAll() {
	pause := time.Millisecond
	for round := 1; ; round++ {
		k.signalTree(syscall.SIGKILL)
		if k.reap() {
			return
		}
		if round == stuckAfter {
			_ = k.conn.send(Message{Kind: Stuck, Left: len(descendants(nil))})
		}
		select {
		case <-k.deaths:
		case <-time.After(pause):
			pause = min(2*pause, maxKillPause)
		}
	}
}

// report tells the supervisor how the command ended, and waits until it has read that. It waits
// for a supervisor that hangs. No process of the command is left. orders is nil if the connection
// has ended.
func (k *keeper) report(orders <-chan Message) int {
	err := k.conn.sendBlocking(Message{Kind: Ended, Reason: k.watchdog.reason, Status: uint32(k.status), Left: k.left})
	late := time.After(ResponseTime)
	for orders != nil && err == nil {
		select {
		case m, ok := <-orders:
			if m.Kind == leave {
				return 0
			}
			if !ok {
				orders = nil
			}
		case <-late:
			return 0
		}
	}
	removeFencingFile()
	k.closeSession()
	return 1
}

// closeSession closes the session of a supervisor that has died, after the last process of the
// command. The end of the connection does not prove the death, the pidfd does.
func (k *keeper) closeSession() {
	if k.close == nil || !WholeTree || !died(k.supervisor, k.close.TTL) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.close.TTL)
	defer cancel()
	if err := k.end(ctx, *k.close); err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "tenure: the process of `tenure exec` was killed, and its session cannot be closed: the group is free when it expires, within %v: %v\n", k.close.TTL, err)
	}
}

// removeFencingFile removes the file of a supervisor that is gone.
func removeFencingFile() { FencingFile{os.Getenv(EnvFencingFile)}.Remove() }
