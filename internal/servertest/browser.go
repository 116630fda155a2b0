package servertest

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tenurehq/tenure/internal/child"
)

// Browser is what tests of a web page need. Env is for the programs, besides the environment of
// the test.
type Browser struct {
	Chromium, Node string
	// Modules has node_modules.
	Modules string
	Env     []string
}

// FindBrowser finds a browser and Node, and installs the packages that package-lock.json in a
// folder names into the cache. If it cannot, it skips the test, or fails it if CI is set.
func FindBrowser(t testing.TB, dir string) Browser {
	t.Helper()
	bin, env := find(t, "Chromium", "chromium")
	node, more := find(t, "Node", "node", "npm")
	b := Browser{Chromium: filepath.Join(bin, "chromium"), Node: filepath.Join(node, "node"), Env: append(env, more...)}
	var err error
	if b.Modules, err = packagesOf(dir, filepath.Join(node, "npm"), b.Env); err != nil {
		unavailable(t, "packages for the browser tests", err)
	}
	return b
}

// packagesOf installs packages once, and again when the list has changed.
func packagesOf(dir, npm string, env []string) (string, error) {
	cache, err := child.CacheDir("servertest")
	if err != nil {
		return "", err
	}
	list, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(list)
	modules := filepath.Join(cache, "npm-"+hex.EncodeToString(sum[:6]))
	unlock, err := child.LockFile(modules + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	done := filepath.Join(modules, "done")
	if _, err := os.Stat(done); err == nil {
		return modules, nil
	}
	if err := os.MkdirAll(modules, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(modules, name), text, 0o644); err != nil {
			return "", err
		}
	}
	cmd := exec.Command(npm, "ci", "--ignore-scripts")
	cmd.Dir, cmd.Env = modules, append(os.Environ(), env...)
	if err := output(cmd); err != nil {
		return "", err
	}
	return modules, os.WriteFile(done, nil, 0o644)
}
