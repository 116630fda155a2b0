package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/load"
)

// asLab makes the test binary run as the program.
const asLab = "TENURE_LAB_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asLab) != "" {
		main()
	}
	_ = os.Setenv(asLab, "1") // children of this process run as the program
	os.Exit(m.Run())
}

func labRun(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	lookup := func(k string) (string, bool) { v, ok := env[k]; return v, ok }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code = run(ctx, args, lookup, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// Wrong usage has its own exit code and an error that names the mistake; nothing is started.
func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "missing command"},
		{[]string{"fly"}, "fly"},
		{[]string{"load"}, "no node to call"},
		{[]string{"sites", "--fence", "maybe"}, `"maybe"`},
		{[]string{"prevote", "--rounds", "0"}, "at least 1"},
		{[]string{"regions", "--beat", "20s"}, "Beat"},
		{[]string{"sites", "--cut", "1s"}, "at least 2s"},
		{[]string{"strategies", "--only", "paxos"}, `no strategy "paxos"`},
		{[]string{"strategies", "--only", "bully", "--fault", "member"}, "bully cannot have the fault"},
		{[]string{"load", "--url", "https://127.0.0.1:1"}, "http://host:port"},
		{[]string{"load", "--url", "http://127.0.0.1:1", "--rate", "fast"}, "rate"},
		{[]string{"load", "--url", "http://127.0.0.1:1", "--rate", "-3"}, "rate"},
		{[]string{"load", "--url", "http://127.0.0.1:1", "--for", "100h"}, "at most"},
		{[]string{"load", "--url", "http://127.0.0.1:1", "-o", "xml"}, "xml"},
		{[]string{"load", "--fleet", "no-such-file"}, "no-such-file"},
		{[]string{"up", "--backend", "zoo"}, "zoo"},
		{[]string{"up", "--rate", "-1"}, "rate"},
		{[]string{"up", "--nodes", "1000"}, "at most"},
		{[]string{"check"}, "nothing to check"},
		{[]string{"jobs", "--n", "5"}, "--db"},
	} {
		code, _, stderr := labRun(t, nil, tt.args...)
		if code != exitUsage || !strings.Contains(stderr, tt.want) {
			t.Errorf("lab %v: code %d, %q: want %d and %q", tt.args, code, stderr, exitUsage, tt.want)
		}
	}
}

// Flags can come from the environment, the answer can be JSON, and a missed bar has its own
// exit code.
func TestLoad(t *testing.T) {
	srv := httptest.NewServer(load.Bare())
	defer srv.Close()
	env := map[string]string{"LAB_LOAD_COUNT": "50", "LAB_LOAD_URL": srv.URL}
	code, stdout, stderr := labRun(t, env, "load", "--connections=2", "--for", "20s", "-o", "json", "--timeout", "20s")
	var r load.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || r.Calls != 50 || r.Connections != 2 {
		t.Fatalf("code %d, %q, %q (%v)", code, stdout, stderr, err)
	}
	// The constant never rises, as in a broken sequence.
	if code != exitThreshold || !strings.Contains(stderr, "went back") {
		t.Errorf("code %d, %q: want %d for numbers that do not rise", code, stderr, exitThreshold)
	}
	code, _, stderr = labRun(t, env, "load", "--connections=1", "--count", "1", "--max-p99", "1ns", "--min-rate", "1e9", "--timeout", "20s")
	if code != exitThreshold || !strings.Contains(stderr, "p99") || !strings.Contains(stderr, "at least") {
		t.Errorf("code %d, %q: want the thresholds", code, stderr)
	}
	code, stdout, stderr = labRun(t, env, "load", "--connections=1", "--count", "1", "--max-p99", "1m", "--max-errors", "0", "--timeout", "20s")
	if code != exitOK || !strings.Contains(stdout, "p99") {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
	code, _, stderr = labRun(t, nil, "load", "--url", "http://127.0.0.1:1", "--patience", "100ms")
	if code != exitUnavailable {
		t.Errorf("nobody there: code %d, %q, want %d", code, stderr, exitUnavailable)
	}
}

// The bare handler runs in its own process, which ends with the run. Beside a fleet it gives a
// ratio.
func TestBare(t *testing.T) {
	code, stdout, stderr := labRun(t, nil, "load", "--bare", "--connections", "2", "--count", "100", "-o", "json", "--timeout", "20s")
	var r load.Report
	if err := json.Unmarshal([]byte(stdout), &r); code != exitOK || err != nil || r.Calls != 100 || r.Leader != "bare" {
		t.Fatalf("code %d, %q, %q (%v)", code, stdout, stderr, err)
	}
	srv := httptest.NewServer(load.Bare())
	defer srv.Close()
	code, stdout, stderr = labRun(t, nil, "load", "--bare", "--url", srv.URL, "--connections", "1", "--count", "3", "-o", "json", "--timeout", "20s")
	var c compared
	if err := json.Unmarshal([]byte(stdout), &c); err != nil || c.Ratio <= 0 || c.Bare.Calls != 1 || c.Fleet.Calls != 1 {
		t.Fatalf("code %d, %q, %q (%v)", code, stdout, stderr, err)
	}
}

// lab check checks what lab load has written, with and without a database. A history that
// cannot be read, or nothing at all, does not pass.
func TestCheck(t *testing.T) {
	srv := httptest.NewServer(load.Bare())
	defer srv.Close()
	loaded := filepath.Join(t.TempDir(), "loaded")
	// The bare handler answers the same number again and again.
	if code, _, stderr := labRun(t, nil, "load", "--url", srv.URL, "--connections", "1", "--count", "2", "--history", loaded, "--timeout", "20s"); code != exitThreshold {
		t.Fatalf("code %d, %s", code, stderr)
	}
	if _, err := os.Stat(filepath.Join(loaded, "manifest.json")); err != nil {
		t.Error(err)
	}
	one := t.TempDir()
	w, err := history.Create(one, "calls")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []history.Event{
		catalogue.LoadRun("billing"),
		history.Call{Start: 1, End: 2, Token: 1, First: 1, Last: 1},
	} {
		err = errors.Join(err, w.Write(e))
	}
	if err := errors.Join(err, w.Close(), history.WriteManifest(one)); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(t.TempDir(), "none.db")
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{one}, exitOK, "1 calls answered"},
		{[]string{loaded}, exitThreshold, "a number was handed out twice"},
		{[]string{one, "--db", none}, exitThreshold, "cannot be read"},
		{[]string{"--db", none}, exitThreshold, "cannot be read"},
		{[]string{"no-such-folder"}, exitFailure, ""},
		{nil, exitUsage, ""},
	} {
		code, stdout, stderr := labRun(t, nil, append([]string{"check"}, tt.args...)...)
		if code != tt.code || !strings.Contains(stdout, tt.want) {
			t.Errorf("%v: code %d, %q, %q: want %d and %q", tt.args, code, stdout, stderr, tt.code, tt.want)
		}
	}
}

// A ledger is filled with as many jobs as were asked for.
func TestJobs(t *testing.T) {
	db := filepath.Join(t.TempDir(), "l.db")
	code, stdout, stderr := labRun(t, nil, "jobs", "--db", db, "--n", "2000")
	if code != exitOK || !strings.Contains(stdout, "2000 jobs") {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
}

// up is lab up as a process that can be signalled.
func up(t *testing.T) (cmd *exec.Cmd, file labapi.FleetFile, said *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "fleet.json")
	cmd = exec.Command(self, "up", "--fleet", path, "--nodes", "2")
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	child.DieWithParent(cmd)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	said = &bytes.Buffer{}
	lines := bufio.NewScanner(io.TeeReader(stderr, said))
	for lines.Scan() {
		if strings.Contains(lines.Text(), " leads billing token ") {
			break
		}
	}
	if file, err = labapi.ReadFleetFile(path); err != nil {
		_ = cmd.Process.Kill()
		t.Fatalf("%v\n%s", err, said)
	}
	go func() { _, _ = io.Copy(said, stderr) }()
	return cmd, file, said
}

func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || dead(pid) }

// dead reports whether a process has ended and was not waited for yet.
func dead(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(rest, []byte("Z"))
}

func awaitGone(t *testing.T, f labapi.FleetFile) {
	t.Helper()
	all := []int{f.Engine.PID, f.Ledger.PID, f.Nodes[0].PID, f.Nodes[1].PID, f.Workers[0].PID, f.Workers[1].PID}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := 0
		for _, pid := range all {
			if !gone(pid) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %v still run", left, all)
		}
	}
}

// Ctrl-C stops everything, even a node that is stopped by SIGSTOP, and leaves no file.
func TestUpInterrupted(t *testing.T) {
	cmd, file, said := up(t)
	if err := syscall.Kill(file.Nodes[0].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
	t.Logf("it took %v", time.Since(began).Round(time.Millisecond))
	awaitGone(t, file)
	if _, err := os.Stat(file.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left behind", file.Dir)
	}
}

// When the lab itself is killed, its programs end too, even one that is stopped by SIGSTOP.
func TestUpKilled(t *testing.T) {
	cmd, file, _ := up(t)
	if err := syscall.Kill(file.Nodes[1].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	awaitGone(t, file)
}
