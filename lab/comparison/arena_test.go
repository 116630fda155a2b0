package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
)

// arena is a library and its engine.
type arena struct {
	library string
	engine  string // host:port
	secret  string
	// lose deletes all data of the engine and restarts it.
	lose func(t *testing.T)
}

// inEach runs a function with every library that can be built.
func inEach(t *testing.T, r *row, do func(t *testing.T, a arena)) {
	t.Helper()
	starts := []struct {
		library string
		start   func(t *testing.T) (arena, error)
	}{
		{tenureLead, func(t *testing.T) (arena, error) {
			e := enginetest.Cluster(t, 1)
			return arena{engine: e.Members[0].Addr(), lose: func(t *testing.T) { wipe(t, e) }}, nil
		}},
		{clientGo, func(t *testing.T) (arena, error) {
			path, err := kubeAPIServer().obtain(t)
			if err != nil {
				return arena{}, err
			}
			r.used("kube-apiserver", strings.TrimPrefix(kubeVersion, "v"))
			r.usedModule("k8s.io/client-go")
			k := startKube(t, path)
			return arena{engine: k.Addr(), secret: k.token, lose: func(t *testing.T) {
				k.Kill()
				wipe(t, k.etcd)
				k.Start()
			}}, nil
		}},
		{redsyncLock, func(t *testing.T) (arena, error) {
			s := servertest.Redis(t)
			r.used("Redis", redisVersion(t, s.Addr()))
			r.usedModule("github.com/go-redsync/redsync/v4")
			return arena{engine: s.Addr(), lose: func(*testing.T) { s.Restart() }}, nil
		}},
	}
	for _, s := range starts {
		t.Run(s.library, func(t *testing.T) {
			a, err := s.start(t)
			if err != nil {
				t.Log(err)
				r.say(s.library, "%s", notBuilt(err))
				return
			}
			t.Parallel()
			a.library = s.library
			do(t, a)
		})
	}
}

func redisVersion(t *testing.T, addr string) string {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Fatalf("Redis does not say its version: %s", info)
	return ""
}

// stands starts a candidate.
func (a arena) stands(t *testing.T, c candidacy) *standing {
	t.Helper()
	c.Library = a.library
	if c.Engine == "" {
		c.Engine = a.engine
	}
	c.Secret = a.secret
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &standing{t: t, id: c.ID, stderr: &child.Tail{}, changed: make(chan struct{})}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), candidateEnv+"="+string(text))
	cmd.Stderr = s.stderr
	cmd.WaitDelay = time.Second
	child.DieWithParent(cmd)
	s.stdin, err = cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.Process, err = child.Start(cmd, func() { s.hear(stdout) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

// standing is a candidate's process, as the test sees it.
type standing struct {
	*child.Process
	t      *testing.T
	id     string
	stdin  io.Writer
	stderr *child.Tail

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each event
	heard   []event
}

func (s *standing) hear(from io.Reader) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		s.mu.Lock()
		s.heard = append(s.heard, e)
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
	}
}

// first waits for the first event of a kind; false: there was none in time.
func (s *standing) first(what string, within time.Duration) (event, bool) {
	late := time.After(within)
	for {
		s.mu.Lock()
		heard, changed := s.heard, s.changed
		s.mu.Unlock()
		for _, e := range heard {
			if e.What == what {
				return e, true
			}
		}
		select {
		case <-changed:
		case <-late:
			return event{}, false
		}
	}
}

// count is the number of events of a kind so far.
func (s *standing) count(what string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.heard {
		if e.What == what {
			n++
		}
	}
	return n
}

// must is first; the event must come.
func (s *standing) must(what string) event {
	s.t.Helper()
	e, ok := s.first(what, wait)
	if !ok {
		s.t.Fatalf("%s: %q did not come\n%s", s.id, what, s.stderr)
	}
	return e
}

func (s *standing) ask(what string) {
	s.t.Helper()
	if _, err := io.WriteString(s.stdin, what+"\n"); err != nil {
		s.t.Fatalf("%s does not listen: %v\n%s", s.id, err, s.stderr)
	}
}

// pause stops the process (SIGSTOP) and waits until it is stopped.
func (s *standing) pause() {
	s.t.Helper()
	if err := child.Pause(s.Cmd.Process); err != nil {
		s.t.Fatal(err)
	}
	until(s.t, s.id+" is stopped", func() bool { return child.Paused(s.Cmd.Process.Pid) })
}

func (s *standing) resume() {
	s.t.Helper()
	if err := child.Resume(s.Cmd.Process); err != nil {
		s.t.Fatal(err)
	}
}
