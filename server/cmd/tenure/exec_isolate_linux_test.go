package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// tree starts 20 processes that ignore SIGTERM: orphans, sessions, and orphans of sessions.
const tree = `
trap '' TERM
echo "$TENURE_FENCING_FILE" > "$DIR/where"
for i in 1 2 3 4 5; do
	( setsid sh -c '( sleep 1000 & sleep 1000 & ); exec sleep 1000' < /dev/null & )
done
for i in 1 2 3 4; do ( sleep 1000 & ); done
exec sleep 1000
`

const treeSize = 20

// below lists the descendants of a process.
func below(pid int) []int {
	var all []int
	for _, child := range childrenOf(pid) {
		all = append(append(all, child), below(child)...)
	}
	return all
}

// sleeping reports whether all processes have executed what the script starts.
func sleeping(pids []int) bool {
	for _, pid := range pids {
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(name) != "sleep\n" {
			return false
		}
	}
	return true
}

// With --isolate no process of the command is left when the group is vacant, although
// wrapper and keeper were killed together. TENURE_ROUNDS sets the number of rounds.
func TestExecIsolated(t *testing.T) {
	needNamespaces(t)
	rounds, _ := execRounds(t)
	t.Cleanup(func() { t.Logf("isolated, wrapper and keeper killed: %d rounds; failed: %v", rounds, t.Failed()) })
	e := newExecRig(t)
	for n := range rounds {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			group := "isolated-" + strconv.Itoa(n)
			w := execute(t, etcdURL(e.engine.Members[0].Addr()), group, []string{"--isolate"}, "sh", "-c", tree)
			var pids []int
			until(t, "all processes run", func() bool {
				if k := childrenOf(w.Process.Pid); len(k) == 1 {
					pids = below(k[0])
				}
				return len(pids) == treeSize && sleeping(pids) && w.promised() > 0
			})
			ctx, cancel := context.WithTimeout(t.Context(), execWait)
			defer cancel()
			var watching sync.WaitGroup
			watching.Go(func() { e.vacantMeansEmpty(ctx, t, group, pids) })
			keeper := childrenOf(w.Process.Pid)[0]
			_ = w.Process.Kill()
			_ = syscall.Kill(keeper, syscall.SIGKILL)
			watching.Wait()
			next := e.succeed(t, group)
			for _, pid := range pids {
				if running(pid) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
					t.Errorf("process %d runs while the next leader has token %d\n%s", pid, next.Token, &w.stderr)
				}
			}
		})
	}
}

// An isolated command has its own pid numbers, exit code, input and signals.
func TestExecIsolatedRuns(t *testing.T) {
	needNamespaces(t)
	e := newExecRig(t)
	w := execute(t, etcdURL(e.engine.Members[0].Addr()), "numbers", []string{"--isolate"}, "bash", "-c",
		`test "$(cat /proc/1/cmdline | tr '\0\n' '  ' | cut -d' ' -f2)" = exec-keeper || exit 3
		trap 'exit 7' TERM; touch $DIR/up; while :; do read -rt 1 <> <(:); done`)
	until(t, "it runs", func() bool { _, err := os.Stat(w.dir + "/up"); return err == nil || exited(w) })
	_ = w.Process.Signal(syscall.SIGTERM)
	if code := w.code(); code != 7 {
		t.Errorf("exit code %d\n%s", code, &w.stderr)
	}
}

func exited(w *wrapped) bool {
	select {
	case <-w.exited:
		return true
	default:
		return false
	}
}

// needNamespaces skips a test on systems that forbid pid namespaces. In CI it fails.
func needNamespaces(t *testing.T) {
	t.Helper()
	w := execute(t, "http://127.0.0.1:1", "g", []string{"--dev", "--isolate"}, "true")
	if code := w.code(); code == 0 {
		return
	}
	text := w.stderr.String()
	switch {
	case !strings.Contains(text, "isolate: cannot create a pid namespace"):
		t.Fatal(text)
	case os.Getenv("CI") != "":
		t.Fatal("CI is set, and this system forbids pid namespaces: ", text)
	default:
		t.Skip("SKIPPED, NOTHING WAS TESTED: this system forbids pid namespaces: ", text)
	}
}
