package servertest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// Server is one server with its data. Its methods fail the test if they fail.
type Server struct {
	t       testing.TB
	name    string
	program string
	args    []string
	env     []string
	addr    string
	dns     string // of Consul
	url     string
	ready   func() error // returns nil when it is ready
	own     bool         // runs as the user of the test

	mu  sync.Mutex
	run *process // nil: not running
}

// Option changes how a server is started.
type Option func(*options)

type options struct {
	args []string
	tls  bool
}

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

// readyWithin is long, since a machine that runs all tests at once is slow.
const readyWithin = 60 * time.Second

// Addr returns host:port. It stays the same across restarts.
func (s *Server) Addr() string { return s.addr }

// DNS returns host:port of the DNS server of Consul.
func (s *Server) DNS() string { return s.dns }

// URL returns the URL for clients.
func (s *Server) URL() string { return s.url }

// PID returns the pid of the running process, 0 if there is none.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		return 0
	}
	return s.run.Cmd.Process.Pid
}

// Start starts the server on its data and waits until it is ready.
func (s *Server) Start() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatalf("start %s: %v", s.name, err)
	}
}

// Kill kills the server (SIGKILL).
func (s *Server) Kill() {
	s.t.Helper()
	s.running("kill")
	s.end()
}

// Restart kills the server and starts it on the same data.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// running fails the test if the server does not run.
func (s *Server) running(verb string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		s.t.Fatalf("%s %s: it is not running", verb, s.name)
	}
	select {
	case <-s.run.Exited:
		s.t.Fatalf("%s %s: it has ended: %v\n%s", verb, s.name, s.run.Err, s.run.out)
	default:
	}
}

// end kills the server if it runs.
func (s *Server) end() {
	s.mu.Lock()
	p := s.run
	s.run = nil
	s.mu.Unlock()
	if p != nil {
		p.Kill()
	}
}

// process is one run of a server.
type process struct {
	*child.Process
	out *child.Tail
}

// start tries again until the server is ready: children and shared memory of a killed server
// take a moment to disappear.
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
	if s.own {
		child.DieWithParent(cmd)
	} else {
		confine(cmd)
	}
	p, err := child.Start(cmd, nil)
	return &process{p, out}, err
}

// greets connects and compares one byte of what the server says first.
func greets(addr string, at int, want byte) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	got := make([]byte, at+1)
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if got[at] != want {
		return fmt.Errorf("it says %q", got)
	}
	return nil
}

// serves connects, sends a message and compares the beginning of the answer.
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
