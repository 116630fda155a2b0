package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// failDisk makes the ledger's disk fail: strace answers its system calls instead of the
// kernel. Syncs end with an I/O error, which loses nothing and promises nothing, or writes
// for want of space. It has an effect when such calls were made. It needs strace and the
// permission to trace the process; when strace ends, however it ends, the process has its
// disk back.
func failDisk(calls, with, what string) func(*Fleet, Spec, []Target) (*procedure, error) {
	return func(f *Fleet, s Spec, targets []Target) (*procedure, error) {
		path, err := exec.LookPath("strace")
		if err != nil {
			return nil, fmt.Errorf("%w: the disk is made to fail by strace, which is not installed: %w", ErrCannot, err)
		}
		t := &tracer{fleet: f, target: targets[0], args: []string{path, "-f", "-q", "-e", "trace=" + calls, "-e", "inject=" + calls + ":error=" + with}}
		return &procedure{
			healed: "has its disk back", heal: t.detach,
			set: func(ctx context.Context) (string, clock.Instant, error) {
				begun := f.host.Now()
				return fmt.Sprintf("its %s fail (%s) for %v", what, with, s.For), begun, t.attach(ctx)
			},
			felt: func(_ context.Context, healed bool) string {
				if !healed || t.hits == 0 {
					return ""
				}
				return fmt.Sprintf("%s that failed (%s): %d", what, with, t.hits)
			},
		}, nil
	}
}

// tracer is a strace on a process.
type tracer struct {
	fleet  *Fleet
	target Target
	args   []string

	cmd    *exec.Cmd // nil: it was not started
	exited chan struct{}
	said   bytes.Buffer // to be read when it has exited
	dir    string
	hits   int
}

func (t *tracer) log() string { return filepath.Join(t.dir, "calls") }

func (t *tracer) attach(ctx context.Context) error {
	p, err := t.fleet.handle(ctx, t.target)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	if t.dir, err = os.MkdirTemp("", "tenure-chaos-"); err != nil {
		return err
	}
	cmd := exec.Command(t.args[0], append(t.args[1:], "-o", t.log(), "-p", fmt.Sprint(t.target.PID))...)
	cmd.Stderr = &t.said
	endWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	t.cmd, t.exited = cmd, make(chan struct{})
	go func() {
		defer close(t.exited)
		_ = cmd.Wait() // what went wrong it has said
	}()
	const bound = 10 * time.Second
	for end := t.fleet.host.Now().Add(bound); ; {
		if n, all := traced(t.target.PID); n == all && all > 0 {
			return nil
		}
		select {
		case <-t.exited:
			return fmt.Errorf("%w: strace may not trace %s (pid %d); root may, and so may its user where kernel.yama.ptrace_scope is 0: %s", ErrCannot, t.target.ID, t.target.PID, bytes.TrimSpace(t.said.Bytes()))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollEvery / 4):
		}
		if t.fleet.host.Now() > end {
			return fmt.Errorf("%w: strace has not attached to %s (pid %d) within %v", ErrCannot, t.target.ID, t.target.PID, bound)
		}
	}
}

// detach gives the process its disk back, and counts what was done to it.
func (t *tracer) detach(ctx context.Context) error {
	if t.cmd == nil {
		return os.RemoveAll(t.dir)
	}
	_ = terminate(t.cmd.Process) // it may have ended already
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
	t.hits = bytes.Count(log, []byte("(INJECTED)"))
	if n, _ := traced(t.target.PID); n > 0 {
		return fmt.Errorf("pid %d is still traced", t.target.PID)
	}
	return os.RemoveAll(t.dir)
}
