package enginetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// Member is one process of an engine. Its methods fail the test if they fail.
type Member struct {
	t       testing.TB
	program string
	name    string
	client  string // host:port
	peer    string
	dataDir string
	args    []string

	mu  sync.Mutex
	run *process // nil: not running
}

// Name returns the member's name.
func (m *Member) Name() string { return m.name }

// Endpoint returns the URL for clients. It stays the same across restarts.
func (m *Member) Endpoint() string { return "http://" + m.client }

// Addr returns host:port for clients.
func (m *Member) Addr() string { return m.client }

// DataDir returns the member's directory.
func (m *Member) DataDir() string { return m.dataDir }

// PID returns the pid of the running process, 0 if there is none.
func (m *Member) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run == nil {
		return 0
	}
	return m.run.Cmd.Process.Pid
}

// Pause stops the process (SIGSTOP): connections stay open and nobody answers.
func (m *Member) Pause() {
	m.t.Helper()
	p := m.running("pause")
	if err := child.Pause(p.Cmd.Process); err != nil {
		m.t.Fatalf("pause %s: %v", m.name, err)
	}
	// The signal is asynchronous. Not every system shows that it has arrived.
	for deadline := time.Now().Add(5 * time.Second); !child.Paused(p.Cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("pause %s: process %d still runs", m.name, p.Cmd.Process.Pid)
		}
	}
}

// Resume resumes a paused process.
func (m *Member) Resume() {
	m.t.Helper()
	p := m.running("resume")
	if err := child.Resume(p.Cmd.Process); err != nil {
		m.t.Fatalf("resume %s: %v", m.name, err)
	}
}

// Kill kills the process (SIGKILL), paused or not.
func (m *Member) Kill() {
	m.t.Helper()
	p := m.running("kill")
	p.Kill()
	m.forget()
}

// Stop asks the process to exit (SIGTERM) and waits for that.
func (m *Member) Stop() {
	m.t.Helper()
	p := m.running("stop")
	if err := child.Interrupt(p.Cmd.Process); err != nil {
		m.t.Fatalf("stop %s: %v", m.name, err)
	}
	select {
	case <-p.Exited:
	case <-time.After(20 * time.Second):
		p.Kill()
		m.t.Errorf("stop %s: still running after 20s\n%s", m.name, p.stderr)
	}
	if code := p.Cmd.ProcessState.ExitCode(); p.Err != nil && code > 0 {
		m.t.Errorf("stop %s: exit code %d\n%s", m.name, code, p.stderr)
	}
	m.forget()
}

// Restart stops the process if it runs, starts it on the same data and waits until it is
// ready. A cluster needs a quorum for that: Engine.Start starts several at once.
func (m *Member) Restart() {
	m.t.Helper()
	if m.PID() != 0 {
		m.Stop()
	}
	if err := startAll(m.t, []*Member{m}); err != nil {
		m.t.Fatal(err)
	}
}

// Log returns the standard error of the process.
func (m *Member) Log() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run == nil {
		return ""
	}
	return m.run.stderr.String()
}

func (m *Member) running(verb string) *process {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run == nil {
		m.t.Fatalf("%s %s: it is not running", verb, m.name)
	}
	select {
	case <-m.run.Exited:
		m.t.Fatalf("%s %s: it has ended: %v\n%s", verb, m.name, m.run.Err, m.run.stderr)
	default:
	}
	return m.run
}

func (m *Member) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run != nil {
		_ = m.run.stdin.Close()
		m.run = nil
	}
}

// process is one run of a member.
type process struct {
	*child.Process
	stdin  io.Closer
	stderr *child.Tail
	ready  chan readyLine // receives once
}

type readyLine struct {
	Name      string   `json:"name"`
	Endpoints []string `json:"endpoints"`
	DataDir   string   `json:"data_dir"`
}

func (m *Member) start() error {
	cmd := exec.Command(m.program, append([]string{
		"-until-eof", "-name", m.name, "-data-dir", m.dataDir, "-client", m.client, "-peer", m.peer,
	}, m.args...)...)
	cmd.Env = cleanEnv()
	child.DieWithParent(cmd)
	p := &process{stderr: &child.Tail{}, ready: make(chan readyLine, 1)}
	cmd.Stderr = p.stderr
	cmd.WaitDelay = 5 * time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.stdin = stdin
	// Another test binary may be replacing the program.
	unlock, err := child.LockFile(cmd.Path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	p.Process, err = child.Start(cmd, func() {
		out := bufio.NewScanner(stdout)
		for out.Scan() {
			var line readyLine
			if json.Unmarshal(out.Bytes(), &line) == nil && line.Name == m.name {
				p.ready <- line
				break
			}
		}
		_, _ = io.Copy(io.Discard, stdout)
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.run = p
	m.mu.Unlock()
	return nil
}

// cleanEnv is the environment without the configuration of other engines.
func cleanEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "TENURE_ENGINE_") })
}

func (m *Member) awaitReady(deadline <-chan time.Time) error {
	m.mu.Lock()
	p := m.run
	m.mu.Unlock()
	select {
	case <-p.ready:
		return nil
	case <-p.Exited:
		return fmt.Errorf("member %s ended before it was ready: %w\n%s", m.name, p.Err, p.stderr)
	case <-deadline:
		return fmt.Errorf("member %s was not ready in time\n%s", m.name, p.stderr)
	}
}
