package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// process is one program of a fleet. It keeps its address when it is started again.
type process struct {
	id   string
	path string
	args []string
	log  string // file for its standard error

	mu    sync.Mutex
	run   *child.Process // nil: not running
	stdin io.Closer
	url   string
	tail  *child.Tail
}

// said is the line that a program prints when it can be called. The engine's has
// endpoints.
type said struct {
	URL       string   `json:"url"`
	Endpoints []string `json:"endpoints"`
	PID       int      `json:"pid"`
}

// start starts the program and waits until it can be called.
func (p *process) start(ctx context.Context) error {
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
		return fmt.Errorf("%s ended before it could be called (%w)\n%s", p.id, run.Err, indent(tail.String()))
	case <-ctx.Done():
		run.Kill()
		return fmt.Errorf("%s could not be called in time: %w\n%s", p.id, context.Cause(ctx), indent(tail.String()))
	}
}

// ownEnvironment keeps what is set for other programs of ours out of the fleet.
func ownEnvironment() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TENURE_") {
			env = append(env, kv)
		}
	}
	return env
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

// stop asks it to end, and ends it when grace has passed. A paused process is let go
// on, or it could not hear.
func (p *process) stop(grace time.Duration) {
	run, stdin := p.running()
	if run == nil {
		return
	}
	_ = child.Interrupt(run.Cmd.Process)
	_ = child.Resume(run.Cmd.Process)
	select {
	case <-run.Exited:
	case <-time.After(grace):
		run.Kill()
	}
	_ = stdin.Close()
}

func indent(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return "  (it said nothing)"
	}
	const most = 12
	lines := strings.Split(s, "\n")
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return "  " + strings.Join(lines, "\n  ")
}
