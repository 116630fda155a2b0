//go:build unix

// Command mutations applies each mutation of tools/mutations/*.txt to a copy of the
// repository and requires that the mutation's test fails. A mutation is a small,
// realistic mistake in product code. One that survives shows what the tests miss.
//
// A list has one block per mutation:
//
//	== short-name
//	file: path/from/the/top.go
//	old: exact text; repeat the key for further lines
//	new: replacement; repeat the key for further lines, leave it out to delete
//	test: shell command that fails with the mutation and passes without it
//
// Limitations. The copy has the files that git tracks or would track, and no .git
// folder. A test that needs more than that cannot catch a mutation.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	limit := flag.Duration("limit", 15*time.Minute, "time limit of one test command")
	list := flag.Bool("list", false, "list the mutations and stop")
	verbose := flag.Bool("v", false, "print the end of each test's output")
	flag.Usage = func() {
		_, _ = fmt.Fprintln(flag.CommandLine.Output(), "usage: mutations [-list] [-v] [-limit d] [part of a name or of a list's name]...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(flag.Args(), *limit, *list, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

func run(filters []string, limit time.Duration, list, verbose bool) error {
	top, err := repository()
	if err != nil {
		return err
	}
	all, err := readLists(top)
	if err != nil {
		return err
	}
	all = selected(all, filters)
	if len(all) == 0 {
		return fmt.Errorf("no mutation in %s matches %q", folder, filters)
	}
	if list {
		for _, m := range all {
			fmt.Printf("%-14s %-34s %s\n", m.list, m.name, m.test)
		}
		return nil
	}
	tree, err := copyTree(top)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tree) }()
	r := runner{tree: tree, limit: limit, verbose: verbose, baseline: map[string]error{}}
	fmt.Printf("%-34s %-10s %8s  %s\n", "mutation", "result", "seconds", "test")
	bad := 0
	for _, m := range all {
		start := time.Now()
		result, err := r.try(&m)
		if err != nil {
			result = "error"
		}
		if result != "caught" {
			bad++
		}
		fmt.Printf("%-34s %-10s %8.1f  %s\n", m.name, result, time.Since(start).Seconds(), m.test)
		if err != nil {
			fmt.Println("  " + strings.ReplaceAll(err.Error(), "\n", "\n  "))
		}
	}
	fmt.Printf("\n%d mutations, %d caught\n", len(all), len(all)-bad)
	if bad > 0 {
		return fmt.Errorf("%d of %d mutations were not caught", bad, len(all))
	}
	return nil
}

// repository finds the folder that holds the lists.
func repository() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, serr := os.Stat(filepath.Join(dir, folder)); serr == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = fmt.Errorf("found no folder %s here or above", folder)
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// copyTree copies what git tracks or would track, so that no test run can see a
// mutation by accident and none can be left behind.
func copyTree(top string) (string, error) {
	cmd := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = top
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("list the files of %s: %w", top, err)
	}
	tree, err := os.MkdirTemp("", "mutations-")
	if err != nil {
		return "", err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(top, name), filepath.Join(tree, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", errors.Join(err, os.RemoveAll(tree))
		}
	}
	return tree, nil
}

func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err // deleted, and the index does not know yet
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	if info.IsDir() {
		return nil // another repository inside this one
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}

type runner struct {
	tree     string
	limit    time.Duration
	verbose  bool
	baseline map[string]error // by test command, without a mutation
}

// try applies one mutation, runs its test and takes the mutation back.
func (r *runner) try(m *mutation) (result string, err error) {
	if _, known := r.baseline[m.test]; !known {
		out, err := r.shell(m.test)
		r.baseline[m.test] = err
		if err != nil {
			fmt.Println(out)
		}
	}
	if err := r.baseline[m.test]; err != nil {
		return "", fmt.Errorf("the test fails without the mutation: %w", err)
	}
	path := filepath.Join(r.tree, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	mutated, err := m.apply(string(text))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, []byte(mutated), 0o600); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, text, 0o600)) }()
	if filepath.Ext(m.file) == ".go" {
		// One cheap check of go vet: what matters is that the package and its tests compile.
		if out, err := r.shell("cd " + quote(filepath.Dir(m.file)) + " && go vet -nilfunc ."); err != nil {
			return "", fmt.Errorf("the mutated package does not compile: %w\n%s", err, out)
		}
	}
	out, err := r.shell(m.test)
	if r.verbose {
		fmt.Println(out)
	}
	if _, failed := errors.AsType[*exec.ExitError](err); failed {
		return "caught", nil
	}
	return "SURVIVED", err
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// shell runs a command at the top of the copy and returns the end of its output. A
// command that exceeds the limit is neither caught nor survived: it is an error.
func (r *runner) shell(command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", command)
	cmd.Dir = r.tree
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
	// A test starts programs of its own: end the whole group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("no result within %v", r.limit)
	}
	text := out.String()
	const most = 4096
	return text[max(0, len(text)-most):], err
}
