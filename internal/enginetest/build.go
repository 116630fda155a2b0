package enginetest

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/internal/child"
)

// program builds the engine once per test binary.
var program = sync.OnceValues(build)

// Program returns the path of the program that runs a member, for tests that start it
// themselves. If it cannot be built the test is skipped; it fails if CI is set.
func Program(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		missing(t, err)
	}
	return path
}

// missing skips the test, or fails it if CI is set.
func missing(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("NO ENGINE, and CI is set: %v", err)
		return
	}
	t.Skipf("SKIPPED, NOTHING WAS TESTED: no engine: %v", err)
}

func build() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	top, err := child.Repository(dir)
	if err != nil {
		return "", err
	}
	cache, err := child.CacheDir("enginetest")
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "engine")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	// Several test binaries may build at the same time.
	unlock, err := child.LockFile(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	return path, child.Build(context.Background(), top, path, nil, "server/cmd/engine")
}
