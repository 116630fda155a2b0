package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every library module of a release can be fetched, and the command be installed, by
// somebody who has nothing but a module proxy.
func TestReleaseCanBeFetched(t *testing.T) {
	const version = "v0.0.1-test"
	clone := filepath.Join(t.TempDir(), "clone")
	command(t, "../..", nil, "git", "clone", "--quiet", "--no-hardlinks", ".", clone)
	folder := filepath.Join(t.TempDir(), "release")
	modules, err := Make(clone, version, folder)
	if err != nil {
		t.Fatal(err)
	}
	// The module cache of the users is empty.
	env := append(Environment(filepath.Join(folder, "proxy")), "GOMODCACHE="+t.TempDir(), "GOBIN="+t.TempDir())
	installed := 0
	for _, m := range modules {
		empty := t.TempDir()
		command(t, empty, env, "go", "mod", "init", "example.com/try")
		command(t, empty, env, "go", "get", m.Path+"@"+version)
		if _, err := os.Stat(filepath.Join(folder, "repository", m.Dir, "cmd", "tenure")); err == nil {
			command(t, empty, env, "go", "install", m.Path+"/cmd/tenure@"+version)
			program := filepath.Join(value(env, "GOBIN"), "tenure")
			if said := command(t, empty, env, program, "version"); !strings.Contains(said, version) {
				t.Errorf("tenure version says:\n%s", said)
			}
			installed++
		}
	}
	if len(modules) < 5 || installed != 1 {
		t.Errorf("%d modules, %d commands", len(modules), installed)
	}
	tags := strings.Fields(command(t, filepath.Join(folder, "repository"), nil, "git", "tag", "--points-at", "HEAD"))
	if len(tags) != len(modules) {
		t.Errorf("%d modules have the tags %v", len(modules), tags)
	}
}

// Bad input is refused before anything is made.
func TestRefused(t *testing.T) {
	clone := filepath.Join(t.TempDir(), "clone")
	command(t, "../..", nil, "git", "clone", "--quiet", "--no-hardlinks", ".", clone)
	for _, version := range []string{"", "0.1.0", "v1", "v0.1.0+build", "latest"} {
		if _, err := Make(clone, version, filepath.Join(t.TempDir(), "x")); err == nil {
			t.Errorf("version %q was taken", version)
		}
	}
	if err := os.WriteFile(filepath.Join(clone, "new.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "x")
	if _, err := Make(clone, "v0.1.0", folder); err == nil || !strings.Contains(err.Error(), "not committed") {
		t.Errorf("a tree with changes: %v", err)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("something was made")
	}
}

func value(env []string, name string) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

func command(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
