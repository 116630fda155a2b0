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

// program builds the engine once in the life of a test binary.
var program = sync.OnceValues(build)

// Program returns the path of the program that runs a member, for tests that
// start it in their own way. It skips the test if it cannot be built, or fails it
// where CI is set.
func Program(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		missing(t, err)
	}
	return path
}

// missing is loud: an engine that was not there proves nothing.
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
	// Test binaries run side by side: one builds, the others find it done.
	unlock, err := child.LockFile(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	return path, child.Build(context.Background(), top, path, nil, "server/cmd/engine")
}
