package servertest

import (
	"net"
	"os"
	"testing"
	"time"
)

// A server serves on loopback, a killed server is gone, and a restarted one has the same address.
func TestServers(t *testing.T) {
	for name, start := range map[string]func(testing.TB, ...Option) *Server{
		"Postgres": Postgres, "MariaDB": MariaDB, "S3": S3, "Redis": Redis, "Consul": Consul,
		"ZooKeeper": func(t testing.TB, opts ...Option) *Server { return ZooKeeper(t, 1, opts...)[0].Server },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s *Server
			var pid int
			t.Run("life", func(t *testing.T) {
				s = start(t)
				if err := s.ready(); err != nil {
					t.Fatalf("started, and does not serve: %v", err)
				}
				pid = s.PID()
				s.Kill()
				if s.PID() != 0 || alive(pid) {
					t.Errorf("process %d was killed and lives", pid)
				}
				if conn, err := net.DialTimeout("tcp", s.Addr(), time.Second); err == nil {
					_ = conn.Close()
					t.Error("killed, and somebody listens at its address")
				}
				s.Start()
				if err := s.ready(); err != nil {
					t.Errorf("started again, and does not serve: %v", err)
				}
				pid = s.PID()
			})
			if s != nil && alive(pid) {
				t.Errorf("process %d outlived its test", pid)
			}
		})
	}
}

// A program that is not a test can start the server of an engine, restart it after its end, and
// stop it. A server that cannot be started is an error.
func TestStart(t *testing.T) {
	if _, err := Start("mysql", ""); err == nil {
		t.Error("an unknown engine was started")
	}
	Redis(t).Kill() // skips the test if there is none
	e, err := Start("redis", "")
	if err != nil {
		t.Fatal(err)
	}
	first, err := e.Launch()
	if err != nil {
		t.Fatal(err)
	}
	first.Kill()
	again, err := e.Launch()
	if err != nil || again == first || e.ready() != nil {
		t.Errorf("started again: %v", err)
	}
	e.Stop()
	if pid := again.Cmd.Process.Pid; alive(pid) {
		t.Errorf("process %d was stopped and lives", pid)
	}
}

// The servers that are built from source can be built.
func TestBuilt(t *testing.T) {
	for name, program := range map[string]string{"kubernetes": kubeAPIServer, "consul": ".", "s3": s3Server} {
		path, err := build(name, program)
		if err != nil {
			unavailable(t, name, err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	return err == nil && signalZero(p) == nil
}

// A folder is found only if it has all programs.
func TestInstalled(t *testing.T) {
	root := t.TempDir()
	if bin, ok := installed(root, []string{"postgres", "initdb"}); ok {
		t.Errorf("found in an empty folder: %s", bin)
	}
	dir := root + "/usr/lib/postgresql/15/bin"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, p := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(dir+"/"+p, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		bin, ok := installed(root, []string{"postgres", "initdb"})
		if ok != (i == 1) || ok && bin != dir {
			t.Errorf("with %d of 2 programs: %q, %v", i+1, bin, ok)
		}
	}
}
