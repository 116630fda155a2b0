package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Each subtest checks the claim in the comment of its function.
func TestExec(t *testing.T) {
	e := newExecRig(t)
	t.Run("runs", e.runs)
	t.Run("signals", e.signals)
	t.Run("not elected", e.notElected)
	t.Run("asked to step down", e.stepDown)
	t.Run("once", e.once)
	t.Run("service", e.service)
	t.Run("terminal", e.terminal)
}

// exec has the command's exit code. The command runs without a shell, with its input, its output and the term in its
// environment. Processes that it leaves behind are stopped before the group is released.
func (e *execRig) runs(t *testing.T) {
	t.Parallel()
	addr := etcdURL(e.engine.Members[0].Addr())
	for _, tt := range []struct {
		name    string
		command []string
		code    int
	}{
		{"ok", []string{"true"}, 0},
		{"its own code", []string{"sh", "-c", "exit 7"}, 7},
		{"a signal", []string{"sh", "-c", "kill -KILL $$"}, 128 + 9},
		{"no shell", []string{"test", "$HOME", "=", "$HOME"}, 0},
		{"environment", []string{"sh", "-c", `
			. "$TENURE_FENCING_FILE"
			test "$TENURE_GROUP" = runs -a "$TENURE_NODE" = me -a "$TENURE_FENCING_TOKEN" -gt 0 -a -n "$TENURE_DEPLOYMENT" -a "${#TENURE_FENCING_SESSION}" = 16 &&
			test "$group" = runs -a "$node" = me -a "$token" = "$TENURE_FENCING_TOKEN" -a "$deployment" = "$TENURE_DEPLOYMENT" -a "$session" = "$TENURE_FENCING_SESSION" -a "$deadline_boottime_ns" -gt 0`}, 0},
		{"leaves some behind", []string{"sh", "-c", `(sleep 1000 & echo $! >> "$DIR/beats"); setsid sleep 1000 & echo $! >> "$DIR/beats"; exit 3`}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := execute(t, addr, "runs", []string{"--id=me"}, tt.command...)
			if code := w.code(); code != tt.code {
				t.Errorf("exit code %d, want %d\n%s", code, tt.code, &w.stderr)
			}
			for _, pid := range w.pids() {
				if running(pid) {
					t.Errorf("process %d still runs", pid)
				}
			}
			if v, err := e.store.Read(t.Context(), "runs"); err != nil || v.State != tenure.Vacant {
				t.Errorf("the group is %v, %v", v.State, err)
			}
		})
	}
}

// Signals reach the command. The second one that asks for an end kills it. An exec that waits
// for leadership just ends.
func (e *execRig) signals(t *testing.T) {
	t.Parallel()
	addr := etcdURL(e.engine.Members[0].Addr())
	said := func(w *wrapped, what string) {
		t.Helper()
		until(t, what, func() bool {
			_, err := os.Stat(filepath.Join(w.dir, what))
			return err == nil
		})
	}
	w := execute(t, addr, "signals", nil, "bash", "-c", `
		trap 'touch $DIR/usr1' USR1; trap 'touch $DIR/term' TERM; touch $DIR/up
		while :; do read -rt 1 <> <(:); done`)
	said(w, "up")
	waits := execute(t, addr, "signals", nil, "touch", "never")
	until(t, "it waits", func() bool { return strings.Contains(waits.stderr.String(), "waiting: group \"signals\" is led by") })
	_ = waits.Process.Signal(syscall.SIGTERM)
	if code := waits.code(); code != 128+15 {
		t.Errorf("stopped in line: exit code %d\n%s", code, &waits.stderr)
	}
	_ = w.Process.Signal(syscall.SIGUSR1)
	said(w, "usr1")
	_ = w.Process.Signal(syscall.SIGTERM)
	said(w, "term")
	_ = w.Process.Signal(syscall.SIGTERM)
	if code := w.code(); code != 128+9 {
		t.Errorf("exit code %d, want that of SIGKILL\n%s", code, &w.stderr)
	}
}

// With --no-wait, or at the end of --wait, exec ends with 124 and names the leader.
func (e *execRig) notElected(t *testing.T) {
	t.Parallel()
	addr := etcdURL(e.engine.Members[0].Addr())
	w, _ := e.startStubborn(t, "busy")
	for _, flag := range []string{"--no-wait", "--wait=300ms"} {
		second := execute(t, addr, "busy", []string{flag}, "touch", "never")
		if code := second.code(); code != 124 || !strings.Contains(second.stderr.String(), "led by") {
			t.Errorf("%s: exit code %d\n%s", flag, code, &second.stderr)
		}
	}
	free := execute(t, addr, "free", []string{"--no-wait"}, "true")
	if code := free.code(); code != 0 {
		t.Errorf("a vacant group: exit code %d\n%s", code, &free.stderr)
	}
	_ = w.Process.Kill()
}

// A step-down frees the group after the command has stopped. With --restart=on-lost exec
// campaigns again.
func (e *execRig) stepDown(t *testing.T) {
	t.Parallel()
	addr := etcdURL(e.engine.Members[0].Addr())
	for _, restart := range []string{"never", "on-lost"} {
		group := "asked-" + restart
		w := execute(t, addr, group, []string{"--restart=" + restart}, "bash", "-c", `echo $BASHPID >> $DIR/beats; exec sleep 1000`)
		until(t, "it runs", func() bool { return len(w.pids()) == 1 })
		v, err := e.store.Read(t.Context(), group)
		if err == nil {
			err = e.store.Ask(t.Context(), v.Holder, store.Request{ID: "1", Verb: store.StepDown, Group: group, TTL: time.Minute})
		}
		if err != nil {
			t.Fatal(err)
		}
		first := w.pids()[0]
		until(t, "it was stopped", func() bool { return !running(first) })
		if restart == "never" {
			if code := w.code(); code != 75 {
				t.Errorf("exit code %d\n%s", code, &w.stderr)
			}
			continue
		}
		until(t, "it runs again", func() bool { return len(w.pids()) == 2 })
		if next, err := e.store.Read(t.Context(), group); err != nil || next.Token <= v.Token {
			t.Errorf("token %d after %d, %v", next.Token, v.Token, err)
		}
		_ = w.Process.Signal(syscall.SIGTERM)
		if code := w.code(); code != 128+15 {
			t.Errorf("exit code %d\n%s", code, &w.stderr)
		}
	}
}

// A migration that is killed half way is taken over by a waiting exec. The others, waiting or
// late, find it done and end with 0 without running it.
func (e *execRig) once(t *testing.T) {
	t.Parallel()
	addr := etcdURL(e.engine.Members[0].Addr())
	shared := t.TempDir()
	start := func(id string) *wrapped {
		return execute(t, addr, "migrations", []string{"--once=schema-42", "--id=" + id}, "bash", "-c",
			fmt.Sprintf(`echo "$TENURE_NODE" >> %[1]s/begun; until test -e %[1]s/go; do sleep 0.1; done; echo "$TENURE_NODE" >> %[1]s/ended`, shared))
	}
	text := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(shared, name))
		return string(b)
	}
	first := start("first")
	until(t, "the first has begun", func() bool { return text("begun") == "first\n" })
	second, third := start("second"), start("third")
	for _, w := range []*wrapped{second, third} {
		until(t, "the others wait", func() bool { return strings.Contains(w.stderr.String(), "waiting") })
	}
	_ = first.Process.Kill()
	until(t, "another has begun", func() bool { return strings.Count(text("begun"), "\n") == 2 })
	if err := os.WriteFile(filepath.Join(shared, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	late := start("late")
	for _, w := range []*wrapped{second, third, late} {
		if code := w.code(); code != 0 {
			t.Errorf("exit code %d\n%s", code, &w.stderr)
		}
	}
	if strings.Count(text("begun"), "\n") != 2 || strings.Count(text("ended"), "\n") != 1 {
		t.Errorf("begun by %q, ended by %q", text("begun"), text("ended"))
	}
	if !strings.Contains(late.stderr.String(), `"schema-42"`) {
		t.Errorf("the late one says %s", &late.stderr)
	}
}

// exec works with a service as well.
func (e *execRig) service(t *testing.T) {
	t.Parallel()
	s := startServe(t, "--store="+etcdURL(e.engine.Members[0].Addr()))
	w := execute(t, s.ready.URL, "remote", []string{"--once=k"}, "sh", "-c", "exit 0")
	if code := w.code(); code != 0 {
		t.Errorf("exit code %d\n%s", code, &w.stderr)
	}
	if v, err := e.store.Read(t.Context(), "remote"); err != nil || v.Token == 0 {
		t.Errorf("%+v, %v", v, err)
	}
}
