package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// Every build knows its revision: from version control, from the linker, or from the
// version of a module that was downloaded.
func TestRevision(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for _, tt := range []struct {
		name, version, vcs, linker, want string
	}{
		{"stamped", "v0.1.1-0.20260102030405-0123456789ab", commit, "", commit},
		{"stamped and linked", "", commit, "other", commit},
		{"linked", "(devel)", "", commit, commit},
		{"tag", "v0.1.0", "", "", "server/v0.1.0"},
		{"pre-release tag", "v0.1.0-rc.1", "", "", "server/v0.1.0-rc.1"},
		{"pseudo-version", "v0.1.1-0.20260102030405-0123456789ab", "", "", "0123456789ab"},
		{"pseudo-version without a tag", "v0.0.0-20260102030405-0123456789ab", "", "", "0123456789ab"},
		{"none", "(devel)", "", "", "unknown"},
	} {
		revision = tt.linker
		info := &debug.BuildInfo{Main: debug.Module{Path: "github.com/tenurehq/tenure/server", Version: tt.version}}
		if tt.vcs != "" {
			info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: tt.vcs}}
		}
		if got := describe(info); got.Commit != tt.want || got.Version == "" {
			t.Errorf("%s: version %q, commit %q; want %q", tt.name, got.Version, got.Commit, tt.want)
		}
	}
	revision = ""
}

// The flags of the Makefile set the revision in a build without version control.
func TestLinkedRevision(t *testing.T) {
	if err := exec.Command("git", "-c", "safe.directory=*", "rev-parse", "HEAD").Run(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("NO GIT CHECKOUT, and CI is set: ", err)
		}
		t.Skip("SKIPPED, NOTHING WAS TESTED: no git checkout: ", err)
	}
	makefile, err := exec.Command("make", "-s", "-C", "../../..", "--eval", "print-revision: ; @echo $(REVISION_FLAG)", "print-revision").Output()
	if err != nil {
		t.Fatal(err)
	}
	flag := strings.TrimSpace(string(makefile))
	_, want, ok := strings.Cut(flag, "main.revision=")
	if !ok || want == "" {
		t.Fatalf("REVISION_FLAG is %q", flag)
	}
	program := filepath.Join(t.TempDir(), "tenure")
	if out, err := exec.Command("go", "build", "-buildvcs=false", flag, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program, "version", "-o", "json").Output()
	var got build
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(out)).Decode(&got)
	}
	if err != nil || got.Commit != want || got.Version == "" {
		t.Errorf("%+v, %v; want commit %q", got, err, want)
	}
}
