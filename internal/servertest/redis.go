package servertest

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Replica starts a Redis that replicates the one at an address. It is stopped when the test ends.
func Replica(t testing.TB, of string, opts ...Option) *Server {
	t.Helper()
	host, port, err := net.SplitHostPort(of)
	if err != nil {
		t.Fatal(err)
	}
	return Redis(t, append(opts, Args("--replicaof", host, port))...)
}

// Sentinels starts Redis sentinels that watch a master under a name and replace it after half a
// second without an answer. They are stopped when the test ends.
func Sentinels(t testing.TB, count int, name, master string) []*Server {
	t.Helper()
	host, port, err := net.SplitHostPort(master)
	if err != nil {
		t.Fatal(err)
	}
	var all []*Server
	for range count {
		// A sentinel keeps its state in its configuration file.
		file := filepath.Join(dataDir(t), "sentinel.conf")
		text := "sentinel monitor " + name + " " + host + " " + port + " " + strconv.Itoa(count/2+1) + "\n" +
			"sentinel down-after-milliseconds " + name + " 500\n" +
			"sentinel failover-timeout " + name + " 3000\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := giveAway(file); err != nil {
			t.Fatal(err)
		}
		bin, env := find(t, "Redis", "redis-server")
		addr, own := free(t)
		s := &Server{
			t: t, name: "Redis sentinel", program: filepath.Join(bin, "redis-server"), env: env, addr: addr, url: "redis://" + addr,
			args: []string{file, "--sentinel", "--bind", "127.0.0.1", "--port", own},
		}
		s.ready = func() error { return serves(s.addr, []byte("PING\r\n"), []byte("+PONG\r\n")) }
		t.Cleanup(s.end)
		s.Start()
		all = append(all, s)
	}
	return all
}
