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
	"github.com/tenurehq/tenure/internal/child"
)

// failDisk makes the ledger's disk fail: strace answers its system calls instead of the
// kernel. Syncs fail with an I/O error, or writes with no space left. It has an effect when
// such calls were made. It needs strace and the permission to trace the process. When strace
// ends, for whatever reason, the disk works again.
func failDisk(calls, with, what string) func(*Fleet, Spec, []Target) (*procedure, error) {
	return func(f *Fleet, s Spec, targets []Target) (*procedure, error) {
		path, err := exec.LookPath("strace")
		if err != nil {
			return nil, fmt.Errorf("%w: install strace, which makes the disk fail: %w", ErrCannot, err)
		}
		t := &tracer{fleet: f, target: targets[0], args: []string{path, "-f", "-q", "-e", "trace=" + calls, "-e", "inject=" + calls + ":error=" + with}}
		return &procedure{
			healed: "has its disk back", heal: t.detach,
			set: func(ctx context.Context) (string, clock.Instant, error) {
				begun := now()
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

// tracer is strace attached to a process.
type tracer struct {
	fleet  *Fleet
	target Target
	args   []string

	cmd    *exec.Cmd // nil: it was not started
	exited chan struct{}
	stderr bytes.Buffer // complete when it has exited
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
	cmd.Stderr = &t.stderr
	endWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	t.cmd, t.exited = cmd, make(chan struct{})
	go func() {
		defer close(t.exited)
		_ = cmd.Wait() // its standard error says what went wrong
	}()
	const bound = 10 * time.Second
	ok := poll(ctx, bound, pollEvery/4, func() bool {
		select {
		case <-t.exited:
			err = fmt.Errorf("%w: strace may not trace %s (pid %d); root may, and its user may if kernel.yama.ptrace_scope is 0: %s", ErrCannot, t.target.ID, t.target.PID, bytes.TrimSpace(t.stderr.Bytes()))
		default:
		}
		n, all := traced(t.target.PID)
		return err != nil || n == all && all > 0
	})
	if c := context.Cause(ctx); c != nil && !ok {
		return c
	} else if !ok {
		return fmt.Errorf("%w: strace did not attach to %s (pid %d) within %v", ErrCannot, t.target.ID, t.target.PID, bound)
	}
	return err
}

// detach gives the process its disk back, and counts the calls that failed.
func (t *tracer) detach(ctx context.Context) error {
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
	t.hits = bytes.Count(log, []byte("(INJECTED)"))
	if n, _ := traced(t.target.PID); n > 0 {
		return fmt.Errorf("pid %d is still traced", t.target.PID)
	}
	return os.RemoveAll(t.dir)
}
