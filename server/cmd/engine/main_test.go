package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/embeddedetcd"
)

func environment(kv ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, s := range kv {
			if k, v, _ := strings.Cut(s, "="); k == name {
				return v, true
			}
		}
		return "", false
	}
}

// The exit code is 2 for wrong usage and 1 for a failure. The reason goes to standard error,
// and nothing to standard output.
func TestExitCodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(t.TempDir(), "alone")
	e, err := embeddedetcd.Start(t.Context(), embeddedetcd.Config{DataDir: alone})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		code int
		want string
	}{
		{"help", []string{"-h"}, nil, cli.ExitOK, "usage: engine"},
		{"help with two dashes", []string{"--help"}, nil, cli.ExitOK, "TENURE_ENGINE_X_Y"},
		{"unknown flag", []string{"-nope"}, nil, cli.ExitUsage, "not defined: -nope"},
		{"an argument", []string{"start"}, nil, cli.ExitUsage, `unexpected argument "start"`},
		{"bad duration", []string{"-tick", "fast"}, nil, cli.ExitUsage, "-tick"},
		{"two members", []string{"-name", "a", "-data-dir", "d", "-members", "a=127.0.0.1:1,b=127.0.0.1:2"}, nil, cli.ExitUsage, "error: members: 2 members need both"},
		{"two rules", []string{"-name", "A", "--tick=1us"}, nil, cli.ExitUsage, "error: tick: 1µs"},
		{"open without TLS", []string{"-client", "192.0.2.1:1"}, nil, cli.ExitUsage, "http://192.0.2.1:1"},
		{"bad duration in the environment", nil, []string{"TENURE_ENGINE_TICK=fast"}, cli.ExitUsage, `environment TENURE_ENGINE_TICK="fast"`},
		{"open in the environment", nil, []string{"TENURE_ENGINE_CLIENT=192.0.2.1:1"}, cli.ExitUsage, "http://192.0.2.1:1"},
		{"flag over environment", []string{"-client", "192.0.2.7:1"}, []string{"TENURE_ENGINE_CLIENT=192.0.2.1:1"}, cli.ExitUsage, "http://192.0.2.7:1"},
		{"insecure in the environment", []string{"-client", "192.0.2.1:1"}, []string{"TENURE_ENGINE_INSECURE=true"}, cli.ExitFailure, "client address http://192.0.2.1:1"},
		{"a file for a directory", []string{"-data-dir", file}, nil, cli.ExitFailure, "is a file"},
		{"the directory of another cluster", []string{"-name", "a", "-data-dir", alone, "-members", "a=127.0.0.1:11201,b=127.0.0.1:11202,c=127.0.0.1:11203"}, nil, cli.ExitUsage, "belongs to a cluster of 1"},
		{"missing certificate", []string{"-cert", "none.pem", "-key", "none.pem", "-ca", "none.pem"}, nil, cli.ExitUsage, "none.pem"},
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

// Every flag has an environment variable, and both set the right field.
func TestSettings(t *testing.T) {
	flags := map[string]string{
		"name": "a", "data-dir": "d", "client": "127.0.0.1:1", "advertise": "127.0.0.1:2", "peer": "127.0.0.1:3",
		"members": "a=127.0.0.1:3,b=127.0.0.1:4,c=127.0.0.1:5", "tick": "20ms", "election": "200ms",
		"ready-timeout": "3s", "insecure": "true", "until-eof": "true", "v": "true",
	}
	var args, env []string
	for name, value := range flags {
		args = append(args, "-"+name+"="+value)
		env = append(env, "TENURE_ENGINE_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+value)
	}
	byFlag, err := parse(args, environment(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	byEnv, err := parse(nil, environment(env...), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for how, s := range map[string]settings{"flags": byFlag, "environment": byEnv} {
		c := s.Config
		if c.Name != "a" || c.DataDir != "d" || c.ClientURL != "127.0.0.1:1" || c.AdvertiseClientURL != "127.0.0.1:2" || c.PeerURL != "127.0.0.1:3" ||
			len(c.Members) != 3 || c.Tick != 20*time.Millisecond || c.Election != 200*time.Millisecond || c.ReadyTimeout != 3*time.Second ||
			!c.Insecure || !c.Debug || !s.untilEOF {
			t.Errorf("%s: %+v", how, s)
		}
	}
	s, err := parse([]string{"-cert", "c", "-key", "k", "-ca", "a"}, environment(), io.Discard)
	if want := (embeddedetcd.TLS{Cert: "c", Key: "k", CA: "a"}); err == nil || s.ClientTLS != want || s.PeerTLS != want {
		t.Errorf("TLS: %+v, %v", s.Config, err)
	}
}

// started runs the program and returns its ready line.
func started(t *testing.T, args ...string) (*exec.Cmd, io.WriteCloser, ready, *child.Buffer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), enginetest.Program(t), args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := &child.Buffer{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		_ = cmd.Wait()
		t.Fatalf("no line on standard output: %v\n%s", err, stderr)
	}
	var r ready
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return cmd, stdin, r, stderr
}

// exit waits for the process, for a bounded time.
func exit(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	timer := time.AfterFunc(15*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

func healthy(t *testing.T, endpoint string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/health", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", endpoint, resp.Status)
	}
}

// When it is ready, the program prints its address as one line of JSON. A signal or the end
// of its input stops it in order and unlocks its directory.
func TestReadyAndStop(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	for _, tt := range []struct {
		name string
		args []string
		end  func(*exec.Cmd, io.Closer) error
	}{
		{"SIGTERM", nil, func(c *exec.Cmd, _ io.Closer) error { return c.Process.Signal(syscall.SIGTERM) }},
		{"SIGINT", nil, func(c *exec.Cmd, _ io.Closer) error { return c.Process.Signal(syscall.SIGINT) }},
		{"end of input", []string{"-until-eof"}, func(_ *exec.Cmd, stdin io.Closer) error { return stdin.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd, stdin, r, stderr := started(t, append(tt.args, "-name", "one", "-data-dir", dir)...)
			if r.Name != "one" || r.DataDir != dir || r.PID != cmd.Process.Pid || len(r.Endpoints) != 1 || r.Peer != "" {
				t.Errorf("it says %+v", r)
			}
			healthy(t, r.Endpoints[0])
			if err := tt.end(cmd, stdin); err != nil {
				t.Fatal(err)
			}
			if code := exit(t, cmd); code != cli.ExitOK || !strings.Contains(stderr.String(), "level=WARN") {
				t.Errorf("exit code %d\n%s", code, stderr)
			}
		})
	}
}

// The second signal ends the program at once, whatever it waits for.
func TestSecondSignal(t *testing.T) {
	cmd, _, r, stderr := started(t)
	// The process waits for a request that never ends. The answer to another request shows that
	// the first one has arrived.
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.Endpoints[0], "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: engine\r\n"); err != nil {
		t.Fatal(err)
	}
	healthy(t, r.Endpoints[0])

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for !strings.Contains(stderr.String(), "stopping") && time.Since(began) < 20*time.Second {
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	exit(t, cmd)
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGTERM {
		t.Errorf("ended with %v after %v, want by the signal\n%s", cmd.ProcessState, time.Since(began), stderr)
	}
	_ = os.RemoveAll(r.DataDir) // the program had no time to remove it
}

// A user without access to the directory gets an error with its path.
func TestForbiddenDirectory(t *testing.T) {
	const nobody = 65534
	if os.Getuid() != 0 {
		t.Skip("only root can be somebody else; the tests of the engine cover one's own user")
	}
	// Another user can reach this directory, unlike a test's own.
	public, err := os.MkdirTemp("", "engine-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(public) })
	program := filepath.Join(public, "engine")
	text, err := os.ReadFile(enginetest.Program(t))
	if err != nil {
		t.Fatal(err)
	}
	private, readable := filepath.Join(public, "private"), filepath.Join(public, "readable")
	for _, err := range []error{
		os.Chmod(public, 0o755), os.WriteFile(program, text, 0o755), os.Chmod(program, 0o755),
		os.Mkdir(private, 0o700), os.Mkdir(readable, 0o755), os.Chmod(readable, 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{private, readable, filepath.Join(private, "below"), filepath.Join(readable, "below")} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		cmd := exec.CommandContext(ctx, program, "-data-dir", dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, _ := cmd.CombinedOutput()
		cancel()
		if code := cmd.ProcessState.ExitCode(); code != cli.ExitFailure || !strings.Contains(string(out), dir) || !strings.Contains(string(out), "permission denied") {
			t.Errorf("%s: exit code %d, %s", dir, code, out)
		}
	}
}
