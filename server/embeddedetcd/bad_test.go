package embeddedetcd

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/enginetest"
)

// A start that cannot succeed fails within seconds, with an error that has the path or the
// address, and leaves nothing behind: no goroutine, no listener, no lock, no directory.
func TestBadInput(t *testing.T) {
	// used makes a directory that an engine has written to.
	used := func(t *testing.T) string {
		t.Helper()
		dir := t.TempDir()
		e := mustStart(t, fast(Config{DataDir: dir}))
		put(t, connect(t, e.Endpoints()...), "k", "v")
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	cluster := func(t *testing.T, peers ...string) Config {
		t.Helper()
		members := []string{"a=" + free(t)}
		for i, p := range peers {
			members = append(members, fmt.Sprintf("%c=%s", 'b'+i, p))
		}
		return fast(Config{Name: "a", DataDir: filepath.Join(t.TempDir(), "d"), Members: members, ReadyTimeout: 1500 * time.Millisecond})
	}
	for _, tt := range []struct {
		name string
		make func(t *testing.T) Config
		want []string // parts of the error; DIR, CLIENT and PEER stand for the given values
		is   error
	}{
		{
			name: "a file in the place of the directory",
			make: func(t *testing.T) Config {
				path := filepath.Join(t.TempDir(), "f")
				writeFile(t, path, "mine")
				return Config{DataDir: path}
			},
			want: []string{"DIR", "is a file"},
		},
		{
			name: "a file above the directory",
			make: func(t *testing.T) Config {
				path := filepath.Join(t.TempDir(), "f")
				writeFile(t, path, "mine")
				return Config{DataDir: filepath.Join(path, "d")}
			},
			want: []string{"DIR"}, is: syscall.ENOTDIR,
		},
		{
			name: "a file in the place of a folder of etcd",
			make: func(t *testing.T) Config {
				dir := t.TempDir()
				if err := os.Mkdir(filepath.Join(dir, "member"), 0o700); err != nil {
					t.Fatal(err)
				}
				writeFile(t, filepath.Join(dir, "member", "snap"), "mine")
				return Config{DataDir: dir}
			},
			want: []string{"DIR", "member/snap", "is a file"},
		},
		{
			name: "a directory that cannot be written",
			make: func(t *testing.T) Config { return Config{DataDir: unwritable(t)} },
			want: []string{"DIR", "cannot be written"},
		},
		{
			name: "a directory that cannot be created",
			make: func(t *testing.T) Config { return Config{DataDir: filepath.Join(unwritable(t), "a", "b")} },
			want: []string{"DIR", "cannot be created"},
		},
		{
			name: "a full disk",
			make: func(t *testing.T) Config { return Config{DataDir: filepath.Join(mount(t, "8m", 0), "d")} },
			want: []string{"DIR", "8 MiB free", "160 MiB"}, is: syscall.ENOSPC,
		},
		{
			name: "a disk without a byte",
			make: func(t *testing.T) Config {
				dir := mount(t, "512k", 0)
				return Config{DataDir: filepath.Join(dir, "d")}
			},
			want: []string{"DIR", "cannot be written"}, is: syscall.ENOSPC,
		},
		{
			name: "a directory in use in this process",
			make: func(t *testing.T) Config {
				return Config{DataDir: mustStart(t, fast(Config{DataDir: t.TempDir()})).DataDir()}
			},
			want: []string{"DIR", "in use"},
		},
		{
			name: "a directory in use by another process",
			make: func(t *testing.T) Config {
				return Config{DataDir: enginetest.Cluster(t, 1, enginetest.FastTicks()).Members[0].DataDir()}
			},
			want: []string{"DIR", "in use"},
		},
		{
			name: "a directory in use by an etcd that knows nothing of our lock",
			make: func(t *testing.T) Config {
				e := mustStart(t, fast(Config{DataDir: t.TempDir()}))
				_ = e.dir.lock.Close()
				return Config{DataDir: e.DataDir()}
			},
			want: []string{"DIR", "in use"},
		},
		{
			name: "a client port in use",
			make: func(t *testing.T) Config {
				return Config{ClientURL: taken(t), DataDir: filepath.Join(t.TempDir(), "a", "b")}
			},
			want: []string{"client address http://CLIENT", "address already in use"}, is: syscall.EADDRINUSE,
		},
		{
			name: "a peer port in use",
			make: func(t *testing.T) Config { return Config{PeerURL: taken(t), DataDir: t.TempDir()} },
			want: []string{"peer address http://PEER", "address already in use"}, is: syscall.EADDRINUSE,
		},
		{
			name: "the client port is the peer port",
			make: func(t *testing.T) Config {
				at := free(t)
				return Config{PeerURL: at, ClientURL: at}
			},
			want: []string{"peer address http://PEER"}, is: syscall.EADDRINUSE,
		},
		{
			name: "an address of another host",
			make: func(*testing.T) Config { return Config{ClientURL: "192.0.2.1:2379", Insecure: true} },
			want: []string{"client address http://CLIENT"}, is: syscall.EADDRNOTAVAIL,
		},
		{
			name: "a damaged database",
			make: func(t *testing.T) Config {
				dir := used(t)
				writeFile(t, filepath.Join(dir, "member", "snap", "db"), strings.Repeat("garbage ", 4096))
				return Config{DataDir: dir}
			},
			want: []string{"DIR", "member/snap/db is damaged"},
		},
		{
			name: "a damaged log",
			make: func(t *testing.T) Config {
				dir := used(t)
				files, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
				if err != nil || len(files) == 0 {
					t.Fatalf("no log: %v", err)
				}
				f, err := os.OpenFile(files[0], os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteAt([]byte("garbage"), 100); err != nil {
					t.Fatal(err)
				}
				_ = f.Close()
				return Config{DataDir: dir}
			},
			want: []string{"DIR", "log is damaged"},
		},
		{
			name: "a database whose log is missing",
			make: func(t *testing.T) Config {
				dir := used(t)
				if err := os.RemoveAll(filepath.Join(dir, "member", "wal")); err != nil {
					t.Fatal(err)
				}
				return Config{DataDir: dir}
			},
			want: []string{"DIR", "database and no log"},
		},
		{
			name: "the directory of another cluster",
			make: func(t *testing.T) Config {
				c := cluster(t, free(t), free(t))
				c.DataDir = used(t)
				return c
			},
			want: []string{"DIR", "cluster of 1", "one of 3"},
		},
		{
			name: "peers that refuse and peers that are silent",
			make: func(t *testing.T) Config { return cluster(t, free(t), taken(t)) },
			want: []string{"2 of 3 members", "b (http://", "connection refused", "c (http://", "timeout after 1s"}, is: ErrNotReady,
		},
		{
			name: "peers that are something else",
			make: func(t *testing.T) Config {
				other := httptest.NewServer(http.NotFoundHandler())
				t.Cleanup(other.Close)
				alone := mustStart(t, fast(Config{PeerURL: "127.0.0.1:0"}))
				return cluster(t, other.URL, alone.PeerURL())
			},
			want: []string{"b (http://", "HTTP status 404", "c (http://", "belongs to another cluster"}, is: ErrNotReady,
		},
		{
			name: "peers with names that nobody knows",
			make: func(t *testing.T) Config { return cluster(t, "b.invalid:7001", "c.invalid:7001") },
			want: []string{"b (http://b.invalid:7001) does not answer", "c (http://c.invalid:7001) does not answer"}, is: ErrNotReady,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.make(t)
			c.StopTimeout = 3 * time.Second
			holds := goroutines() // goroutines of engines that block the start
			before := tree(t, c.DataDir)
			parent := tree(t, filepath.Dir(c.DataDir))
			began := time.Now()
			e, err := Start(t.Context(), c)
			took := time.Since(began)
			if err == nil {
				_ = e.Close()
				t.Fatal("it started")
			}
			t.Logf("%v: %v", took.Round(time.Millisecond), err)
			if took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			stands := strings.NewReplacer("DIR", c.DataDir, "CLIENT", c.ClientURL, "PEER", c.PeerURL)
			for _, want := range tt.want {
				if want = stands.Replace(want); !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %v is not %v", err, tt.is)
			}
			if len(holds) == 0 {
				nothingRuns(t)
			}
			for _, m := range c.Members[:min(1, len(c.Members))] {
				canListen(t, strings.TrimPrefix(m, "a="))
			}
			if errors.Is(err, ErrNotReady) {
				// The log is kept, because it may have a vote.
				if _, err := os.Stat(filepath.Join(c.DataDir, "member", "wal")); err != nil {
					t.Errorf("the log of a member of a cluster: %v", err)
				}
				return
			}
			if after := tree(t, c.DataDir); !slices.Equal(before, after) {
				t.Errorf("the directory was %q, and is %q", before, after)
			}
			if c.DataDir != "" {
				if after := tree(t, filepath.Dir(c.DataDir)); !slices.Equal(parent, after) {
					t.Errorf("above the directory was %q, and is %q", parent, after)
				}
			}
		})
	}
}

// Of several concurrent starts in one new directory one succeeds, and the others do not harm
// it.
func TestOneOfSeveralStarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var won []*Engine
	errs := make(chan error)
	var mu sync.Mutex
	const n = 4
	for range n {
		go func() {
			e, err := Start(t.Context(), fast(Config{DataDir: dir}))
			if err == nil {
				mu.Lock()
				won = append(won, e)
				mu.Unlock()
			}
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil && !strings.Contains(err.Error(), dir+" is in use") {
			t.Error(err)
		}
	}
	if len(won) != 1 {
		t.Fatalf("%d engines in one directory", len(won))
	}
	put(t, connect(t, won[0].Endpoints()...), "k", "v")
	stopAll(t, won...)
}

// A member that gave up waiting for the others can be started again when they are running.
func TestNotReadyThenReady(t *testing.T) {
	names := []string{"a", "b", "c"}
	var members []string
	for _, name := range names {
		members = append(members, name+"="+free(t))
	}
	dir := t.TempDir()
	config := func(name string, timeout time.Duration) Config {
		return fast(Config{Name: name, Members: members, DataDir: filepath.Join(dir, name), ReadyTimeout: timeout})
	}
	if _, err := Start(t.Context(), config("a", time.Second)); !errors.Is(err, ErrNotReady) {
		t.Fatalf("alone: %v", err)
	}
	type result struct {
		e   *Engine
		err error
	}
	results := make(chan result)
	var engines []*Engine
	for _, name := range names {
		go func() {
			e, err := Start(t.Context(), config(name, 20*time.Second))
			results <- result{e, err}
		}()
	}
	for range names {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
			continue
		}
		engines = append(engines, r.e)
	}
	stopAll(t, engines...)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// unwritable returns a directory that this user cannot write, root included.
func unwritable(t *testing.T) string {
	t.Helper()
	if os.Getuid() == 0 {
		return mount(t, "8m", readOnly)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	return dir
}
