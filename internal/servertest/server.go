package servertest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// Server is one server, with its data. Its methods fail the test when they cannot
// do what they say.
type Server struct {
	t       testing.TB
	name    string
	program string
	args    []string
	env     []string
	addr    string
	url     string
	ready   func() error // nil: it serves

	mu  sync.Mutex
	run *process // nil: not running
}

// Option changes how a server is started.
type Option func(*options)

type options struct{ args []string }

// Args adds arguments of the server's program.
func Args(args ...string) Option {
	return func(o *options) { o.args = append(o.args, args...) }
}

func collect(opts []Option) (o options) {
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// readyWithin is generous: machines that run all tests at once are slow.
const readyWithin = 60 * time.Second

// Addr returns host:port. It stays the same across restarts.
func (s *Server) Addr() string { return s.addr }

// URL returns what clients connect to.
func (s *Server) URL() string { return s.url }

// PID returns the number of the running process, 0 if there is none.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		return 0
	}
	return s.run.Cmd.Process.Pid
}

// Start starts the server on its data and waits until it serves.
func (s *Server) Start() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatalf("start %s: %v", s.name, err)
	}
}

// Kill ends the server at once (SIGKILL).
func (s *Server) Kill() {
	s.t.Helper()
	p := s.running("kill")
	p.Kill()
	s.forget()
}

// Restart kills the server and starts it again on the same data.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

func (s *Server) running(verb string) *process {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		s.t.Fatalf("%s %s: it is not running", verb, s.name)
	}
	select {
	case <-s.run.Exited:
		s.t.Fatalf("%s %s: it has ended by itself: %v\n%s", verb, s.name, s.run.Err, s.run.out)
	default:
	}
	return s.run
}

func (s *Server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = nil
}

// end is what cleanup does.
func (s *Server) end() {
	s.mu.Lock()
	p := s.run
	s.run = nil
	s.mu.Unlock()
	if p != nil {
		p.Kill()
	}
}

// process is one life of a server.
type process struct {
	*child.Process
	out *child.Tail
}

// start tries until it serves: what a killed server leaves behind (its children,
// its shared memory) takes a moment to go.
func (s *Server) start() error {
	var err error
	for deadline := time.Now().Add(readyWithin); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var p *process
		p, err = s.launch()
		if err != nil {
			return err
		}
		if err = s.await(p, deadline); err == nil {
			s.mu.Lock()
			s.run = p
			s.mu.Unlock()
			return nil
		}
		p.Kill()
		err = fmt.Errorf("%w\n%s", err, p.out)
	}
	return err
}

func (s *Server) await(p *process, deadline time.Time) error {
	for {
		err := s.ready()
		select {
		case <-p.Exited:
			return fmt.Errorf("it ended before it was ready: %w", p.Err)
		default:
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready in time: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *Server) launch() (*process, error) {
	cmd := exec.Command(s.program, s.args...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Dir = os.TempDir()
	out := &child.Tail{}
	cmd.Stdout, cmd.Stderr = out, out
	// Children of a killed server may hold its output open.
	cmd.WaitDelay = 100 * time.Millisecond
	confine(cmd)
	p, err := child.Start(cmd, nil)
	return &process{p, out}, err
}

// serves dials, sends and wants the beginning of an answer.
func serves(addr string, say, want []byte) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(say); err != nil {
		return err
	}
	got := make([]byte, len(want))
	n, err := conn.Read(got)
	if err != nil {
		return err
	}
	if !bytes.Equal(got[:n], want) {
		return fmt.Errorf("it answers %q", got[:n])
	}
	return nil
}
