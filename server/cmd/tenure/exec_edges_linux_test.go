package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/store"
)

// Each subtest checks the claim in the comment of its function.
func TestExecEdges(t *testing.T) {
	e := newExecRig(t)
	t.Run("no restart", e.noRestart)
	t.Run("second signal, keeper paused", e.forcedPastKeeper)
	t.Run("ended while paused", e.endedWhilePaused)
	t.Run("stopped command", e.stoppedCommand)
	t.Run("terminal that is not the input", e.terminalAside)
	t.Run("files and pipes", e.files)
	t.Run("killed in line", e.killedInLine)
	t.Run("refused", e.refused)
	t.Run("stop timeout", e.stopTimeout)
	t.Run("priority", e.priority)
}

// A command that ignores SIGTERM is killed after --stop-timeout.
func (e *execRig) stopTimeout(t *testing.T) {
	t.Parallel()
	w, pid := e.one(t, "deaf", []string{"--stop-timeout=100ms", "--ttl=30s"}, `trap '' TERM; `+announce+`exec sleep 1000`)
	_ = w.Process.Signal(syscall.SIGTERM)
	if code := w.code(); code != 128+9 || running(pid) {
		t.Errorf("exit code %d\n%s", code, &w.stderr)
	}
}

// --priority is the priority of the candidate.
func (e *execRig) priority(t *testing.T) {
	t.Parallel()
	e.one(t, "ranked", []string{"--priority=7"}, announce+`exec sleep 1000`)
	all, err := e.store.Sessions(t.Context(), store.Scope{"ranked"}, store.Page{})
	if err != nil || len(all) != 1 || all[0].Candidate.Priority != 7 {
		t.Errorf("%+v, %v", all, err)
	}
}

// one starts a command that is one process, and waits until it has written its pid.
func (e *execRig) one(t *testing.T, group string, flags []string, script string) (*wrapped, int) {
	t.Helper()
	w := execute(t, etcdURL(e.engine.Members[0].Addr()), group, flags, "bash", "-c", script)
	until(t, "it runs", func() bool { return len(w.pids()) == 1 && w.promised() > 0 })
	return w, w.pids()[0]
}

const announce = `echo "$TENURE_FENCING_FILE" > $DIR/where; echo $BASHPID >> $DIR/beats; `

// After a signal to stop, the command is not restarted, even if leadership is lost later.
func (e *execRig) noRestart(t *testing.T) {
	t.Parallel()
	w, pid := e.one(t, "no-restart", []string{"--restart=on-lost"}, `trap 'touch $DIR/term' TERM; `+announce+`while :; do read -rt 1 <> <(:); done`)
	_ = w.Process.Signal(syscall.SIGTERM)
	until(t, "it was told", func() bool { _, err := os.Stat(filepath.Join(w.dir, "term")); return err == nil })
	_ = w.Process.Signal(syscall.SIGSTOP)
	until(t, "it was killed", func() bool { return !running(pid) })
	_ = w.Process.Signal(syscall.SIGCONT)
	if code := w.code(); code != 75 || len(w.pids()) != 1 {
		t.Errorf("exit code %d, begun by %v\n%s", code, w.pids(), &w.stderr)
	}
}

// The second signal kills the command even if the keeper hangs, and exec ends.
func (e *execRig) forcedPastKeeper(t *testing.T) {
	t.Parallel()
	w, pid := e.one(t, "forced", []string{"--restart=on-lost", "--ttl=20s"}, `trap 'touch $DIR/term' TERM; `+announce+`while :; do read -rt 1 <> <(:); done`)
	_ = w.Process.Signal(syscall.SIGTERM)
	until(t, "it was told", func() bool { _, err := os.Stat(filepath.Join(w.dir, "term")); return err == nil })
	_ = syscall.Kill(childrenOf(w.Process.Pid)[0], syscall.SIGSTOP)
	_ = w.Process.Signal(syscall.SIGTERM)
	if code := w.code(); code != 128+9 || running(pid) || len(w.pids()) != 1 {
		t.Errorf("exit code %d, begun by %v\n%s", code, w.pids(), &w.stderr)
	}
}

// If the command ended by itself, exec has its exit code, even if the wrapper was paused then
// and until after the deadline.
func (e *execRig) endedWhilePaused(t *testing.T) {
	t.Parallel()
	for n := range 4 {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			w, pid := e.one(t, "paused-"+strconv.Itoa(n), nil, announce+`until test -e $DIR/go; do read -rt 0.02 <> <(:); done; exit 7`)
			_ = w.Process.Signal(syscall.SIGSTOP)
			deadline := w.promised()
			if err := os.WriteFile(filepath.Join(w.dir, "go"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			until(t, "it has ended, and the deadline is over", func() bool { return !running(pid) && clock.System().Now() > deadline })
			_ = w.Process.Signal(syscall.SIGCONT)
			if code := w.code(); code != 7 {
				t.Errorf("exit code %d\n%s", code, &w.stderr)
			}
		})
	}
}

// A stopped command gets signals to end, and the SIGTERM at the end of its term.
func (e *execRig) stoppedCommand(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"signal", "closed link"} {
		w, pid := e.one(t, "stopped-"+how[:6], []string{"--ttl=30s", "--grace=10s"}, `trap 'touch $DIR/term; exit 9' TERM; `+announce+`while :; do read -rt 1 <> <(:); done`)
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		until(t, "it is stopped", func() bool { return !acting(pid) })
		if how == "signal" {
			_ = w.Process.Signal(syscall.SIGTERM)
			if code := w.code(); code != 9 {
				t.Errorf("exit code %d\n%s", code, &w.stderr)
			}
		} else {
			_ = w.Process.Kill() // the keeper stops what is left without a wrapper
		}
		until(t, "it was told", func() bool { _, err := os.Stat(filepath.Join(w.dir, "term")); return err == nil })
	}
}

// A command whose input is a file can still use the terminal.
func (e *execRig) terminalAside(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ours, its := pty(t)
	defer func() { _ = ours.Close() }()
	cmd := exec.Command(self, "exec", "-q", "--store="+etcdURL(e.engine.Members[0].Addr()), "--ttl=30s", "aside", "--", "sh", "-c", `echo name? > /dev/tty; read x < /dev/tty; echo "got-$x" > "$DIR/said"`)
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), mainEnv+"=1", "DIR="+dir)
	var log child.Buffer
	cmd.Stderr = &log
	// Descriptor 3 is the terminal, so that it becomes the controlling one: no standard stream is a terminal.
	cmd.ExtraFiles = []*os.File{its}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = its.Close()
	var screen child.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := ours.Read(buf)
			_, _ = screen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	defer func() {
		_ = cmd.Process.Kill()
		<-done
		awaitTerminalClosed(t, read)
	}()
	until(t, "it asks", func() bool { return strings.Contains(screen.String(), "name?") })
	if _, err := ours.WriteString("hello\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(execWait):
		t.Fatalf("it has not ended\n%s%s", &screen, &log)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "said")); string(text) != "got-hello\n" {
		t.Errorf("it read %q\n%s%s", text, &screen, &log)
	}
}

// The command inherits every file that its caller has opened for it, and the default action
// of SIGPIPE. It runs to its end even if nobody reads exec's messages.
func (e *execRig) files(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for _, text := range []string{"three", "four"} {
		path := filepath.Join(t.TempDir(), text)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	r, mute, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mute.Close() }()
	_ = r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), execWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "exec", "--store="+etcdURL(e.engine.Members[0].Addr()), "--ttl=30s", "files", "--", "bash", "-c",
		`read x <&3; read y <&4; test "$x$y" = threefour || exit 3; (kill -PIPE $BASHPID; exit 0); test $? = 141 || exit 4; exit 6`)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	cmd.Stderr, cmd.ExtraFiles = mute, files
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 6 {
		t.Errorf("it ended with %v, want 6", cmd.ProcessState)
	}
}

// A wrapper that is killed while it waits leaves no file behind.
func (e *execRig) killedInLine(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e.one(t, "line", nil, announce+"exec sleep 1000")
	dir := t.TempDir()
	var log child.Buffer
	cmd := exec.Command(self, "exec", "--store="+etcdURL(e.engine.Members[0].Addr()), "line", "--", "true")
	cmd.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+dir)
	cmd.Stderr = &log
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	left := func() int { names, _ := filepath.Glob(filepath.Join(dir, "tenure-exec-*")); return len(names) }
	looks := 0
	until(t, "it waits, with a keeper that waits too", func() bool {
		if k := childrenOf(cmd.Process.Pid); len(k) == 1 && asleep(k[0]) {
			looks++
		} else {
			looks = 0
		}
		return looks > 20 && strings.Contains(log.String(), "waiting") && left() == 1
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	until(t, "nothing is left", func() bool { return left() == 0 })
}

// asleep reports that none of its threads runs.
func asleep(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return !slices.ContainsFunc(tasks, func(task string) bool {
		stat, err := os.ReadFile(task)
		return err == nil && !strings.Contains(string(stat), ") S ")
	})
}

// A candidate that is not elected because of a cordon prints the cause.
func (e *execRig) refused(t *testing.T) {
	t.Parallel()
	addr := etcdURL(e.engine.Members[0].Addr())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cordon := exec.Command(self, "cordon", "barred", "--yes", "--store="+addr)
	cordon.Env = append(os.Environ(), mainEnv+"=1")
	if out, err := cordon.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := startServe(t, "--store="+addr)
	w := execute(t, s.ready.URL, "barred", []string{"--id=barred", "--wait=4s", "-q"}, "true")
	if code, text := w.code(), w.stderr.String(); code != 124 || !strings.Contains(text, "cordoned") {
		t.Errorf("exit code %d\n%s", code, text)
	}
}
