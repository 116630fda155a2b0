package embeddedetcd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// fast keeps elections of the engine short.
func fast(c Config) Config {
	c.Tick, c.Election = 20*time.Millisecond, 200*time.Millisecond
	return c
}

func mustStart(t *testing.T, c Config) *Engine {
	t.Helper()
	e, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// stopAll stops members one after the other. Stopped together, their leader would wait five
// seconds for a successor.
func stopAll(t *testing.T, engines ...*Engine) {
	t.Helper()
	for _, e := range engines {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

func connect(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// put retries a write until it is acknowledged, as a caller would: a proposal that a follower
// forwarded to a leader that was killed is lost. The engine reports that seconds later, and
// its client does not retry writes.
func put(t *testing.T, c *clientv3.Client, key, value string) {
	t.Helper()
	all := within(t, 20*time.Second)
	for {
		ctx, cancel := context.WithTimeout(all, 2*time.Second)
		_, err := c.Put(ctx, key, value)
		cancel()
		if err == nil {
			return
		}
		if all.Err() != nil {
			t.Fatalf("put %s: %v", key, err)
		}
	}
}

// get returns the value of "k".
func get(t *testing.T, c *clientv3.Client) string {
	t.Helper()
	r, err := c.Get(within(t, 10*time.Second), "k")
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

// goroutines returns the goroutines of engines and their clients.
func goroutines() []string {
	buf := make([]byte, 8<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	return slices.DeleteFunc(all[1:], func(stack string) bool { // the first is the caller
		return !strings.Contains(stack, "go.etcd.io/") && !strings.Contains(stack, "google.golang.org/grpc") &&
			!strings.Contains(stack, "tenure/server/embeddedetcd.") || strings.Contains(stack, "testing.tRunner")
	})
}

// nothingRuns waits until the goroutines of engines are gone.
func nothingRuns(t *testing.T) {
	t.Helper()
	var left []string
	for range 250 {
		if left = goroutines(); len(left) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
}

// canListen reports whether the port of a URL or host:port is free.
func canListen(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", strings.TrimPrefix(strings.TrimPrefix(address, "http://"), "https://"))
	if err != nil {
		t.Errorf("the port is not given back: %v", err)
		return
	}
	_ = l.Close()
}

// taken listens on a port and never accepts.
func taken(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// tree lists the files below a directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		t.Fatal(err)
	}
	return names
}

// mount mounts a small file system in memory, read-only if asked. It needs root: without it
// the test is skipped, or fails in CI.
func mount(t *testing.T, size string, flags uintptr) string {
	t.Helper()
	dir := t.TempDir()
	if err := mountTmpfs(t, dir, size, flags); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("a file system in memory cannot be mounted, and CI is set: %v", err)
		}
		t.Skipf("SKIPPED, NOTHING WAS TESTED: a file system in memory cannot be mounted: %v", err)
	}
	return dir
}

var errNoRoot = errors.New("not root")
