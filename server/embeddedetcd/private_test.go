package embeddedetcd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A directory that a member on TCP ports has written can be served from a socket, and back.
func TestSocketAfterPorts(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []Config{{ClientURL: "127.0.0.1:0", PeerURL: "127.0.0.1:0"}, {}, {ClientURL: "127.0.0.1:0"}, {}} {
		c.DataDir = dir
		e := mustStart(t, fast(c))
		client := connect(t, e.Endpoints()...)
		if got := get(t, client); i > 0 && got != "v" {
			t.Errorf("start %d reads %q", i, got)
		}
		put(t, client, "k", "v")
		lease, err := client.Grant(within(t, 10*time.Second), 60)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.KeepAliveOnce(within(t, 10*time.Second), lease.ID); err != nil {
			t.Errorf("start %d: %v", i, err)
		}
		_ = client.Close()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("beside the data is left: %v, %v", left, err)
	}
}

// The socket is in a directory that only this user can enter, even if the data directory is
// open to all or an earlier process left something in its place. Its path may have any length
// and any characters.
func TestSocketIsPrivate(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	left := filepath.Join(open, "client")
	for _, err := range []error{os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.Mkdir(left, 0o700), os.Chmod(left, 0o777), os.WriteFile(filepath.Join(left, "etcd.sock"), nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, dir := range map[string]string{
		"open": open, "long": filepath.Join(t.TempDir(), strings.Repeat("long", 30)), "odd": filepath.Join(t.TempDir(), "a b%20c#d?"),
	} {
		e := mustStart(t, fast(Config{DataDir: dir}))
		client := connect(t, e.Endpoints()...)
		put(t, client, "k", name)
		if got := get(t, client); got != name {
			t.Errorf("%s: %q", name, got)
		}
		_ = client.Close()
		sockets := e.dir.sockets
		if info, err := os.Lstat(sockets); err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: %v, %v, want a directory with mode 0700", name, info, err)
		}
		if info, err := os.Lstat(filepath.Join(sockets, "etcd.sock")); err != nil || info.Mode().Type() != os.ModeSocket {
			t.Errorf("%s: %v, %v, want a socket", name, info, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(sockets); err == nil {
			t.Errorf("%s: stopped, it leaves %s", name, sockets)
		}
	}
}

// To clients, every new directory is another cluster.
func TestNewDirectoryIsNewCluster(t *testing.T) {
	ids := map[uint64]bool{}
	for range 2 {
		e := mustStart(t, fast(Config{}))
		r, err := connect(t, e.Endpoints()...).Get(within(t, 10*time.Second), "k")
		if err != nil {
			t.Fatal(err)
		}
		ids[r.Header.ClusterId] = true
	}
	if len(ids) != 2 {
		t.Errorf("two directories have the cluster ids %v", ids)
	}
}
