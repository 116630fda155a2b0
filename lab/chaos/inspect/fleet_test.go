package inspect_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurehq/tenure/lab/chaos/inspect"
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
		got, err := inspect.RunningIn(dir)
		if got != path || says == "" && err != nil || says != "" && (!errors.Is(err, inspect.ErrFleet) || !strings.Contains(err.Error(), says)) {
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
		if _, err := inspect.Open(path); !errors.Is(err, inspect.ErrFleet) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if _, err := inspect.Open(path + "-none"); !errors.Is(err, inspect.ErrFleet) {
		t.Errorf("no file: %v", err)
	}
}

// Without permission the error says so.
func TestNoPermission(t *testing.T) {
	t.Parallel()
	if err := inspect.Allowed(inspect.Target{ID: "node-1", PID: 7}, nil); err != nil {
		t.Error(err)
	}
	err := inspect.Allowed(inspect.Target{ID: "node-1", PID: 7}, syscall.EPERM)
	if !errors.Is(err, inspect.ErrCannot) || !strings.Contains(err.Error(), "node-1 (pid 7) is another user's") {
		t.Errorf("no permission: %v", err)
	}
}
