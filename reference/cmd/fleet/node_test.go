package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
	"github.com/tenurehq/tenure/server/cli"
)

// startLedger serves a ledger until the test ends.
func startLedger(t *testing.T) string {
	t.Helper()
	return startLedgerAt(t, "127.0.0.1:0")
}

func startLedgerAt(t *testing.T, listen string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, ready := make(chan error, 1), make(chan string, 1)
	cfg := ledgerhttp.Config{Listen: listen}
	cfg.DB = filepath.Join(t.TempDir(), "l.db")
	go func() {
		ended <- ledgerhttp.Serve(ctx, cfg, func(addr string) error { ready <- "http://" + addr; return nil })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	select {
	case url := <-ready:
		return url
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	return ""
}

// A node waits for its ledger and its engine. It says so once, and starts when they answer.
func TestNodeWaits(t *testing.T) {
	free, err := child.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) (ready <-chan string, stderr *child.Buffer, stop func() int) {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		lines, ended := make(chan string, 1), make(chan int, 1)
		stderr = &child.Buffer{}
		go func() {
			ended <- run(ctx, append([]string{"node", "--id", "n1", "--group", "billing"}, args...), environment(), strings.NewReader(""), w, stderr)
			_ = w.Close()
		}()
		go func() {
			line, _ := bufio.NewReader(r).ReadString('\n')
			lines <- line
			_, _ = io.Copy(io.Discard, r)
		}()
		return lines, stderr, func() int { cancel(); return <-ended }
	}
	waits := func(stderr *child.Buffer, at string) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !strings.Contains(stderr.String(), "cannot connect yet"); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it does not wait: %s", stderr)
			}
		}
		if !strings.Contains(stderr.String(), at) {
			t.Errorf("%s is not named: %s", at, stderr)
		}
	}

	ready, stderr, stop := start("--store=mem", "--ledger=http://"+free[0])
	waits(stderr, free[0])
	startLedgerAt(t, free[0])
	select {
	case line := <-ready:
		if !strings.HasPrefix(line, "{") || strings.Count(stderr.String(), "cannot connect yet") != 1 {
			t.Errorf("%q %s", line, stderr)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("it did not start: %s", stderr)
	}
	if code := stop(); code != cli.ExitOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}

	_, stderr, stop = start("--store=etcd://"+free[1], "--ledger=http://"+free[0])
	waits(stderr, free[1])
	if code := stop(); code != cli.ExitOK {
		t.Errorf("asked to stop while it waits: exit code %d: %s", code, stderr)
	}
}

// The exit code of a node is 2 for wrong usage and 1 for a failure. The reason goes to standard error, and nothing to standard output.
// A flag takes precedence over its environment variable.
func TestNodeExitCodes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	free, err := child.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	there := startLedger(t)
	base := []string{"node", "--id", "n1", "--group", "billing", "--store", "mem", "--ledger", there}
	with := func(more ...string) []string { return append(append([]string{}, base...), more...) }
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		code int
		want string
	}{
		{"unknown flag", with("--nope"), nil, cli.ExitUsage, "--nope"},
		{"an argument", with("start"), nil, cli.ExitUsage, `"start"`},
		{"unknown store", with("--store=mysql://x"), nil, cli.ExitUsage, `rediss://host:port/0, raft, or mem`},
		{"nothing", []string{"node"}, nil, cli.ExitUsage, "error: ledger:"},
		{"contradictory timings", with("--lease-ttl", "3s", "--renew-interval", "2s"), nil, cli.ExitUsage, "Misses × Beat = 3 × 2s = 6s must be less than"},
		{"a flag of the lab", with("--clock-skew", "1s"), nil, cli.ExitUsage, "--clock-skew"},
		{"peers that are none", with("--peers", "a"), nil, cli.ExitUsage, "id=host:port"},
		{"a peer twice", with("--peers", "a=h:1,a=h:2"), nil, cli.ExitUsage, "named twice"},
		{"port in use", with("--listen", taken.Addr().String()), nil, cli.ExitFailure, "in use"},
		{"environment", with("--lease-ttl", "3s"), []string{"FLEET_NODE_RENEW_INTERVAL=2s"}, cli.ExitUsage, "3 × 2s"},
		{"bad environment", base, []string{"FLEET_NODE_TICK=often"}, cli.ExitUsage, `environment FLEET_NODE_TICK="often"`},
		{"flag over environment", with("--renew-interval", "2s", "--lease-ttl", "3s"), []string{"FLEET_NODE_RENEW_INTERVAL=1ms"}, cli.ExitUsage, "3 × 2s"},
		{"missing certificate", with("--store", "etcds://"+free[1], "--ca", "none.pem"), nil, cli.ExitUsage, "ca: open none.pem"},
		{"missing password", with("--password-file", "none"), nil, cli.ExitUsage, "password-file: open none"},
		{"short credential", with("--admin-credential-file", file("f", "x")), nil, cli.ExitUsage, "admin-credential-file: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), tt.args, environment(tt.env...), strings.NewReader(""), &stdout, &stderr)
			if code != tt.code || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("exit code %d, %q; want %d and %q", code, &stderr, tt.code, tt.want)
			}
			if stdout.Len() > 0 {
				t.Errorf("standard output: %q", &stdout)
			}
		})
	}
}

// A node as a process: one line of JSON when it serves, an end in order with code 0 on
// SIGTERM and at the end of its standard input.
func TestNodeProcess(t *testing.T) {
	url := startLedger(t)
	for _, end := range []string{"SIGTERM", "end of input"} {
		t.Run(end, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "node", "--id", "n1", "--group", "billing", "--store=mem", "--ledger", url, "--until-eof", "--tick", "50ms")
			cmd.Env = append(os.Environ(), mainEnv+"=1")
			child.DieWithParent(cmd)
			log := &child.Tail{}
			cmd.Stderr = log
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			lines := make(chan string, 1)
			p, err := child.Start(cmd, func() {
				in := bufio.NewReader(stdout)
				line, _ := in.ReadString('\n')
				lines <- line
				rest, _ := io.ReadAll(in)
				lines <- string(rest)
			})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Kill()
			var ready api.Ready
			select {
			case line := <-lines:
				if err := json.Unmarshal([]byte(line), &ready); err != nil {
					t.Fatalf("%q: %v\n%s", line, err, log)
				}
			case <-time.After(time.Minute):
				t.Fatalf("not ready: %s", log)
			}
			if ready.ID != "n1" || ready.PID != cmd.Process.Pid || ready.URL != "http://"+ready.Addr {
				t.Errorf("%+v", ready)
			}
			eventually(t, "it leads", func() bool { return get(t, ready.URL+"/leader") == http.StatusOK })
			if end == "SIGTERM" {
				err = cmd.Process.Signal(syscall.SIGTERM)
			} else {
				err = stdin.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-p.Exited:
			case <-time.After(time.Minute):
				t.Fatalf("it did not end: %s", log)
			}
			var exit *exec.ExitError
			if errors.As(p.Err, &exit) {
				t.Errorf("exit code %d: %s", exit.ExitCode(), log)
			}
			if rest := <-lines; rest != "" {
				t.Errorf("standard output goes on: %q", rest)
			}
			if !strings.Contains(log.String(), "msg=stopped") {
				t.Errorf("the leader did not stop its work: %s", log)
			}
		})
	}
}

func get(t *testing.T, url string) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in a minute: %s", what)
		}
	}
}
