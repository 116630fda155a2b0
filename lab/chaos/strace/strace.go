// Package strace makes system calls of a process of a fleet fail: strace answers them
// instead of the kernel.
//
// # Limitations
//
// It needs the program strace and the permission to trace the process.
package strace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/chaos/process"
)

// Tracer is strace attached to a process. Hits counts the calls that failed, once it is
// detached.
type Tracer struct {
	Hits int

	fleet  *inspect.Fleet
	target inspect.Target
	args   []string

	cmd    *exec.Cmd // nil: it was not started
	exited chan struct{}
	stderr bytes.Buffer // complete when it has exited
	dir    string
}

// New prepares the failure of system calls with an error, such as "fsync,fdatasync" with EIO.
func New(f *inspect.Fleet, target inspect.Target, calls, with string) (*Tracer, error) {
	path, err := exec.LookPath("strace")
	if err != nil {
		return nil, fmt.Errorf("%w: install strace, which makes the disk fail: %w", inspect.ErrCannot, err)
	}
	return &Tracer{fleet: f, target: target, args: []string{path, "-f", "-q", "-e", "trace=" + calls, "-e", "inject=" + calls + ":error=" + with}}, nil
}

func (t *Tracer) log() string { return filepath.Join(t.dir, "calls") }

// Attach makes the calls fail. It returns when all threads are traced.
func (t *Tracer) Attach(ctx context.Context) error {
	p, err := t.fleet.Handle(ctx, t.target)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	if t.dir, err = os.MkdirTemp("", "tenure-chaos-"); err != nil {
		return err
	}
	cmd := exec.Command(t.args[0], append(t.args[1:], "-o", t.log(), "-p", fmt.Sprint(t.target.PID))...)
	cmd.Stderr = &t.stderr
	process.EndWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	t.cmd, t.exited = cmd, make(chan struct{})
	go func() {
		defer close(t.exited)
		_ = cmd.Wait() // its standard error says what went wrong
	}()
	const bound = 10 * time.Second
	ok := inspect.Poll(ctx, bound, inspect.PollEvery/4, func() bool {
		select {
		case <-t.exited:
			err = fmt.Errorf("%w: strace may not trace %s (pid %d); root may, and its user may if kernel.yama.ptrace_scope is 0: %s", inspect.ErrCannot, t.target.ID, t.target.PID, bytes.TrimSpace(t.stderr.Bytes()))
		default:
		}
		n, all := process.Traced(t.target.PID)
		return err != nil || n == all && all > 0
	})
	if c := context.Cause(ctx); c != nil && !ok {
		return c
	} else if !ok {
		return fmt.Errorf("%w: strace did not attach to %s (pid %d) within %v", inspect.ErrCannot, t.target.ID, t.target.PID, bound)
	}
	return err
}

// Detach lets the calls through again. It may be called before Attach.
func (t *Tracer) Detach(ctx context.Context) error {
	if t.cmd == nil {
		return os.RemoveAll(t.dir)
	}
	_ = child.Interrupt(t.cmd.Process) // it may have ended already
	select {
	case <-t.exited:
	case <-ctx.Done():
		_ = t.cmd.Process.Kill()
		<-t.exited
	}
	log, err := os.ReadFile(t.log())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	t.Hits = bytes.Count(log, []byte("(INJECTED)"))
	if n, _ := process.Traced(t.target.PID); n > 0 {
		return fmt.Errorf("pid %d is still traced", t.target.PID)
	}
	return os.RemoveAll(t.dir)
}
