//go:build unix

// Package docs is the documentation. Only the tests are Go.
package docs

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// notPasted are the blocks that cannot run here, each with its reason. A block is named by a
// line of it.
var notPasted = []struct{ file, line, reason string }{
	{"README.md", "make run ", "runs until Ctrl-C, and then every test, this one too; the tests of the lab run it"},
	{"CONTRIBUTING.md", "make check test ", "runs every test, this one too"},
	{"docs/operations.md", "tenure serve --listen=10.0.0.9:7400 ", "needs the address and the certificate of another host; docs/auth.md has the same on loopback"},
}

// Every command of the documentation works when it is pasted into a fresh shell, in the root
// of a fresh clone. The blocks of a page are pasted in order into one shell.
func TestDocumentedCommands(t *testing.T) {
	clone := t.TempDir()
	copyTree(t, clone, "..")
	bin := t.TempDir() // some pages expect that the command is installed
	paste(t, clone, bin, "", "go build -C server -o "+bin+" ./cmd/tenure\n")
	ports, err := child.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	used := make([]bool, len(notPasted))
	pages := 0
	err = filepath.WalkDir(clone, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		name, err := filepath.Rel(clone, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		script := ""
		for _, block := range commands(string(text)) {
			at := slices.IndexFunc(notPasted, func(n struct{ file, line, reason string }) bool {
				return n.file == name && strings.Contains("\n"+block, "\n"+n.line)
			})
			if at < 0 {
				script += block
			} else {
				used[at] = true
			}
		}
		if script != "" {
			pages++
			t.Run(name, func(t *testing.T) { paste(t, clone, bin, ports[0], script) })
		}
		return nil
	})
	if err != nil || pages < 3 {
		t.Errorf("%d pages have commands: %v", pages, err)
	}
	for i, n := range notPasted {
		if !used[i] {
			t.Errorf("%s has no block with %q: remove it from the list", n.file, n.line)
		}
	}
}

// commands returns the blocks of a page that are marked as sh or console, without their
// indentation. Of a console block it returns the lines after the prompt.
func commands(page string) (blocks []string) {
	indent, language := "", ""
	for line := range strings.Lines(page) {
		fence := strings.TrimSpace(line)
		switch {
		case language == "" && strings.HasPrefix(fence, "```"):
			indent, _, _ = strings.Cut(line, "```")
			if language = strings.TrimPrefix(fence, "```"); language == "sh" || language == "console" {
				blocks = append(blocks, "")
			} else if language == "" {
				language = "none"
			}
		case fence == "```":
			language = ""
		case language == "sh":
			blocks[len(blocks)-1] += strings.TrimPrefix(line, indent)
		case language == "console" && strings.HasPrefix(fence, "$ "):
			blocks[len(blocks)-1] += strings.TrimPrefix(fence, "$ ") + "\n"
		}
	}
	return blocks
}

// paste runs a script with a port of its own in place of the default one, and stops what the
// script left running.
func paste(t *testing.T, dir, bin, addr, script string) {
	t.Helper()
	const limit = 5 * time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	const atEnd = `
trap - ERR
kill $(jobs -p) 2>/dev/null
wait
exit ${failed:-0}
`
	script = "trap 'echo \"FAILED ($?): $BASH_COMMAND\" >&2; failed=1' ERR\n" + script + atEnd
	if addr != "" {
		script = strings.ReplaceAll(script, "127.0.0.1:7400", addr)
	}
	tmp := t.TempDir()
	file := filepath.Join(tmp, "script")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "bash", "-u", file)
	cmd.Dir = dir
	for _, kv := range os.Environ() {
		// A fresh shell does not have what the tests were started with.
		if name, _, _ := strings.Cut(kv, "="); name != "GOWORK" && name != "CI" && !strings.HasPrefix(name, "TENURE_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp, "PATH="+bin+":"+os.Getenv("PATH"), "TENURE_SERVE_LISTEN="+addr, "TENURE_STORE=http://"+addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = kill
	// A file, not a pipe: background processes would keep a pipe open.
	out, err := os.Create(filepath.Join(tmp, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if cmd.Process != nil {
		_ = kill()
	}
	if err != nil {
		text, _ := os.ReadFile(out.Name())
		t.Errorf("%v\n%s", err, text)
	}
}

// copyTree copies what a clone has.
func copyTree(t *testing.T, to, from string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case e.IsDir() && name != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "node_modules" || e.Name() == "tenure-data"):
			return filepath.SkipDir
		case e.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		case !e.Type().IsRegular() || name == "tenure":
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), data, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The commands of a page are those in its sh and console blocks, also in a list.
func TestCommandsOfAPage(t *testing.T) {
	const page = "a\n```sh\none\n  two\n```\n1. b\n\n   ```console\n   $ three\n   output\n   ```\n```json\n{}\n```\n```\nnot\n```\n"
	if got := commands(page); !slices.Equal(got, []string{"one\n  two\n", "three\n"}) {
		t.Errorf("%q", got)
	}
}
