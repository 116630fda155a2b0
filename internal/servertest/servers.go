package servertest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// Postgres starts a PostgreSQL with an empty database and waits until it is ready. It is
// stopped when the test ends. Commits are durable; Args("-c", "fsync=off") is faster, for
// tests that do not test durability (data survives a killed process, not a lost machine).
func Postgres(t testing.TB, opts ...Option) *Server {
	t.Helper()
	bin, env := find(t, "PostgreSQL", "postgres", "initdb", "pg_basebackup")
	dir := dataDir(t)
	addr, port := free(t)
	data := filepath.Join(dir, "data")
	init := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "tenure", "-A", "trust", "--no-sync", "--locale=C", "--encoding=UTF8")
	init.Env, init.Dir = append(os.Environ(), env...), dir
	confine(init)
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	s := &Server{
		t: t, name: "PostgreSQL", program: filepath.Join(bin, "postgres"), env: env,
		addr: addr,
		args: append([]string{
			"-D", data, "-p", port,
			"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "jit=off",
			"-c", "max_connections=100", "-c", "logging_collector=off",
		}, collect(opts).args...),
	}
	s.url = "postgres://tenure@" + s.addr + "/postgres?sslmode=disable"
	s.ready = func() error { return postgresReady(s.addr) }
	t.Cleanup(s.end)
	s.Start()
	return s
}

// postgresReady logs in until the server says that it needs no password. A server that is
// still recovering answers with an error.
func postgresReady(addr string) error {
	params := []byte("user\x00tenure\x00database\x00postgres\x00\x00")
	n := byte(8 + len(params))
	say := append([]byte{0, 0, 0, n, 0, 3, 0, 0}, params...)
	// AuthenticationOk: R, length 8, code 0.
	return serves(addr, say, []byte{'R', 0, 0, 0, 8, 0, 0, 0, 0})
}

// Redis starts a Redis without data and waits until it is ready. It is stopped when the test
// ends. Restart loses all data, except with
// Args("--appendonly", "yes", "--appendfsync", "always").
func Redis(t testing.TB, opts ...Option) *Server {
	t.Helper()
	bin, env := find(t, "Redis", "redis-server")
	dir := dataDir(t)
	addr, port := free(t)
	s := &Server{
		t: t, name: "Redis", program: filepath.Join(bin, "redis-server"), env: env,
		addr: addr,
		args: append([]string{
			"--bind", "127.0.0.1", "--port", port, "--dir", dir,
			"--save", "", "--appendonly", "no", "--daemonize", "no",
			"--repl-diskless-sync-delay", "0", // replicas in tests come one at a time
		}, collect(opts).args...),
	}
	s.url = "redis://" + s.addr
	s.ready = func() error { return serves(s.addr, []byte("PING\r\n"), []byte("+PONG\r\n")) }
	t.Cleanup(s.end)
	s.Start()
	return s
}

// dataDir is not t.TempDir, since the server may run as another user, who cannot enter that.
func dataDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tenure-servertest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("data of the server: %v", err)
		}
	})
	if err := giveAway(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Command is a program of the machine or of a package, such as promtool or psql, with a time
// limit of a minute.
func Command(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	bin, env := find(t, program, program)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// Psycopg is Python with the modules in a folder and the PostgreSQL client of a package, with the
// time limit of Command.
func Psycopg(t testing.TB, modules string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := Command(t, "python3", args...)
	err := fetch("psycopg", []string{"python3-psycopg", "libpq5"}, func(root string) bool {
		path := filepath.Join(root, "usr", "lib", "python3", "dist-packages")
		if _, err := os.Stat(filepath.Join(path, "psycopg")); err != nil {
			return false
		}
		cmd.Env = append(cmd.Env, "PYTHONPATH="+modules+string(filepath.ListSeparator)+path)
		if root != "/" {
			cmd.Env = append(cmd.Env, libraries(root)...)
		}
		return true
	})
	if err != nil {
		unavailable(t, "psycopg", err)
	}
	return cmd
}

// find returns the folder of a server's programs and their environment. If there is none it
// skips the test, or fails it if CI is set.
func find(t testing.TB, name string, programs ...string) (bin string, env []string) {
	t.Helper()
	bin, env, err := obtain(programs)
	if err != nil {
		unavailable(t, name, err)
	}
	return bin, env
}

// output runs a command. Its error has the output.
func output(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out.Bytes())
	}
	return nil
}

// free is a free address, and its port.
func free(t testing.TB) (addr, port string) {
	t.Helper()
	addrs, err := child.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err = net.SplitHostPort(addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	return addrs[0], port
}
