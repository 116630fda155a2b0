package upgrade

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/internal/child"
)

// errNoHistory: the checkout has no git history.
var errNoHistory = errors.New("the checkout has no history to take the previous version from")

// version has the programs of one version.
type version struct {
	name          string
	tenure, fleet string
	node          []string // the program and its command
}

func at(name, bin string) version {
	return version{name: name, tenure: filepath.Join(bin, "tenure"), fleet: filepath.Join(bin, "fleet"), node: []string{filepath.Join(bin, "fleet"), "node"}}
}

// built builds the programs of both versions once per test binary.
var built = sync.OnceValues(func() ([2]version, error) {
	dir, err := os.Getwd()
	if err != nil {
		return [2]version{}, err
	}
	top, err := child.Repository(dir)
	if err != nil {
		return [2]version{}, err
	}
	text, err := os.ReadFile("PREVIOUS")
	if err != nil {
		return [2]version{}, err
	}
	oldBin, err := previous(top, strings.TrimSpace(string(text)))
	if err != nil {
		return [2]version{}, err
	}
	bin, err := child.CacheDir("upgrade")
	if err != nil {
		return [2]version{}, err
	}
	unlock, err := child.LockFile(filepath.Join(bin, "lock"))
	if err != nil {
		return [2]version{}, err
	}
	defer unlock()
	old := at("previous", oldBin)
	old.fleet, old.node = old.tenure, []string{filepath.Join(oldBin, "node")} // the previous version has other program names
	err = child.Build(context.Background(), top, bin+string(filepath.Separator), nil, "server/cmd/tenure", "reference/cmd/fleet")
	return [2]version{old, at("this", bin)}, err
})

// versions returns the previous and this version. Without the previous one it skips the test, or
// fails it if the version should be there.
func versions(t *testing.T) (old, now version) {
	t.Helper()
	both, err := built()
	switch {
	case errors.Is(err, errNoHistory), err != nil && os.Getenv("CI") == "":
		t.Skipf("SKIPPED, NOTHING WAS TESTED: %v", err)
	case err != nil:
		t.Fatalf("NO PREVIOUS VERSION, and CI is set: %v", err)
	}
	return both[0], both[1]
}

// previous returns the folder with the programs of a commit. It builds them if needed.
func previous(top, commit string) (string, error) {
	cache, err := child.CacheDir(filepath.Join("previous", commit))
	if err != nil {
		return "", err
	}
	unlock, err := child.LockFile(filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	bin := filepath.Join(cache, "bin")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	// Always in the same folder, so that the build cache can be used.
	sources := filepath.Join(cache, "sources")
	if err := errors.Join(os.RemoveAll(sources), os.MkdirAll(sources, 0o755)); err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(sources) }()
	if err := takeOut(top, commit, sources); err != nil {
		return "", err
	}
	// The folder gets its name when it is complete.
	half := filepath.Join(sources, "bin")
	if err := child.Build(context.Background(), sources, half+string(filepath.Separator), nil, "app/cmd/tenure", "app/cmd/node"); err != nil {
		return "", err
	}
	return bin, os.Rename(half, bin)
}

// takeOut writes the files of a commit to a folder.
func takeOut(top, commit, into string) error {
	git := func(args ...string) ([]byte, error) {
		// In containers the checkout belongs to another user; git runs nothing of it here.
		cmd := exec.Command("git", append([]string{"-C", top, "-c", "safe.directory=" + top}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
		}
		return out, err
	}
	if _, err := os.Stat(filepath.Join(top, ".git")); err != nil {
		return fmt.Errorf("%w: %s is no checkout of git", errNoHistory, top)
	}
	if _, err := exec.LookPath("git"); err != nil {
		return fmt.Errorf("there is no git here: %w", err)
	}
	shallow, err := git("rev-parse", "--is-shallow-repository")
	if err != nil {
		return fmt.Errorf("%w: git cannot read %s: %w", errNoHistory, top, err)
	}
	if _, err := git("cat-file", "-e", commit+"^{commit}"); err != nil {
		if strings.TrimSpace(string(shallow)) == "true" {
			return fmt.Errorf("%w: the clone is shallow (git fetch --unshallow)", errNoHistory)
		}
		if n, err := git("rev-list", "--count", "--max-count=2", "HEAD"); err != nil || strings.TrimSpace(string(n)) != "2" {
			return fmt.Errorf("%w: it has one commit, as an exported tree has", errNoHistory)
		}
		return fmt.Errorf("commit %s, which lab/upgrade/PREVIOUS names, is not in this repository: %w", commit, err)
	}
	files, err := git("archive", "--format=tar", commit)
	if err != nil {
		return err
	}
	return unpack(files, into)
}

func unpack(archive []byte, into string) error {
	root, err := os.OpenRoot(into)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(filepath.Clean(h.Name), 0o755)
		case tar.TypeReg:
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = root.WriteFile(h.Name, data, 0o644)
			}
		}
		if err != nil {
			return err
		}
	}
}

// A checkout without history is distinguished from one that should have the commit: only the
// second is a failure.
func TestTakeOut(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("NO GIT, and CI is set: ", err)
		}
		t.Skip("SKIPPED, NOTHING WAS TESTED: there is no git here: ", err)
	}
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	whole := filepath.Join(dir, "whole")
	git("init", "-q", whole)
	if err := os.MkdirAll(filepath.Join(whole, "app"), 0o755); err != nil {
		t.Fatal(err)
	}
	var commits []string
	for _, text := range []string{"first", "second"} {
		if err := os.WriteFile(filepath.Join(whole, "app", "file"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		git("-C", "whole", "add", ".")
		git("-C", "whole", "commit", "-q", "-m", text)
		commits = append(commits, git("-C", "whole", "rev-parse", "HEAD"))
	}
	git("clone", "-q", "--depth=1", "file://"+whole, "shallow")
	git("init", "-q", "exported")
	git("-C", "exported", "commit", "-q", "--allow-empty", "-m", "all")
	if err := os.Mkdir(filepath.Join(dir, "none"), 0o755); err != nil {
		t.Fatal(err)
	}
	const never = "0123456789012345678901234567890123456789"
	for _, tt := range []struct {
		name, top, commit string
		history, found    bool
	}{
		{"there", "whole", commits[0], true, true},
		{"never was", "whole", never, true, false},
		{"shallow", "shallow", commits[0], false, false},
		{"shallow, and there all the same", "shallow", commits[1], true, true},
		{"no checkout", "none", commits[0], false, false},
		{"exported tree", "exported", commits[0], false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			into := t.TempDir()
			err := takeOut(filepath.Join(dir, tt.top), tt.commit, into)
			if (err == nil) != tt.found || errors.Is(err, errNoHistory) == tt.history {
				t.Fatalf("%v", err)
			}
			text, _ := os.ReadFile(filepath.Join(into, "app", "file"))
			if want := map[string]string{commits[0]: "first", commits[1]: "second"}[tt.commit]; tt.found && string(text) != want {
				t.Errorf("%q, not %q", text, want)
			}
		})
	}
}
