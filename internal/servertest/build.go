package servertest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/tenurehq/tenure/internal/child"
)

// build builds a program of the module in testdata/NAME into the cache: once, and again when the
// module or the version of Go has changed. That takes some minutes.
func build(name, program string) (string, error) {
	cache, err := child.CacheDir("servertest")
	if err != nil {
		return "", err
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	top, err := child.Repository(dir)
	if err != nil {
		return "", err
	}
	module := filepath.Join(top, "internal", "servertest", "testdata", name)
	sum := sha256.New()
	_, _ = sum.Write([]byte(runtime.Version()))
	for _, file := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(module, file))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		_, _ = sum.Write(text)
	}
	path := filepath.Join(cache, name+"-"+hex.EncodeToString(sum.Sum(nil)[:6]))
	// Several test binaries may build at the same time.
	unlock, err := child.LockFile(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil || !errors.Is(err, os.ErrNotExist) {
		return path, err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path+".new", program)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if err := output(cmd); err != nil {
		return "", err
	}
	return path, os.Rename(path+".new", path)
}

// unavailable skips the test, or fails it if CI is set.
func unavailable(t testing.TB, name string, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("NO %s, and CI is set: %v", name, err)
	}
	t.Skipf("SKIPPED, NOTHING WAS TESTED: no %s: %v", name, err)
}
