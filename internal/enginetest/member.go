package enginetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// Member is one process of an engine. Its methods fail the test when they cannot
// do what they say.
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

// PID returns the number of the running process, 0 if there is none.
func (m *Member) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run == nil {
		return 0
	}
	return m.run.Cmd.Process.Pid
}

// Pause stops the process in its tracks (SIGSTOP): connections stay open and
// nobody answers.
func (m *Member) Pause() {
	m.t.Helper()
	p := m.running("pause")
	if err := child.Pause(p.Cmd.Process); err != nil {
		m.t.Fatalf("pause %s: %v", m.name, err)
	}
	// The signal is asynchronous. Where it cannot be seen to have arrived it is
	// taken for granted.
	for deadline := time.Now().Add(5 * time.Second); !child.Paused(p.Cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("pause %s: process %d still runs", m.name, p.Cmd.Process.Pid)
		}
	}
}

// Resume lets a paused process go on.
func (m *Member) Resume() {
	m.t.Helper()
	p := m.running("resume")
	if err := child.Resume(p.Cmd.Process); err != nil {
		m.t.Fatalf("resume %s: %v", m.name, err)
	}
}

// Kill ends the process at once (SIGKILL), paused or not.
func (m *Member) Kill() {
	m.t.Helper()
	p := m.running("kill")
	_ = p.Cmd.Process.Kill()
	<-p.Exited
	m.forget()
}

// Stop ends the process in order (SIGTERM).
func (m *Member) Stop() {
	m.t.Helper()
	p := m.running("stop")
	if err := child.Interrupt(p.Cmd.Process); err != nil {
		m.t.Fatalf("stop %s: %v", m.name, err)
	}
	select {
	case <-p.Exited:
	case <-time.After(20 * time.Second):
		_ = p.Cmd.Process.Kill()
		<-p.Exited
		m.t.Errorf("stop %s: still running after 20s\n%s", m.name, p.stderr)
	}
	if code := p.Cmd.ProcessState.ExitCode(); p.Err != nil && code > 0 {
		m.t.Errorf("stop %s: exit code %d\n%s", m.name, code, p.stderr)
	}
	m.forget()
}

// Restart ends the process in order if it runs, starts it again on the same data
// and waits until it serves. In a cluster that takes a quorum: see Engine.Start
// for several at once.
func (m *Member) Restart() {
	m.t.Helper()
	if m.PID() != 0 {
		m.Stop()
	}
	if err := startAll(m.t, []*Member{m}); err != nil {
		m.t.Fatal(err)
	}
}

// Log returns what the process has said on standard error.
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
		m.t.Fatalf("%s %s: it has ended by itself: %v\n%s", verb, m.name, m.run.Err, m.run.stderr)
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

// process is one life of a member.
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
	// Another test binary must not replace the program meanwhile.
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

// cleanEnv keeps what is set for engines elsewhere out of the tests.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TENURE_ENGINE_") {
			env = append(env, kv)
		}
	}
	return env
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
