package pulse

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/store"
)

// socketEnv names the socket of a keeper that Start has started. It is not the TENURE_KEEPER_SOCKET
// of `tenure keeper`, which a host may set for all programs.
const socketEnv = "TENURE_PULSE_SOCKET"

// mainCalled: if the program does not call Main, Start would start a second copy of it.
var mainCalled atomic.Bool

// Main turns this process into a keeper, and does not return, if Start has started it as one.
// Otherwise it does nothing. Call it first in main. The keeper opens the store with open, because
// a dead process cannot lend it a connection.
func Main(open func(context.Context) (store.Store, error)) {
	mainCalled.Store(true)
	socket := os.Getenv(socketEnv)
	if socket == "" {
		return
	}
	_ = os.Unsetenv(socketEnv)
	// The keeper must outlive its process, but stopping a service signals both.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := keep(socket, open); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func keep(socket string, open func(context.Context) (store.Store, error)) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	owner := os.NewFile(3, "owner")
	gone := make(chan struct{})
	var listening atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, owner) // ends when the process is gone, or runs another program
		if !listening.Load() {
			os.Exit(0) // the store may never answer, and nothing is registered
		}
		close(gone)
	}()
	st, err := open(ctx)
	if err != nil {
		return fmt.Errorf("pulse: the keeper cannot open the store: %w", err)
	}
	l, err := Listen(socket)
	if err != nil {
		return err
	}
	listening.Store(true)
	go func() {
		<-gone
		_ = l.Close()
	}()
	return NewKeeper(st, nil).Serve(ctx, l)
}

// Start starts a keeper for this process: the same program again, whose Main becomes the keeper.
// A keeper that was killed is started again. A nil log is slog.Default().
func Start(log *slog.Logger) (*Client, error) {
	if log == nil {
		log = slog.Default()
	}
	if !mainCalled.Load() {
		return nil, errors.New("pulse: Start needs a call of Main at the beginning of the program")
	}
	fd, err := openPidfd(os.Getpid())
	if err != nil {
		return nil, err
	}
	_ = fd.Close()
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pulse: %w", err)
	}
	socket := "@tenure-keeper-" + rand.Text()
	child, err := startChild(socket, theirs)
	if err != nil {
		_, _ = theirs.Close(), ours.Close()
		return nil, err
	}
	c := Dial(socket, log)
	go func() {
		defer func() { _, _ = theirs.Close(), ours.Close() }()
		for pause := time.Second; ; {
			began := time.Now()
			ended := make(chan error, 1)
			go func() { ended <- child.Wait() }()
			select {
			case <-c.done:
				return // the keeper ends when this process does
			case err := <-ended:
				log.Warn("the keeper has ended; another one is started", "error", err)
			}
			if time.Since(began) > time.Minute {
				pause = time.Second
			}
			for {
				select {
				case <-c.done:
					return
				case <-time.After(pause):
					pause = min(2*pause, time.Minute)
				}
				if child, err = startChild(socket, theirs); err == nil {
					break
				}
				log.Warn("no keeper could be started", "error", err)
			}
		}
	}()
	return c, nil
}

func startChild(socket string, owner *os.File) (*exec.Cmd, error) {
	cmd := &exec.Cmd{
		Path:        "/proc/self/exe", // the file may have been replaced since this process began
		Args:        os.Args[:1],
		Env:         append(os.Environ(), socketEnv+"="+socket),
		Stderr:      os.Stderr,
		ExtraFiles:  []*os.File{owner},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}, // so that signals to the process group do not reach the keeper
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("pulse: start the keeper: %w", err)
	}
	return cmd, nil
}

// trusted refuses a keeper of another user on a socket without a file: while the keeper is gone,
// everybody can listen on that name, and would get the instance, which is secret.
func trusted(conn net.Conn, path string) error {
	if path[0] != '@' {
		return nil
	}
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return fmt.Errorf("pulse: %w", err)
	}
	var peer *syscall.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) {
		peer, serr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || serr != nil {
		return fmt.Errorf("pulse: who is the keeper: %w", errors.Join(err, serr))
	}
	if uid := int(peer.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("pulse: user %d listens on %s: a keeper without a file must be this user's or root's", uid, path)
	}
	return nil
}
