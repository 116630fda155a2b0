package pulse

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/store"
)

// socketEnv names the socket of a keeper that Start has started.
const socketEnv = "TENURE_KEEPER_SOCKET"

// Main turns this process into a keeper, and does not return, if Start has started it as one.
// Otherwise it does nothing. Call it first in main. The keeper opens the store with open, because
// a dead process cannot lend it a connection.
func Main(open func(context.Context) (store.Store, error)) {
	socket := os.Getenv(socketEnv)
	if socket == "" {
		return
	}
	_ = os.Unsetenv(socketEnv)
	// It ends when its process has died, and not before: stopping a service signals both.
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
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, owner) // ends when the process is gone, or runs another program
	}()
	st, err := open(ctx)
	if err != nil {
		return fmt.Errorf("pulse: the keeper cannot open the store: %w", err)
	}
	l, err := Listen(socket)
	if err != nil {
		return err
	}
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
		for {
			ended := make(chan error, 1)
			go func() { ended <- child.Wait() }()
			select {
			case <-c.done:
				return // the child ends with this process
			case err := <-ended:
				log.Warn("the keeper has ended; another one is started", "error", err)
			}
			for {
				select {
				case <-c.done:
					return
				case <-time.After(time.Second):
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
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}, // signals for the process's group are not for the keeper
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("pulse: start the keeper: %w", err)
	}
	return cmd, nil
}
