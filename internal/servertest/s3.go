package servertest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const s3Server = "github.com/versity/versitygw/cmd/versitygw"

// Who may do everything on the server of S3.
const (
	S3User   = "tenure"
	S3Secret = "tenure-secret"
)

// S3 starts a server with the interface of S3, without buckets, and waits until it is ready. It is
// stopped when the test ends. The first one is built from source, which takes minutes.
func S3(t testing.TB, opts ...Option) *Server {
	t.Helper()
	program, err := build("s3", s3Server)
	if err != nil {
		unavailable(t, "S3 server", err)
	}
	dir := dataDir(t)
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	addr, _ := free(t)
	s := &Server{
		t: t, name: "S3 server", program: program, own: true, addr: addr, url: "http://" + addr,
		env:  []string{"ROOT_ACCESS_KEY_ID=" + S3User, "ROOT_SECRET_ACCESS_KEY=" + S3Secret},
		args: slices.Concat([]string{"--port", addr, "--health", "/health", "--quiet", "--keep-alive"}, collect(opts).args, []string{"posix", data}),
	}
	s.ready = func() error {
		return serves(addr, []byte("GET /health HTTP/1.1\r\nHost: s3\r\nConnection: close\r\n\r\n"), []byte("HTTP/1.1 200"))
	}
	t.Cleanup(s.end)
	s.Start()
	return s
}
