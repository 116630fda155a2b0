package servertest

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tenurehq/tenure/internal/child"
)

// engines has one row for each engine that --store can name and that runs as a server here.
var engines = []struct {
	name  string
	start func(t testing.TB, etcd string, opts ...Option) *Server
	store func(addr, dir string) (string, error)
}{
	{"postgres", one(Postgres), plain("postgres://tenure@%s/postgres?sslmode=disable")},
	{"kubernetes", func(t testing.TB, etcd string, opts ...Option) *Server { return Kubernetes(t, etcd, opts...).Server }, kubeconfig},
	{"consul", one(Consul), plain("consul://%s")},
	{"zookeeper", func(t testing.TB, _ string, opts ...Option) *Server { return ZooKeeper(t, 1, opts...)[0].Server }, plain("zookeeper://%s")},
	// Without the log a restart loses everything, and no leader is granted until somebody raises the epoch.
	{"redis", func(t testing.TB, _ string, opts ...Option) *Server {
		return Redis(t, append(opts, Args("--appendonly", "yes", "--appendfsync", "always"))...)
	}, plain("redis://%s")},
}

func one(start func(testing.TB, ...Option) *Server) func(testing.TB, string, ...Option) *Server {
	return func(t testing.TB, _ string, opts ...Option) *Server { return start(t, opts...) }
}

func plain(form string) func(addr, dir string) (string, error) {
	return func(addr, _ string) (string, error) { return fmt.Sprintf(form, addr), nil }
}

// kubeconfig writes the file that the URL names.
func kubeconfig(addr, dir string) (string, error) {
	path := filepath.Join(dir, "kubeconfig")
	err := os.WriteFile(path, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "lab",
"clusters": [{"name": "lab", "cluster": {"server": "https://%s", "insecure-skip-tls-verify": true}}],
"users": [{"name": "lab", "user": {"token": %q}}],
"contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}]}`, addr, AdminToken), 0o600)
	return "kubernetes://default?kubeconfig=" + url.QueryEscape(path), err
}

// Engines lists the engines that Start can start.
func Engines() (names []string) {
	for _, e := range engines {
		names = append(names, e.name)
	}
	return names
}

// NeedsEtcd reports whether an engine keeps its data in an etcd.
func NeedsEtcd(engine string) bool { return engine == "kubernetes" }

// Engine is the server of an engine, started by a program that is not a test.
type Engine struct {
	*Server
	row  int
	stop func()
}

// Start starts the server of an engine, on the data of an etcd if it needs one, for a program that
// is not a test. Its data survives a killed process. If this program is killed, it leaves a data
// folder.
func Start(engine, etcd string, opts ...Option) (e *Engine, err error) {
	row := slices.Index(Engines(), engine)
	if row < 0 {
		return nil, fmt.Errorf("there is no server of %q; there are %v", engine, Engines())
	}
	e = &Engine{row: row}
	e.stop, err = Run(func(t testing.TB) { e.Server = engines[row].start(t, etcd, opts...) })
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Run calls start, which starts servers or engines, for a program that is not a test. stop kills
// them and removes their data. If this program is killed, it leaves data folders.
func Run(start func(t testing.TB)) (stop func(), err error) {
	h := &host{}
	defer func() {
		if p := recover(); p != nil {
			failed, ok := p.(failure)
			if !ok {
				panic(p)
			}
			h.stop()
			stop, err = nil, failed.error
		}
	}()
	start(h)
	return h.stop, nil
}

// Store returns the URL of the engine behind an address, for --store. A file that it names is
// written to dir.
func (e *Engine) Store(addr, dir string) (string, error) { return engines[e.row].store(addr, dir) }

// Launch starts the server again after its process has ended, and returns the new process. If
// the server runs, it returns the running process.
func (e *Engine) Launch() (*child.Process, error) {
	e.mu.Lock()
	run := e.run
	e.mu.Unlock()
	if run != nil {
		select {
		case <-run.Exited:
		default:
			return run.Process, nil
		}
	}
	if err := e.start(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.run.Process, nil
}

// Stop kills the server and removes its data.
func (e *Engine) Stop() { e.stop() }

// host implements what a starter needs of a test. Calls that fail or skip a test panic with a failure.
type host struct {
	testing.TB
	cleanups []func()
}

// stop ends everything that was started, the latest first.
func (h *host) stop() {
	for _, clean := range slices.Backward(h.cleanups) {
		clean()
	}
	h.cleanups = nil
}

// TempDir is removed when everything ends.
func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "tenure-servertest-")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

type failure struct{ error }

func (*host) Helper()                      {}
func (*host) Failed() bool                 { return false }
func (*host) Logf(string, ...any)          {}
func (h *host) Cleanup(clean func())       { h.cleanups = append(h.cleanups, clean) }
func (*host) Fatal(args ...any)            { panic(failure{errors.New(fmt.Sprint(args...))}) }
func (*host) Fatalf(f string, args ...any) { panic(failure{fmt.Errorf(f, args...)}) }
func (*host) Skipf(f string, args ...any)  { panic(failure{fmt.Errorf(f, args...)}) }
