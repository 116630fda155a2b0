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
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// put writes a fleet file whose only node is this process.
func put(t *testing.T, path, url string, change func(*labapi.FleetFile)) {
	t.Helper()
	file := labapi.FleetFile{Group: "g", Lab: true, TTLMS: 2000, Nodes: []labapi.NodeFile{{ID: "n", Process: labapi.Process{URL: url, PID: os.Getpid()}}}}
	if change != nil {
		change(&file)
	}
	data, err := json.Marshal(file)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The one fleet that runs is found. No fleet, two fleets, and the file of a killed lab are
// distinguished.
func TestRunning(t *testing.T) {
	t.Parallel()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(labapi.Status{Status: api.Status{NodeID: "n", Group: "g", PID: os.Getpid()}, Lab: true})
	}))
	defer node.Close()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, "tenure-lab-"+name, "fleet.json") }
	want := func(path, says string) {
		t.Helper()
		got, err := chaos.RunningIn(dir)
		if got != path || says == "" && err != nil || says != "" && (!errors.Is(err, chaos.ErrFleet) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q, %v; want %q, %q", got, err, path, says)
		}
	}
	want("", "no fleet of yours runs")
	put(t, at("left"), "http://127.0.0.1:1", nil)
	put(t, at("other"), node.URL, func(f *labapi.FleetFile) { f.Group = "another" })
	want("", "no fleet of yours runs")
	put(t, at("1"), node.URL, nil)
	want(at("1"), "")
	put(t, at("2"), node.URL, nil)
	want("", "2 fleets of yours run")
}

// A fleet that is not a lab's, or not on this machine, is refused.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fleet.json")
	for says, change := range map[string]func(*labapi.FleetFile){
		"not a lab's":                          func(f *labapi.FleetFile) { f.Lab = false },
		"names no nodes":                       func(f *labapi.FleetFile) { f.Nodes = nil },
		"http://10.1.2.3:80\", which is not":   func(f *labapi.FleetFile) { f.Nodes[0].URL = "http://10.1.2.3:80" },
		"controlled at \"http://example.com\"": func(f *labapi.FleetFile) { f.Proxies.API = "http://example.com" },
	} {
		put(t, path, "http://127.0.0.1:1", change)
		if _, err := chaos.Open(path); !errors.Is(err, chaos.ErrFleet) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if _, err := chaos.Open(path + "-none"); !errors.Is(err, chaos.ErrFleet) {
		t.Errorf("no file: %v", err)
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
	for end := time.Now().Add(20 * time.Second); !chaos.Still(other.Process.Pid) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	put(t, path, node.URL, func(f *labapi.FleetFile) { f.Nodes[0].PID = other.Process.Pid })
	if err := f.Heal(t.Context()); err != nil {
		t.Error(err)
	}
	if !chaos.Still(other.Process.Pid) {
		t.Error("a process of another program was resumed")
	}
}
