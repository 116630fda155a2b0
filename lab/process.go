package lab

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/labapi"
)

// process is one program of a fleet. It keeps its address when it is restarted.
type process struct {
	id   string
	path string
	args []string
	log  string // file for its standard error
	// launch, if given, starts it instead of path: a server that is not a program of ours.
	launch func() (*child.Process, error)

	mu    sync.Mutex
	run   *child.Process // nil: not running
	stdin io.Closer
	url   string
	tail  *child.Tail
}

// said is the line that a program prints when it is ready. The engine's has endpoints.
type said struct {
	URL       string   `json:"url"`
	Endpoints []string `json:"endpoints"`
	PID       int      `json:"pid"`
}

// start starts the program and waits until it is ready.
func (p *process) start(ctx context.Context) error {
	if p.launch != nil {
		run, err := p.launch()
		if err != nil {
			return fmt.Errorf("%s: %w", p.id, err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.run, p.stdin = run, io.NopCloser(nil)
		return nil
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	tail := &child.Tail{}
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = ownEnvironment()
	cmd.Stderr = io.MultiWriter(log, tail)
	cmd.WaitDelay = 5 * time.Second
	child.DieWithParent(cmd)
	ownGroup(cmd)
	stdin, ierr := cmd.StdinPipe()
	stdout, oerr := cmd.StdoutPipe()
	if err := errors.Join(ierr, oerr); err != nil {
		return errors.Join(err, log.Close())
	}
	unlock, err := whole(filepath.Dir(p.path))
	if err != nil {
		return errors.Join(err, log.Close())
	}
	ready := make(chan said, 1)
	run, err := child.Start(cmd, func() {
		out := bufio.NewScanner(stdout)
		for out.Scan() {
			var s said
			if json.Unmarshal(out.Bytes(), &s) == nil && s.PID != 0 {
				ready <- s
				break
			}
		}
		_, _ = io.Copy(io.Discard, stdout)
	})
	unlock()
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", p.id, err), log.Close())
	}
	go func() {
		<-run.Exited
		_ = log.Close()
	}()
	p.mu.Lock()
	p.run, p.stdin, p.tail = run, stdin, tail
	p.mu.Unlock()
	select {
	case s := <-ready:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.url = s.URL
		if len(s.Endpoints) > 0 {
			p.url = s.Endpoints[0]
		}
		return nil
	case <-run.Exited:
		return fmt.Errorf("%s ended before it was ready (%w)\n%s", p.id, run.Err, indent(tail.String()))
	case <-ctx.Done():
		run.Kill()
		return fmt.Errorf("%s was not ready in time: %w\n%s", p.id, context.Cause(ctx), indent(tail.String()))
	}
}

// ownEnvironment is the environment without the configuration of other Tenure programs.
func ownEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "TENURE_") })
}

func (p *process) running() (*child.Process, io.Closer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run, p.stdin
}

func (p *process) pid() int {
	if run, _ := p.running(); run != nil {
		return run.Cmd.Process.Pid
	}
	return 0
}

func (p *process) at() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.url
}

func (p *process) inFile() labapi.Process { return labapi.Process{URL: p.at(), PID: p.pid()} }

// stop asks the process to exit, and kills it after stopTime. A paused process is resumed
// first, because it could not handle the signal.
func (p *process) stop() {
	run, stdin := p.running()
	if run == nil {
		return
	}
	_ = child.Interrupt(run.Cmd.Process)
	_ = child.Resume(run.Cmd.Process)
	select {
	case <-run.Exited:
	case <-time.After(stopTime):
		run.Kill()
	}
	_ = stdin.Close()
}

// supervise waits for the end of a program, reports it, and restarts the program if configured.
func (f *Fleet) supervise(p *process) {
	for {
		run, _ := p.running()
		pid := p.pid()
		select {
		case <-f.life.Done():
			return
		case <-run.Exited:
		}
		what := "ended"
		if run.Err != nil {
			what = "ended: " + run.Err.Error()
		}
		if !f.cfg.Restart {
			f.cfg.Event(fmt.Sprintf("%s (pid %d) %s", p.id, pid, what))
			return
		}
		f.cfg.Event(fmt.Sprintf("%s (pid %d) %s; restarting it in %v", p.id, pid, what, f.cfg.RestartWait))
		for err := errors.New("not restarted yet"); err != nil; {
			select {
			case <-f.life.Done():
				return
			case <-time.After(f.cfg.RestartWait):
			}
			ctx, cancel := context.WithTimeoutCause(f.life, startTime, errStart)
			if err = p.start(ctx); err != nil {
				f.cfg.Event(err.Error())
			}
			cancel()
		}
		f.cfg.Event(fmt.Sprintf("%s is back (pid %d)", p.id, p.pid()))
		if err := f.write(); err != nil {
			f.cfg.Event(err.Error())
		}
	}
}

// indent returns the last lines of a text, indented.
func indent(s string) string {
	const most = 12
	lines := strings.Split(cmp.Or(strings.TrimSpace(s), "(no output)"), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-most):], "\n  ")
}
