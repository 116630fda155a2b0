package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// stubborn is a command that is hard to stop: three processes that ignore SIGTERM, one of
// them re-parented and in a session of its own. Each writes its pid every 20 ms, without
// starting another process.
const stubborn = `
trap '' TERM
echo "$TENURE_FENCING_FILE" > "$DIR/where"
beat() { mkfifo "$DIR/$BASHPID"; exec 9<> "$DIR/$BASHPID"; while :; do echo "$BASHPID"; read -rt 0.02 -u 9; done >> "$DIR/beats"; }
export -f beat
( beat & )
( setsid bash -c beat < /dev/null & )
beat
`

// headless adds a process in a session of its own whose first thread has exited, so that it
// looks like a zombie. It runs TestHeadless.
const headless = `( HEADLESS=1 TENURE_TEST_MAIN= setsid "$SELF" -test.run='^TestHeadless$' < /dev/null > /dev/null 2>&1 & )` + stubborn

const (
	execTTL   = 3 * time.Second
	execGrace = 300 * time.Millisecond
	// execWait bounds all waits. It is long, because a machine that runs all tests is slow.
	execWait = 60 * time.Second
)

// wrapped is a running exec, seen from the test.
type wrapped struct {
	*exec.Cmd
	t      *testing.T
	group  string
	dir    string
	stderr child.Buffer
	exited chan struct{}

	// From the fencing file.
	token      fence.Token
	deployment string
	session    string
}

// execute starts exec with a command that has DIR in its environment.
func execute(t *testing.T, store, group string, flags []string, command ...string) *wrapped {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"exec", "--store=" + store, "--ttl=" + execTTL.String(), "--grace=" + execGrace.String()}, flags...)
	w := &wrapped{Cmd: exec.Command(self, append(append(args, group, "--"), command...)...), t: t, group: group, dir: t.TempDir(), exited: make(chan struct{})}
	w.Env = append(os.Environ(), mainEnv+"=1", "DIR="+w.dir, "SELF="+self)
	w.Stderr = &w.stderr
	w.WaitDelay = time.Second
	w.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = w.Wait()
		close(w.exited)
	}()
	t.Cleanup(func() {
		_ = w.Process.Kill()
		<-w.exited
	})
	return w
}

func etcdURL(addr string) string { return "etcd://" + addr }

// code waits for the end and returns the exit code.
func (w *wrapped) code() int {
	w.t.Helper()
	select {
	case <-w.exited:
	case <-time.After(execWait):
		w.t.Fatalf("%s has not ended\n%s", w.group, &w.stderr)
	}
	return w.ProcessState.ExitCode()
}

// until waits until a condition holds.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > execWait {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// pids returns the processes that have written their pids.
func (w *wrapped) pids() []int {
	text, _ := os.ReadFile(filepath.Join(w.dir, "beats"))
	seen := map[int]bool{}
	var pids []int
	for field := range bytes.FieldsSeq(text) {
		if pid, err := strconv.Atoi(string(field)); err == nil && !seen[pid] {
			seen[pid] = true
			pids = append(pids, pid)
		}
	}
	return pids
}

// childrenOf returns the children of a process.
func childrenOf(pid int) []int {
	var pids []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for field := range bytes.FieldsSeq(text) {
			if n, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// running reports whether a process is neither gone nor a zombie. A stopped process is
// running, and so is one without its first thread.
func running(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		rest := stat[bytes.LastIndexByte(stat, ')')+1:]
		if err == nil && !bytes.HasPrefix(rest, []byte(" Z")) && !bytes.HasPrefix(rest, []byte(" X")) {
			return true
		}
	}
	return false
}

// acting reports whether a process can still do something. A stopped process cannot, nor can
// one with a pending SIGKILL.
func acting(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || !running(pid) {
		return false
	}
	for line := range strings.Lines(string(text)) {
		k, v, _ := strings.Cut(line, ":")
		v = strings.TrimSpace(v)
		switch k {
		case "State":
			if strings.HasPrefix(v, "T") {
				return false
			}
		case "SigPnd", "ShdPnd":
			if set, err := strconv.ParseUint(v, 16, 64); err == nil && set&(1<<(syscall.SIGKILL-1)) != 0 {
				return false
			}
		}
	}
	return true
}

// promised reads the deadline from the fencing file; 0: there is none.
func (w *wrapped) promised() clock.Instant {
	where, _ := os.ReadFile(filepath.Join(w.dir, "where"))
	text, _ := os.ReadFile(strings.TrimSpace(string(where)))
	var deadline clock.Instant
	for line := range strings.SplitSeq(string(text), "\n") {
		k, v, _ := strings.Cut(line, "=")
		n, _ := strconv.ParseInt(v, 10, 64)
		switch k {
		case "deadline_boottime_ns":
			deadline = clock.Instant(n)
		case "token":
			w.token = fence.Token(n)
		case "deployment":
			w.deployment = v
		case "session":
			w.session = v
		}
	}
	return deadline
}

// outlived waits for the end of the process tree, and returns by how much it outlived the
// last deadline, on a clock that no process of the tree can delay.
func (w *wrapped) outlived(pids []int) time.Duration {
	w.t.Helper()
	deadline := w.promised()
	late := -time.Hour
	c := clock.System()
	for began := c.Now(); ; time.Sleep(2 * time.Millisecond) {
		now := c.Now()
		alive, act := 0, false
		for _, pid := range pids {
			if running(pid) {
				alive++
				act = act || acting(pid)
			}
		}
		if alive == 0 {
			return late
		}
		deadline = max(deadline, w.promised())
		if act {
			late = max(late, now.Sub(deadline))
		}
		if now.Sub(began) > execWait {
			w.t.Fatalf("%s: %d of %v still run\n%s", w.group, alive, pids, &w.stderr)
		}
	}
}

// fault is a way to lose leadership, or one of the processes that supervise it.
type fault struct {
	name    string
	inject  func(t *testing.T, e *execRig, w *wrapped, pids []int)
	restore func(w *wrapped)
	code    int // exit code of the wrapper; -1: a signal
	// forced: the group is vacant before the leader knows, as when its session is closed.
	forced bool
	// early: it ends long before the deadline of the longer TTL that it gets.
	early bool
	says  string
}

const longTTL = 20 * time.Second

func faults() []fault {
	cut := func(_ *testing.T, e *execRig, w *wrapped, _ []int) { e.proxy(w.group).Cut() }
	resume := func(w *wrapped) { _ = w.Process.Signal(syscall.SIGCONT) }
	to := func(pid int, sig syscall.Signal) { _ = syscall.Kill(pid, sig) }
	closeSession := func(t *testing.T, e *execRig, w *wrapped, _ []int) {
		v, err := e.store.Read(t.Context(), w.group)
		if err == nil {
			err = e.store.End(t.Context(), v.Holder, store.Forced)
		}
		if err != nil {
			t.Error(err)
		}
	}
	return []fault{
		{name: "cut off, SIGTERM ignored, double fork", inject: cut, code: 75, says: "leadership"},
		{name: "cut off, tree stopped", inject: func(t *testing.T, e *execRig, w *wrapped, pids []int) {
			for _, pid := range pids {
				to(pid, syscall.SIGSTOP)
			}
			cut(t, e, w, pids)
		}, code: 75, says: "leadership"},
		{name: "wrapper paused", inject: func(_ *testing.T, _ *execRig, w *wrapped, _ []int) { to(w.Process.Pid, syscall.SIGSTOP) }, restore: resume, code: 75, says: "leadership"},
		{name: "wrapper killed", inject: func(_ *testing.T, _ *execRig, w *wrapped, _ []int) { to(w.Process.Pid, syscall.SIGKILL) }, code: -1},
		{name: "keeper paused", inject: func(t *testing.T, e *execRig, w *wrapped, pids []int) {
			to(childrenOf(w.Process.Pid)[0], syscall.SIGSTOP)
			cut(t, e, w, pids)
		}, code: 75, says: "leadership"},
		{name: "keeper paused, keep-alives go on", inject: func(_ *testing.T, _ *execRig, w *wrapped, _ []int) { to(childrenOf(w.Process.Pid)[0], syscall.SIGSTOP) }, code: 75, says: "keeper does not respond"},
		{name: "keeper paused, wrapper killed", inject: func(_ *testing.T, _ *execRig, w *wrapped, _ []int) {
			to(childrenOf(w.Process.Pid)[0], syscall.SIGSTOP)
			to(w.Process.Pid, syscall.SIGKILL)
		}, code: -1},
		{name: "keeper killed", inject: func(_ *testing.T, _ *execRig, w *wrapped, _ []int) { to(childrenOf(w.Process.Pid)[0], syscall.SIGKILL) }, code: 125, says: "keeper"},
		{name: "session closed", inject: closeSession, code: 75, forced: true, says: "leadership"},
		{name: "keeper paused, session closed", inject: func(t *testing.T, e *execRig, w *wrapped, pids []int) {
			to(childrenOf(w.Process.Pid)[0], syscall.SIGSTOP)
			closeSession(t, e, w, pids)
		}, code: 75, forced: true, early: true, says: "leadership"},
		{name: "wrapper paused, command stopped and continued", inject: func(t *testing.T, _ *execRig, w *wrapped, pids []int) {
			to(w.Process.Pid, syscall.SIGSTOP)
			stopAndResume(t, pids)
		}, restore: resume, code: 75, says: "leadership"},
	}
}

// execRig is an engine with a proxy for each group.
type execRig struct {
	engine  *enginetest.Engine
	store   *etcd.Store
	mu      sync.Mutex
	proxies map[string]*enginetest.Proxy
}

func newExecRig(t *testing.T) *execRig {
	t.Helper()
	e := &execRig{engine: enginetest.Cluster(t, 1), proxies: map[string]*enginetest.Proxy{}}
	s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: e.engine.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	e.store = s
	return e
}

func (e *execRig) proxy(group string) *enginetest.Proxy {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.proxies[group]
}

// startStubborn starts the stubborn command in its own group and waits until all its processes
// run.
func (e *execRig) startStubborn(t *testing.T, group string) (*wrapped, []int) {
	t.Helper()
	return e.begin(t, group, stubborn, 3)
}

// begin is stubbornly with another script and number of processes.
func (e *execRig) begin(t *testing.T, group, script string, processes int, flags ...string) (*wrapped, []int) {
	t.Helper()
	e.mu.Lock() // only one at a time looks for a free port
	p := enginetest.NewProxy(t, e.engine.Members[0].Addr())
	e.proxies[group] = p
	e.mu.Unlock()
	w := execute(t, etcdURL(p.Addr()), group, flags, "bash", "-c", script)
	var pids []int
	until(t, "all processes run", func() bool {
		pids = w.pids()
		return len(pids) == processes && w.promised() > 0
	})
	return w, pids
}

// execRounds is how often each fault is tried. With TENURE_ROUNDS the deadline is checked
// strictly. Otherwise, on a machine that runs other tests too and may delay a process, the
// test only checks that the engine has not expired the session.
func execRounds(t *testing.T) (rounds int, strict bool) {
	s := os.Getenv("TENURE_ROUNDS")
	if s == "" {
		return 1, false
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("TENURE_ROUNDS=%q", s)
	}
	return n, true
}

// Whatever happens to the wrapper, its keeper, its connection to the engine, its session or
// the command, no process of the command runs after the deadline or while the group is vacant
// (unless it was made vacant by force). The exit code shows what happened, and the sinks of
// the next leader refuse a write with the old token. TENURE_ROUNDS sets the number of rounds,
// -parallel 10 the concurrency.
func TestExecStops(t *testing.T) {
	rounds, strict := execRounds(t)
	e := newExecRig(t)
	for i, m := range faults() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			worst, refused := -time.Hour, 0
			t.Cleanup(func() {
				t.Logf("%s: %d rounds; no process of the tree was seen to run later than %v after its deadline; %d of %d later writes refused", m.name, rounds, worst, refused, rounds)
			})
			for n := range rounds {
				t.Run(strconv.Itoa(n), func(t *testing.T) {
					t.Parallel()
					late, no := e.round(t, m, fmt.Sprintf("g%d-%d", i, n), strict)
					mu.Lock()
					defer mu.Unlock()
					if worst = max(worst, late); no {
						refused++
					}
				})
			}
		})
	}
}

func (e *execRig) round(t *testing.T, m fault, group string, strict bool) (late time.Duration, refused bool) {
	flags := []string{"--ttl=" + execTTL.String()}
	if m.early {
		flags = []string{"--ttl=" + longTTL.String()}
	}
	w, pids := e.begin(t, group, headless, 4, flags...)
	r := newReport(t)
	if err := r.write(t.Context(), w.stamp(), "leading"); err != nil {
		t.Errorf("%s: the leader's write: %v", m.name, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), execWait)
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	m.inject(t, e, w, pids)
	if !m.forced {
		watching.Go(func() { e.vacantMeansEmpty(ctx, t, group, pids) })
	}
	late = w.outlived(pids)
	if strict && late > 0 {
		t.Errorf("%s: a process ran %v past the deadline\n%s", m.name, late, &w.stderr)
	}
	if m.early && late > -longTTL/4 {
		t.Errorf("%s: it ran until %v before the deadline, though the group was vacant", m.name, -late)
	}
	if m.restore != nil {
		m.restore(w)
	}
	if code := w.code(); code != m.code || !strings.Contains(w.stderr.String(), m.says) {
		t.Errorf("%s: exit code %d, want %d and %q\n%s", m.name, code, m.code, m.says, &w.stderr)
	}
	watching.Wait() // it waits for the vacancy that the next leader ends
	return late, e.refusedLater(t, w, r)
}

// stopAndResume stops and resumes the processes until they are gone, so that the keeper sends many
// messages to a wrapper that does not read.
func stopAndResume(t *testing.T, pids []int) {
	var pestering sync.WaitGroup
	pestering.Go(func() {
		for slices.ContainsFunc(pids, running) {
			for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
				for _, pid := range pids {
					_ = syscall.Kill(pid, sig)
				}
				time.Sleep(time.Millisecond)
			}
		}
	})
	t.Cleanup(pestering.Wait)
}

// vacantMeansEmpty checks that no process runs when the engine first reports the group as vacant.
func (e *execRig) vacantMeansEmpty(ctx context.Context, t *testing.T, group string, pids []int) {
	for ctx.Err() == nil {
		v, err := e.store.Read(ctx, group)
		if err == nil && v.State == tenure.Vacant {
			for _, pid := range pids {
				if acting(pid) {
					t.Errorf("%s is vacant, and process %d still runs", group, pid)
				}
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%s was never vacant: %v", group, ctx.Err())
}

// If the engine is gone, every term ends in time, and sinks refuse the command's token after
// its successor has sealed.
func TestExecEngineGone(t *testing.T) {
	rounds, strict := execRounds(t)
	e := newExecRig(t)
	const together = 10
	refused := 0
	for first := 0; first < rounds; first += together {
		n := min(together, rounds-first)
		ws, trees, reports := make([]*wrapped, n), make([][]int, n), make([]*report, n)
		for i := range n {
			ws[i], trees[i] = e.startStubborn(t, fmt.Sprintf("gone%d", first+i))
			reports[i] = newReport(t)
			if err := reports[i].write(t.Context(), ws[i].stamp(), "leading"); err != nil {
				t.Errorf("the leader's write: %v", err)
			}
		}
		e.engine.Members[0].Kill()
		var all sync.WaitGroup
		for i, w := range ws {
			all.Go(func() {
				if late := w.outlived(trees[i]); strict && late > 0 {
					t.Errorf("a process ran %v past the deadline\n%s", late, &w.stderr)
				}
				if code := w.code(); code != 75 {
					t.Errorf("exit code %d, want 75\n%s", code, &w.stderr)
				}
			})
		}
		all.Wait()
		e.engine.Start()
		for i, w := range ws {
			if e.refusedLater(t, w, reports[i]) {
				refused++
			}
		}
	}
	t.Logf("engine gone: %d rounds; %d of %d later writes refused", rounds, refused, rounds)
}

// When the wrapper is killed, its keeper stops the whole tree and then closes the session, long
// before the TTL: the group is vacant with the reason "died", and no process of the tree runs.
func TestExecDied(t *testing.T) {
	e := newExecRig(t)
	p := startServe(t, "--store="+etcdURL(e.engine.Members[0].Addr()))
	for name, c := range map[string]struct {
		store string
		flags []string
	}{
		"engine":   {etcdURL(e.engine.Members[0].Addr()), nil},
		"service":  {p.ready.URL, nil},
		"isolated": {etcdURL(e.engine.Members[0].Addr()), []string{"--isolate"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "isolated" {
				needNamespaces(t)
			}
			const ttl = 2 * execWait // so that it cannot expire while the test waits
			w := execute(t, c.store, "died-"+name, append(c.flags, "--ttl="+ttl.String()), "sh", "-c", tree)
			var pids []int
			until(t, "all processes run", func() bool {
				if k := childrenOf(w.Process.Pid); len(k) == 1 {
					pids = below(k[0])
				}
				return len(pids) == treeSize && sleeping(pids) && w.promised() > 0
			})
			if err := w.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), execWait)
			defer cancel()
			e.vacantMeansEmpty(ctx, t, w.group, pids)
			terms, err := e.store.History(ctx, w.group, store.Page{})
			if err != nil || len(terms) != 1 || terms[0].Reason != store.Died {
				t.Errorf("%+v, %v\n%s", terms, err, &w.stderr)
			}
		})
	}
}
