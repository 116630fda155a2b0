package servertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// MariaDB starts a MariaDB with an empty database "test" and waits until it is ready. It is
// stopped when the test ends. Its URL is a data source name of go-sql-driver/mysql. Commits are
// durable; Args("--innodb-flush-log-at-trx-commit=0") is faster, for tests that do not restart
// the server.
func MariaDB(t testing.TB, opts ...Option) *Server {
	t.Helper()
	bin, env := find(t, "MariaDB", "mariadbd")
	bin, err := filepath.EvalSymlinks(bin) // /sbin is /usr/sbin
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(bin) // of programs and tables: /usr, or that of unpacked packages
	dir := dataDir(t)
	data := filepath.Join(dir, "data")
	init := exec.Command(filepath.Join(root, "bin", "mariadb-install-db"), "--no-defaults", "--basedir="+root, "--datadir="+data,
		"--auth-root-authentication-method=normal", "--innodb-log-file-size=16M", "--skip-name-resolve")
	init.Env, init.Dir = append(os.Environ(), env...), dir
	confine(init)
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("mariadb-install-db: %v\n%s", err, out)
	}
	addr, port := free(t)
	s := &Server{
		t: t, name: "MariaDB", program: filepath.Join(bin, "mariadbd"), env: env, addr: addr,
		args: append([]string{
			"--no-defaults", "--basedir=" + root, "--datadir=" + data, "--bind-address=127.0.0.1", "--port=" + port,
			"--socket=" + filepath.Join(dir, "socket"), "--innodb-log-file-size=16M", "--skip-name-resolve",
		}, collect(opts).args...),
	}
	s.url = "root@tcp(" + addr + ")/test"
	// A server speaks first: a packet with the sequence number 0 and the version 10 of the protocol.
	s.ready = func() error { return greets(addr, 4, 10) }
	t.Cleanup(s.end)
	s.Start()
	return s
}
