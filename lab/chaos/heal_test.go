package chaos_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/process"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// put writes a fleet file whose only node is this process.
func put(t *testing.T, path, url string, change func(*labapi.FleetFile)) {
	t.Helper()
	file := labapi.FleetFile{Group: "g", Lab: true, TTLMS: 2000, Nodes: []labapi.NodeFile{{ID: "n", Process: labapi.Process{URL: url, PID: os.Getpid()}}}}
	change(&file)
	data, err := json.Marshal(file)
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// If the proxies cannot be asked, Heal returns an error. It does not touch a process that only
// has the pid of one of the fleet.
func TestHealUnsure(t *testing.T) {
	t.Parallel()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(labapi.Status{Status: api.Status{NodeID: "n", Group: "g", PID: os.Getpid()}, Lab: true, WallMS: time.Now().UnixMilli()})
	}))
	defer node.Close()
	path := filepath.Join(t.TempDir(), "fleet.json")
	put(t, path, node.URL, func(f *labapi.FleetFile) {
		f.Proxies.API, f.Nodes[0].Proxies.Ledger = "http://127.0.0.1:1", "n-ledger"
	})
	f, err := chaos.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := f.Survey(t.Context()); err != nil || !slices.Contains(s.Nodes[0].Standing, "its proxies do not answer") {
		t.Errorf("%+v, %v", s.Nodes, err)
	}
	if err := f.Heal(t.Context()); !errors.Is(err, chaos.ErrNotHealed) || !strings.Contains(err.Error(), "cannot see") {
		t.Errorf("%v, want %v", err, chaos.ErrNotHealed)
	}

	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	if err := other.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); !process.IsStopped(other.Process.Pid) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	put(t, path, node.URL, func(f *labapi.FleetFile) { f.Nodes[0].PID = other.Process.Pid })
	if err := f.Heal(t.Context()); err != nil {
		t.Error(err)
	}
	if !process.IsStopped(other.Process.Pid) {
		t.Error("a process of another program was resumed")
	}
}
