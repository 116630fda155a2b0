package enginetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// Engine is one etcd: one member, or a cluster of several.
type Engine struct {
	Members []*Member

	t testing.TB
}

// Option changes how members are started.
type Option func(*options)

type options struct {
	args      []string
	peerDelay time.Duration
}

// FastTicks makes the engine elect its own leader within half a second (heartbeat 20 ms,
// election timeout 200 ms). This also lowers the shortest TTL from 2 s to 1 s.
func FastTicks() Option {
	return func(o *options) { o.args = append(o.args, "-tick", "20ms", "-election", "200ms") }
}

// Args adds flags of the program server/cmd/engine.
func Args(args ...string) Option {
	return func(o *options) { o.args = append(o.args, args...) }
}

// PeerDelay delays what members send to each other, in each direction: members in regions.
func PeerDelay(by time.Duration) Option {
	return func(o *options) { o.peerDelay = by }
}

// readyWithin is long, since a machine that runs all tests at once is slow.
const readyWithin = 60 * time.Second

// Cluster starts an engine of n members on loopback and waits until all are ready. It is
// stopped when the test ends.
func Cluster(t testing.TB, n int, opts ...Option) *Engine {
	t.Helper()
	program := Program(t)
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	for attempt := 1; ; attempt++ {
		e, err := cluster(t, program, n, o)
		if err == nil {
			t.Cleanup(e.end)
			return e
		}
		// Another process took a port between the choice and the start.
		if attempt < 3 && strings.Contains(err.Error(), "in use") {
			continue
		}
		t.Fatalf("engine of %d: %v", n, err)
	}
}

func cluster(t testing.TB, program string, n int, o options) (*Engine, error) {
	ports, err := child.FreePorts(2 * n)
	if err != nil {
		return nil, err
	}
	e := &Engine{t: t}
	dir := t.TempDir()
	var all []string
	for i := range n {
		m := &Member{
			t: t, program: program, name: fmt.Sprintf("m%d", i+1),
			client: ports[2*i], peer: ports[2*i+1],
		}
		m.dataDir = filepath.Join(dir, m.name)
		peer := m.peer
		if o.peerDelay > 0 {
			p := NewProxy(t, m.peer)
			p.Delay(Up, o.peerDelay)
			p.Delay(Down, o.peerDelay)
			peer = p.Addr()
		}
		all = append(all, m.name+"=http://"+peer)
		e.Members = append(e.Members, m)
	}
	for _, m := range e.Members {
		m.args = append([]string{"-members", strings.Join(all, ",")}, o.args...)
	}
	if err := startAll(t, e.Members); err != nil {
		e.end()
		return nil, err
	}
	return e, nil
}

// startAll starts members concurrently, since they need a quorum, and waits for them.
func startAll(t testing.TB, members []*Member) error {
	t.Helper()
	deadline := make(chan time.Time)
	timer := time.AfterFunc(readyWithin, func() { close(deadline) })
	defer timer.Stop()
	var errs []error
	for _, m := range members {
		if err := m.start(); err != nil {
			return fmt.Errorf("member %s: %w", m.name, err)
		}
	}
	for _, m := range members {
		errs = append(errs, m.awaitReady(deadline))
	}
	return errors.Join(errs...)
}

// Endpoints returns the URLs of all members for clients.
func (e *Engine) Endpoints() []string {
	var urls []string
	for _, m := range e.Members {
		urls = append(urls, m.Endpoint())
	}
	return urls
}

// Start starts the members that do not run and waits until they are ready.
func (e *Engine) Start() {
	e.t.Helper()
	idle := slices.DeleteFunc(slices.Clone(e.Members), func(m *Member) bool { return m.PID() != 0 })
	if err := startAll(e.t, idle); err != nil {
		e.t.Fatal(err)
	}
}

// Stop stops the members that run (SIGTERM).
func (e *Engine) Stop() {
	e.t.Helper()
	for _, m := range e.Members {
		if m.PID() != 0 {
			m.Stop()
		}
	}
}

// end kills all members. If the test failed it prints their logs.
func (e *Engine) end() {
	for _, m := range e.Members {
		if m.PID() == 0 {
			continue
		}
		if e.t.Failed() {
			e.t.Logf("log of %s:\n%s", m.name, m.Log())
		}
		m.mu.Lock()
		p := m.run
		m.mu.Unlock()
		p.Kill()
		m.forget()
	}
}

// Backup is a copy of the data of all members.
type Backup struct {
	dirs map[string]string // member → copy
}

// CopyData takes a backup. The engine is stopped meanwhile, so that the copies agree.
func (e *Engine) CopyData() Backup {
	e.t.Helper()
	e.Stop()
	dir := e.t.TempDir()
	b := Backup{dirs: map[string]string{}}
	for _, m := range e.Members {
		b.dirs[m.name] = filepath.Join(dir, m.name)
		if err := copyTree(m.dataDir, b.dirs[m.name]); err != nil {
			e.t.Fatalf("copy the data of %s: %v", m.name, err)
		}
	}
	e.Start()
	return b
}

// RestoreData restores a backup: everything that the engine acknowledged since is lost.
// Members, addresses and ids stay the same.
func (e *Engine) RestoreData(b Backup) {
	e.t.Helper()
	e.Stop()
	for _, m := range e.Members {
		if err := os.RemoveAll(m.dataDir); err != nil {
			e.t.Fatal(err)
		}
		if err := copyTree(b.dirs[m.name], m.dataDir); err != nil {
			e.t.Fatalf("restore the data of %s: %v", m.name, err)
		}
	}
	e.Start()
}
