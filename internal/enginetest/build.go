package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/tenurehq/tenure"

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
	top, err := repository(dir)
	if err != nil {
		return "", err
	}
	cache, err := cacheDir(top)
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "engine")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	// Test binaries run side by side: one builds, the others find it done.
	unlock, err := lockFile(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cmd/engine")
	cmd.Dir = filepath.Join(top, "app")
	// What app/go.mod says, whatever is being edited beside it.
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go build ./cmd/engine in %s: %w\n%s", cmd.Dir, err, &out)
	}
	return path, nil
}

// repository finds the folder of the root module at or above dir: the tests of
// every module run somewhere below it.
func repository(dir string) (string, error) {
	for at := dir; ; at = filepath.Dir(at) {
		text, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil {
			first, _, _ := strings.Cut(string(text), "\n")
			if strings.TrimSpace(first) == "module "+module {
				return at, nil
			}
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside a checkout of %s", dir, module)
		}
	}
}

// cacheDir is the folder that git ignores and "make clean" removes, or the
// user's where the checkout cannot be written.
func cacheDir(top string) (string, error) {
	dir := filepath.Join(top, ".cache", "enginetest")
	err := writable(dir)
	if err == nil {
		return dir, nil
	}
	user, uerr := os.UserCacheDir()
	if uerr != nil {
		return "", errors.Join(err, uerr)
	}
	dir = filepath.Join(user, "tenure-enginetest")
	return dir, writable(dir)
}

func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "try-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
