package servertest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Backup copies the data of a running PostgreSQL server. The returned function restarts the
// server on that copy.
func (s *Server) Backup() (restore func()) {
	s.t.Helper()
	backup := s.copyTo(dataDir(s.t))
	data := s.args[1]
	return func() {
		s.t.Helper()
		s.Kill()
		if err := os.RemoveAll(data); err != nil {
			s.t.Fatal(err)
		}
		if err := output(exec.Command("cp", "-a", backup, data)); err != nil {
			s.t.Fatal(err)
		}
		s.Start()
	}
}

// copyTo makes a base backup in a folder.
func (s *Server) copyTo(dir string, args ...string) (data string) {
	s.t.Helper()
	data = filepath.Join(dir, "data")
	args = append(args, "-D", data, "-d", s.url, "-X", "stream", "-c", "fast", "--no-sync")
	cmd := exec.Command(filepath.Join(filepath.Dir(s.program), "pg_basebackup"), args...)
	cmd.Env, cmd.Dir = append(os.Environ(), s.env...), dir
	confine(cmd)
	if err := output(cmd); err != nil {
		s.t.Fatal(err)
	}
	return data
}

// Standby starts an asynchronous standby of a PostgreSQL server.
func (s *Server) Standby() *Server {
	s.t.Helper()
	data := s.copyTo(dataDir(s.t), "-R")
	addr, port := free(s.t)
	args := slices.Clone(s.args)
	args[1], args[3] = data, port
	standby := &Server{t: s.t, name: "standby", program: s.program, env: s.env, addr: addr, args: args, url: strings.Replace(s.url, s.addr, addr, 1)}
	standby.ready = func() error { return postgresReady(addr) }
	s.t.Cleanup(standby.end)
	standby.Start()
	return standby
}

// PgBouncer starts a transaction pooler in front of a PostgreSQL server and waits until it is
// ready. It is stopped when the test ends.
func PgBouncer(t testing.TB, server *Server) *Server {
	t.Helper()
	bin, env := find(t, "PgBouncer", "pgbouncer")
	host, port, err := net.SplitHostPort(server.addr)
	if err != nil {
		t.Fatal(err)
	}
	addr, listen := free(t)
	config := filepath.Join(dataDir(t), "pgbouncer.ini")
	ini := fmt.Sprintf("[databases]\n* = host=%s port=%s user=tenure\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %s\nunix_socket_dir =\n"+
		"auth_type = any\npool_mode = transaction\ndefault_pool_size = 20\nmax_client_conn = 1000\n", host, port, listen)
	if err := os.WriteFile(config, []byte(ini), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, name: "PgBouncer", program: filepath.Join(bin, "pgbouncer"), env: env, addr: addr, args: []string{config}, url: strings.Replace(server.url, server.addr, addr, 1)}
	s.ready = func() error { return postgresReady(addr) }
	t.Cleanup(s.end)
	s.Start()
	return s
}
