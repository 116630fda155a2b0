package servertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
