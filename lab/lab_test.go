package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/load"
	"github.com/tenurehq/tenure/reference/client"
)

var built = sync.OnceValues(func() (string, error) {
	return lab.FindPrograms(context.Background(), "", func(string) {})
})

// programs builds the programs of a fleet once.
func programs(t *testing.T) string {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func pids(f labapi.FleetFile) []int {
	all := []int{f.Engine.PID, f.Ledger.PID}
	for _, n := range f.Nodes {
		all = append(all, n.PID)
	}
	for _, w := range f.Workers {
		all = append(all, w.PID)
	}
	return all
}

func urls(f labapi.FleetFile) (all []string) {
	for _, n := range f.Nodes {
		all = append(all, n.URL)
	}
	return all
}

func node(t *testing.T, f labapi.FleetFile, id string) labapi.NodeFile {
	t.Helper()
	for _, n := range f.Nodes {
		if n.ID == id {
			return n
		}
	}
	t.Fatalf("no node %q in %+v", id, f.Nodes)
	return labapi.NodeFile{}
}

// A fleet soon has a leader, its file lists all programs, its proxies can cut a leader off, a
// killed node is restarted at its address, the numbers that clients got pass the checks, and no
// process or file is left when it has stopped.
func TestFleet(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fleet.json")
	began := time.Now()
	f, err := lab.Start(t.Context(), lab.Config{Bin: programs(t), File: path, Restart: true, Event: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			_ = f.Stop()
		}
	}()
	file, err := labapi.ReadFleetFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(file.Nodes) != 3 || len(file.Workers) != 2 || file.Engine.URL == "" || file.Ledger.DB == "" || file.Proxies.API == "" {
		t.Fatalf("the fleet file lacks something: %+v", file)
	}
	c, err := client.New(client.Config{URLs: urls(file), Timeout: 2 * time.Second, Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s leads %v after the start", first.ID, time.Since(began).Round(time.Millisecond))

	hist := filepath.Join(t.TempDir(), "history")
	w, err := history.Create(hist, "calls")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(history.Run{Experiment: "test", Group: file.Group, Checks: []string{"sequence", "linearizable", "ledger"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	var seen atomic.Uint64 // the highest token that the callers got
	calls.Go(func() {
		_, err := load.Run(ctx, load.Config{URLs: urls(file), Rate: 200, Connections: 8, For: 10 * time.Minute, Patience: time.Minute, Calls: w,
			Progress: func(p load.Progress) { seen.Store(p.Token) }})
		if err := errors.Join(err, w.Close()); err != nil {
			t.Error(err)
		}
	})
	defer calls.Wait()
	defer cancel()

	toxics := file.Proxies.API + "/proxies/" + node(t, file, first.ID).Proxies.Engine + "/toxics"
	post(t, toxics, `{"name":"cut","type":"timeout","stream":"upstream","attributes":{"timeout":0}}`)
	var second client.Leader
	eventually(t, "another leader after the first was cut off the engine", func() bool {
		second, err = c.Leader(t.Context())
		return err == nil && second.Token > first.Token && second.ID != first.ID
	})

	old := node(t, file, second.ID)
	if err := syscall.Kill(old.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the killed node back, with another number in the file", func() bool {
		now, err := labapi.ReadFleetFile(path)
		return err == nil && node(t, now, second.ID).PID != old.PID && node(t, now, second.ID).URL == old.URL
	})
	var third client.Leader
	eventually(t, "a leader after the second was killed", func() bool {
		third, err = c.Leader(t.Context())
		return err == nil && third.Token > second.Token
	})
	if _, err := c.Next(t.Context(), 10); err != nil && !errors.Is(err, client.ErrUnknown) {
		t.Error(err)
	}
	eventually(t, "the callers served by the third leader", func() bool { return seen.Load() >= uint64(third.Token) })
	cancel()
	calls.Wait()
	asked(t, hist, file)

	last := f.File()
	dir := last.Dir
	stopped = true
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
	for _, pid := range append(pids(file), pids(last)...) {
		if !gone(pid) {
			t.Errorf("process %d still runs", pid)
		}
	}
	for _, left := range []string{dir, path} {
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind (%v)", left, err)
		}
	}
}

// With keepers a killed leader is replaced although its lease has not expired.
func TestFleetWithKeepers(t *testing.T) {
	t.Parallel()
	if !lab.CanPulse {
		t.Skip("keepers need Linux")
	}
	const ttl = 2 * time.Minute // longer than eventually waits
	f, err := lab.Start(t.Context(), lab.Config{Bin: programs(t), Nodes: 2, Workers: -1, TTL: ttl, Pulse: true, NodeArgs: []string{"--rto", "10m"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	}()
	c, err := client.New(client.Config{URLs: urls(f.File()), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var first, next client.Leader
	eventually(t, "a leader with a keeper", func() bool {
		first, err = c.Leader(t.Context())
		if err != nil {
			return false
		}
		s, err := c.Status(t.Context(), first.URL)
		return err == nil && s.Kept
	})
	if err := syscall.Kill(node(t, f.File(), first.ID).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another leader", func() bool {
		next, err = c.Leader(t.Context())
		return err == nil && next.Token > first.Token
	})
}

// asked checks the clients' history and the ledger.
func asked(t *testing.T, dir string, file labapi.FleetFile) {
	t.Helper()
	if err := history.WriteManifest(dir); err != nil {
		t.Fatal(err)
	}
	r, err := check.Dir(t.Context(), dir, check.Options{DB: file.Ledger.DB})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Passed() || r.Callers.Calls == 0 || r.Callers.Tokens < 2 {
		t.Errorf("%+v\n%v", r.Callers, r.Verdicts)
	}
}

func post(t *testing.T, url, body string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	said, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", resp.Status, said)
	}
}

// If a fleet cannot start, the error names the program and has its output. No process or file
// is left.
func TestStartFails(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	_, err := lab.Start(t.Context(), lab.Config{Bin: programs(t), NodeArgs: []string{"--store", "zoo"}})
	if err == nil || !strings.Contains(err.Error(), "node-1") || !strings.Contains(err.Error(), "zoo") {
		t.Errorf("%v", err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, cfg := range []lab.Config{{Backend: "zoo"}, {Nodes: -1}, {TTL: -1}} {
		if _, err := lab.Start(t.Context(), cfg); err == nil {
			t.Errorf("%+v was started", cfg)
		}
	}
	if _, err := lab.FindPrograms(t.Context(), tmp, func(string) {}); err == nil {
		t.Error("programs were found in an empty folder")
	}
}

// The next lab removes the folder of a killed lab, and not a folder in use.
func TestLeftFolders(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	dead := filepath.Join(tmp, "tenure-lab-1")
	if err := os.Mkdir(dead, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, "lab.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	small := lab.Config{Bin: programs(t), Nodes: 1, Workers: -1}
	f, err := lab.Start(t.Context(), small)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Stop() }()
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", dead)
	}
	g, err := lab.Start(t.Context(), small)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Stop() }()
	if _, err := os.Stat(f.Path()); err != nil {
		t.Errorf("the folder of a fleet that runs was removed: %v", err)
	}
}

// Any fleet's first leader can work on the jobs of a seeded ledger.
func TestSeed(t *testing.T) {
	db := filepath.Join(t.TempDir(), "ledger.db")
	for range 2 { // the second continues the first
		if err := lab.Seed(t.Context(), lab.SeedConfig{DB: db, Resource: "billing", N: 5000, First: time.Now().Add(time.Hour), Every: time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := lab.Start(t.Context(), lab.Config{Bin: programs(t), Nodes: 1, Workers: -1, DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Stop() }()
	c, err := client.New(client.Config{URLs: urls(f.File()), Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Next(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "10000 pending jobs in the leader's status", func() bool {
		s, err := c.Status(t.Context(), f.File().Nodes[0].URL)
		return err == nil && s.JobsPending == 10_000
	})
	if j, err := c.Job(t.Context(), fmt.Sprintf("seed-%012d", 10_000)); err != nil {
		t.Errorf("%+v, %v", j, err)
	}
}
