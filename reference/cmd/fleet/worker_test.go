package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/worker"
	"github.com/tenurehq/tenure/server/cli"
)

// The exit code of a worker is 2 for wrong usage and 1 for other failures. The reason goes to
// standard error, and nothing to standard output.
func TestWorkerExitCodes(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	dir := t.TempDir()
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		code int
		want string
	}{
		{"nothing given", nil, nil, cli.ExitUsage, "error: id:"},
		{"no directory", []string{"--id", "w-1"}, nil, cli.ExitUsage, "error: dir:"},
		{"a bad id", []string{"--id", "W 1", "--dir", dir}, nil, cli.ExitUsage, `"W 1"`},
		{"a bad id in the environment", []string{"--dir", dir}, []string{"FLEET_WORKER_ID=W"}, cli.ExitUsage, `"W"`},
		{"open to all", []string{"--id", "w-1", "--dir", dir, "--listen", "192.0.2.1:1"}, nil, cli.ExitUsage, "other hosts can reach"},
		{"a limit below zero", []string{"--id", "w-1", "--dir", dir, "--waiting", "-1"}, nil, cli.ExitUsage, "waiting: -1 is negative"},
		{"a directory that is not there", []string{"--id", "w-1", "--dir", filepath.Join(dir, "none")}, nil, cli.ExitFailure, "no such file"},
		{"port in use", []string{"--id", "w-1", "--dir", dir, "--listen", busy.Addr().String()}, nil, cli.ExitFailure, "address already in use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), append([]string{"worker"}, tt.args...), environment(tt.env...), strings.NewReader(""), &stdout, &stderr)
			if code != tt.code || !strings.Contains(stderr.String(), tt.want) || stdout.Len() > 0 {
				t.Errorf("exit code %d, %q, %q; want %d and %q", code, &stdout, &stderr, tt.code, tt.want)
			}
		})
	}
}

// workerProcess is `fleet worker` as a process.
type workerProcess struct {
	*exec.Cmd
	stdin  io.WriteCloser
	stderr *child.Buffer
	ready  api.Ready
}

func startWorker(t *testing.T, dir string) *workerProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &workerProcess{Cmd: exec.CommandContext(t.Context(), self, "worker", "--id", "w-1", "--dir", dir, "--listen", "127.0.0.1:0", "--until-eof"), stderr: &child.Buffer{}}
	p.Env = append(os.Environ(), mainEnv+"=1")
	p.Stderr = p.stderr
	if p.stdin, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.ready)
	}
	if err != nil || p.ready.ID != "w-1" || p.ready.PID != p.Process.Pid || p.ready.URL != "http://"+p.ready.Addr {
		_ = p.Process.Kill()
		_ = p.Wait()
		t.Fatalf("%q: %v\n%s", line, err, p.stderr)
	}
	return p
}

func (p *workerProcess) call(t *testing.T, method, path string, token fence.Token, body, into any) int {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, p.ready.URL+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if token != 0 {
		if err := httpfence.Format(fence.Stamp{Deployment: "prod", Group: "billing", Token: token}, req.Header.Set); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// A worker that is killed continues after its restart: acknowledged orders are done, standing
// orders run although nobody leads, and stale leaders are still refused. The end of its input
// stops it in order.
func TestWorkerKilled(t *testing.T) {
	dir := t.TempDir()
	p := startWorker(t, dir)
	const firings = 30
	orders := api.Orders{Replace: true, Orders: []api.Order{{Name: "beat", Run: "count", EveryMS: 20}}}
	for i := range firings {
		orders.Orders = append(orders.Orders, api.Order{Name: "nap", Run: "sleep", Payload: json.RawMessage(`{"ms":200}`), Job: "nap", AtMS: int64(i + 1)})
	}
	var a worker.Accepted
	if code := p.call(t, http.MethodPost, "/orders", 9, orders, &a); code != http.StatusOK || a.Accepted != firings+1 {
		t.Fatalf("%d %+v", code, a)
	}
	if err := p.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()

	p = startWorker(t, dir)
	var s worker.Status
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		p.call(t, http.MethodGet, "/status", 0, nil, &s)
		if s.Waiting == 0 && s.Counts["beat"] > 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v\n%s", s, p.stderr)
		}
	}
	if s.Token != 9 || s.Done == 0 || s.Done > firings || s.Failed != 0 || len(s.Orders) != 1 {
		t.Errorf("%+v", s)
	}
	orders.Orders = orders.Orders[1:]
	orders.Replace = false
	if code := p.call(t, http.MethodPost, "/orders", 9, orders, &a); code != http.StatusOK || a.Duplicates != firings {
		t.Errorf("delivered again: %d %+v", code, a)
	}
	var problem httpfence.Problem
	if code := p.call(t, http.MethodPost, "/orders", 8, orders, &problem); code != http.StatusPreconditionFailed || problem.CurrentToken != 9 {
		t.Errorf("a stale leader: %d %+v", code, problem)
	}
	_ = p.stdin.Close()
	timer := time.AfterFunc(20*time.Second, func() { _ = p.Process.Kill() })
	defer timer.Stop()
	if err := p.Wait(); err != nil || !strings.Contains(p.stderr.String(), "standard input ended") {
		t.Error(fmt.Errorf("%w\n%s", err, p.stderr))
	}
}
