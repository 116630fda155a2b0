package main

import (
	"bytes"
	"context"
	"errors"
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
)

// stubborn is a command that is hard to stop: three processes that ignore SIGTERM, one of them
// re-parented and in its own session. Each writes its pid to a file and then reads from a pipe
// that nobody writes to.
const stubborn = `
trap '' TERM
stay() { mkfifo "$DIR/pipe.$BASHPID"; exec 9<> "$DIR/pipe.$BASHPID"; echo "$BASHPID" >> "$DIR/pids"; while :; do read -rt 60 -u 9; done; }
export -f stay
( stay & )
( setsid bash -c stay < /dev/null & )
stay
`

// successor is the command of the next holder: it reports that it runs, and does not end.
const successor = `echo $$ > "$DIR/next.new" && mv "$DIR/next.new" "$DIR/next" && exec sleep 600`

const (
	lockTTL = 3 * time.Second
	// arrival is the time for the second wrapper to start waiting for the lock.
	arrival = 2 * time.Second
	// beside is how long processes are watched that run at the same time as the next holder.
	beside = 5 * time.Second
	// patience is how long to wait for the next holder: Consul ends a session after up to 30 s,
	// and releases its lock 15 s later.
	patience = 75 * time.Second
	// away is how long the engine is down: longer than the leases of 3 s, and than the 3 s
	// after which consul lock gives up.
	away = 10 * time.Second
)

// If a wrapper is paused until its lease has expired, nothing of it runs when the next holds
// the lock.
func TestPaused(t *testing.T) {
	hardship(t, 0, func(_ *testing.T, h *held) { h.signal(syscall.SIGSTOP) })
}

// If a wrapper is killed, nothing of it runs when the next holds the lock.
func TestKilled(t *testing.T) {
	hardship(t, 0, func(_ *testing.T, h *held) { h.signal(syscall.SIGKILL) })
}

// While the engine is down nobody knows who holds the lock, so nothing runs when it is back.
func TestEngineGone(t *testing.T) {
	hardship(t, 0, func(_ *testing.T, h *held) {
		h.engine.Kill()
		time.Sleep(away)
		h.engine.Start()
	})
}

// A revoked lease is free before its holder knows, so its command is stopped at once.
func TestRevoked(t *testing.T) {
	// The keeper must notice and kill, which takes longer on other machines.
	hardship(t, 500*time.Millisecond, func(t *testing.T, h *held) {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		if err := h.wrapper.revoke(ctx, h.engine.Addr()); err != nil {
			t.Fatal(err)
		}
	})
}

// A wrapper that gets SIGTERM twice releases the lock when its command has ended.
func TestTerminated(t *testing.T) {
	hardship(t, 0, func(_ *testing.T, h *held) {
		h.signal(syscall.SIGTERM)
		time.Sleep(time.Second) // two signals at once would count as one
		h.signal(syscall.SIGTERM)
	})
}

// The environment of each winner's command has a number that is larger than all before.
func TestNumber(t *testing.T) {
	names := map[string]string{tenureExec: "TENURE_FENCING_TOKEN", etcdctlLock: "ETCD_LOCK_REV"}
	r := newRow(t)
	each(t, r, func(t *testing.T, w wrapper, path string, e lockEngine) {
		var numbers []string
		last := 0
		for range 3 {
			out, code := once(t, w.command(path, e.Addr()), "env")
			if code != 0 {
				t.Fatalf("exit code %d", code)
			}
			for line := range strings.Lines(out) {
				k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
				if k != names[w.name] {
					continue
				}
				n, err := strconv.Atoi(v)
				if err != nil || w.name == tenureExec && n <= last {
					t.Errorf("%s after %d: %v", line, last, err)
				}
				last = n
				numbers = append(numbers, v)
			}
		}
		if len(numbers) == 0 {
			r.say(w.name, "no")
			return
		}
		r.say(w.name, "yes: `%s` was %s", names[w.name], strings.Join(numbers, ", "))
	})
}

// The wrapper ends with the exit code of the command.
func TestExitCode(t *testing.T) {
	r := newRow(t)
	each(t, r, func(t *testing.T, w wrapper, path string, e lockEngine) {
		before := w.command(path, e.Addr())
		_, code := once(t, before, "sh", "-c", "exit 7")
		text := strconv.Itoa(code)
		switch w.name {
		case tenureExec:
			if code != 7 {
				t.Errorf("%s ends with %d", w.name, code)
			}
		case consulLock:
			last := len(before) - 1
			_, asked := once(t, slices.Concat(before[:last], []string{"-child-exit-code"}, before[last:]), "sh", "-c", "exit 7")
			text += fmt.Sprintf(" (%d with `-child-exit-code`)", asked)
		}
		r.say(w.name, "%s", text)
	})
}

// once runs a command under a wrapper until it ends.
func once(t *testing.T, before []string, command ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	args := slices.Concat(before, command)
	text, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
	var ended *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &ended):
		code = ended.ExitCode()
	default:
		t.Fatal(err)
	}
	return string(text), code
}

// held is a lock with a wrapper that holds it and one that waits.
type held struct {
	wrapper wrapper
	engine  lockEngine
	first   *exec.Cmd
	ended   chan struct{}
}

func (h *held) signal(sig syscall.Signal) { _ = h.first.Process.Signal(sig) }

// hardship injects a fault into each wrapper and records what still runs when the next holds
// the lock. For ours that must end within the allowed time.
func hardship(t *testing.T, allowed time.Duration, strike func(t *testing.T, h *held)) {
	r := newRow(t)
	each(t, r, func(t *testing.T, w wrapper, path string, e lockEngine) {
		h := &held{wrapper: w, engine: e, ended: make(chan struct{})}
		before, dir := w.command(path, e.Addr()), t.TempDir()
		h.first = wrap(before, dir, stubborn)
		if err := h.first.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = h.first.Wait()
			close(h.ended)
		}()
		t.Cleanup(func() {
			_ = h.first.Process.Kill()
			<-h.ended
		})
		until(t, "three processes run", func() bool { return len(numbers(dir, "pids")) == 3 })
		pids := numbers(dir, "pids")
		t.Cleanup(func() {
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
		line, leave := context.WithCancel(t.Context())
		inLine := make(chan struct{})
		go func() {
			defer close(inLine)
			standInLine(line, before, dir)
		}()
		t.Cleanup(func() {
			leave()
			<-inLine
			for _, pid := range numbers(dir, "next") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})

		time.Sleep(arrival)
		strike(t, h)
		var text string
		var count int
		var longest time.Duration
		if within(patience, func() bool { return len(numbers(dir, "next")) == 1 }) {
			count, longest = runBeside(pids)
			text = beyond(count, longest, len(pids))
		} else {
			text = fmt.Sprintf("none: it holds the lock, and %d of %d run on", alive(pids), len(pids))
		}
		h.signal(syscall.SIGCONT)
		select {
		case <-h.ended:
			text += "; " + ending(h.first.ProcessState)
		case <-time.After(2 * beside): // consul lock gives its child 5 s
			text += "; the wrapper runs on"
		}
		r.say(w.name, "%s", text)
		if w.name == tenureExec && (len(numbers(dir, "next")) == 0 || count > 0 && longest > allowed) {
			t.Errorf("%d of ours ran for %v beside the next holder: %s", count, longest, text)
		}
	})
}

// wrap runs a command under a wrapper, with DIR in its environment.
func wrap(before []string, dir, script string) *exec.Cmd {
	cmd := exec.Command(before[0], append(before[1:len(before):len(before)], "bash", "-c", script)...)
	cmd.Env = append(os.Environ(), "DIR="+dir)
	cmd.WaitDelay = time.Second
	return cmd
}

// standInLine restarts a wrapper whenever it ends, like a supervisor, until ctx ends.
func standInLine(ctx context.Context, before []string, dir string) {
	for ctx.Err() == nil {
		cmd := wrap(before, dir, successor)
		if cmd.Start() == nil {
			stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait()
			stop()
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// runBeside counts the processes that run, and waits until all have ended.
func runBeside(pids []int) (count int, longest time.Duration) {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		n := alive(pids)
		count = max(count, n)
		if n == 0 || longest > beside {
			return count, longest
		}
		longest = time.Since(began)
	}
}

// alive counts the processes that run.
func alive(pids []int) (n int) {
	for _, pid := range pids {
		if running(pid) {
			n++
		}
	}
	return n
}

func beyond(count int, longest time.Duration, all int) string {
	switch {
	case count == 0:
		return "none"
	case longest > beside:
		return fmt.Sprintf("**%d of %d**, still after %.0f s", count, all, beside.Seconds())
	default:
		return fmt.Sprintf("%d of %d for %s", count, all, seconds(longest))
	}
}

func ending(s *os.ProcessState) string {
	if code := s.ExitCode(); code >= 0 {
		return fmt.Sprintf("exit code %d", code)
	}
	return s.String()
}

// numbers reads the pids in a file of the folder; none if it does not exist yet.
func numbers(dir, name string) []int {
	text, _ := os.ReadFile(filepath.Join(dir, name))
	var all []int
	for field := range bytes.FieldsSeq(text) {
		if n, err := strconv.Atoi(string(field)); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// running reports whether a process runs or is stopped. A zombie does not run.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	return err == nil && !bytes.HasPrefix(rest, []byte(" Z")) && !bytes.HasPrefix(rest, []byte(" X"))
}
