package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/internal/enginetest"
)

// rival is a program that promises to run a command under a lock.
type rival struct {
	name    string
	command func(addr, group string) []string // what comes before the command
}

// What `tenure exec` and `etcdctl lock` leave running, of three processes that ignore
// SIGTERM, one of them in a session of its own, two seconds after another may hold the
// lock. TENURE_COMPARE_LOCKS=1 runs it; etcdctl is built from its module, or
// TENURE_ETCDCTL names it.
func TestCompareLocks(t *testing.T) {
	if os.Getenv("TENURE_COMPARE_LOCKS") == "" {
		t.Skip("set TENURE_COMPARE_LOCKS")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	etcdctl := obtainEtcdctl(t)
	rivals := []rival{
		{"tenure exec", func(addr, group string) []string {
			return []string{self, "exec", "-q", "--store=" + etcdURL(addr), "--ttl=" + execTTL.String(), group, "--"}
		}},
		{"etcdctl lock", func(addr, group string) []string {
			return []string{etcdctl, "--endpoints=" + addr, "lock", "--ttl=" + strconv.Itoa(int(execTTL.Seconds())), group, "--"}
		}},
	}
	table := "what happens | " + rivals[0].name + " | " + rivals[1].name + "\n"
	for i, h := range hardships() {
		cells := []string{h.name}
		for k, r := range rivals {
			e := enginetest.Cluster(t, 1)
			left, code := h.on(t, e, r, fmt.Sprintf("compare%d-%d", i, k))
			cells = append(cells, fmt.Sprintf("%d of 3 left, %s", left, code))
			if k == 0 && left > 0 {
				t.Errorf("%s: %d left by ours", h.name, left)
			}
			e.Stop()
		}
		table += strings.Join(cells, " | ") + "\n"
	}
	t.Log("\n" + table)
}

type hardship struct {
	name   string
	strike func(t *testing.T, e *enginetest.Engine, w *wrapped)
	mend   func(w *wrapped)
}

func hardships() []hardship {
	to := func(w *wrapped, sig syscall.Signal) { _ = w.Process.Signal(sig) }
	return []hardship{
		{name: "its lease is revoked", strike: revokeAll},
		{name: "it is paused beyond its TTL", strike: func(_ *testing.T, _ *enginetest.Engine, w *wrapped) { to(w, syscall.SIGSTOP) }, mend: func(w *wrapped) { to(w, syscall.SIGCONT) }},
		{name: "it is killed", strike: func(_ *testing.T, _ *enginetest.Engine, w *wrapped) { to(w, syscall.SIGKILL) }},
		{name: "the engine is gone", strike: func(_ *testing.T, e *enginetest.Engine, _ *wrapped) { e.Members[0].Kill() }},
		{name: "it gets SIGTERM twice", strike: func(_ *testing.T, _ *enginetest.Engine, w *wrapped) {
			to(w, syscall.SIGTERM)
			time.Sleep(time.Second) // two at once are one
			to(w, syscall.SIGTERM)
		}},
	}
}

// on lets it happen, and counts when another may hold the lock.
func (h hardship) on(t *testing.T, e *enginetest.Engine, r rival, group string) (left int, code string) {
	t.Helper()
	args := append(r.command(e.Members[0].Addr(), group), "bash", "-c", stubborn)
	w := &wrapped{Cmd: exec.Command(args[0], args[1:]...), t: t, group: group, dir: t.TempDir(), exited: make(chan struct{})}
	w.Env = append(os.Environ(), mainEnv+"=1", "ETCDCTL_API=3", "DIR="+w.dir)
	w.WaitDelay = time.Second
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = w.Wait()
		close(w.exited)
	}()
	until(t, "three processes run", func() bool { return len(w.pids()) == 3 })
	pids := w.pids()
	h.strike(t, e, w)
	time.Sleep(execTTL + 2*time.Second)
	for _, pid := range pids {
		if running(pid) {
			left++
		}
	}
	if h.mend != nil {
		h.mend(w)
	}
	code = "runs on"
	select {
	case <-w.exited:
		code = w.ProcessState.String()
	case <-time.After(2 * time.Second):
	}
	for _, pid := range append(pids, w.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-w.exited
	return left, code
}

func revokeAll(t *testing.T, e *enginetest.Engine, _ *wrapped) {
	c, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints(), DialTimeout: execWait})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), execWait)
	defer cancel()
	all, err := c.Leases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all.Leases {
		if _, err := c.Revoke(ctx, l.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func obtainEtcdctl(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("TENURE_ETCDCTL"); path != "" {
		return path
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "etcdctl")
	const module = "go.etcd.io/etcd/etcdctl/v3"
	for _, args := range [][]string{{"mod", "init", "compare"}, {"get", module + "@v3.7.3"}, {"build", "-o", path, module}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod -modcacherw", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("no etcdctl to compare with: go %v: %v\n%s", args, err, out)
		}
	}
	return path
}
