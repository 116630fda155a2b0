package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/reference/command"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
	"github.com/tenurehq/tenure/server/cli"
)

// mainEnv makes the test binary run as the program.
const mainEnv = "TENURE_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

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

// The exit code is 2 for wrong usage, 6 for what may work later, and 1 for other failures.
// The reason goes to standard error, and nothing to standard output.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	locked := filepath.Join(dir, "locked.db")
	l, err := ledger.Open(t.Context(), ledger.Config{DB: locked})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	free := []string{"ledger", "--listen", "127.0.0.1:0"}
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		code int
		want string
	}{
		{"no verb", nil, nil, cli.ExitUsage, "missing command"},
		{"unknown verb", []string{"nope"}, nil, cli.ExitUsage, `"nope"`},
		{"unknown flag", []string{"ledger", "--nope"}, nil, cli.ExitUsage, "--nope"},
		{"an argument", []string{"ledger", "x"}, nil, cli.ExitUsage, `"x"`},
		{"bad duration", []string{"ledger", "--acting-window", "long"}, nil, cli.ExitUsage, "acting-window"},
		{"bad duration in the environment", []string{"ledger"}, []string{"FLEET_LEDGER_ACTING_WINDOW=long"}, cli.ExitUsage, `environment FLEET_LEDGER_ACTING_WINDOW="long"`},
		{"fencing off", []string{"ledger", "--fencing=off"}, nil, cli.ExitUsage, "--fencing"},
		{"no database", []string{"ledger", "--db", "mysql://x"}, nil, cli.ExitUsage, "mysql://"},
		{"two rules", []string{"ledger", "--db", ":memory:", "--queue", "-1"}, nil, cli.ExitUsage, "error: queue: -1 is negative"},
		{"open to all", []string{"ledger", "--listen", "192.0.2.1:1"}, nil, cli.ExitUsage, "other hosts can reach"},
		{"no address", []string{"ledger", "--listen", "here"}, nil, cli.ExitUsage, "is not host:port"},
		{"a directory", append(free, "--db", dir), nil, cli.ExitFailure, "is a directory"},
		{"port in use", []string{"ledger", "--listen", busy.Addr().String(), "--db", filepath.Join(dir, "a.db")}, nil, cli.ExitFailure, "address already in use"},
		{"file in use", append(free, "--db", locked), nil, cli.ExitUnavailable, "served by another ledger"},
		{"no PostgreSQL", append(free, "--db", "postgres://127.0.0.1:1/x", "--timeout=1s"), nil, cli.ExitUnavailable, "PostgreSQL does not answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), tt.args, environment(tt.env...), strings.NewReader(""), &stdout, &stderr)
			if code != tt.code || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("exit code %d, %q; want %d and %q", code, &stderr, tt.code, tt.want)
			}
			if stdout.Len() > 0 && len(tt.args) > 0 {
				t.Errorf("standard output: %q", &stdout)
			}
		})
	}
	var stdout bytes.Buffer
	if code := run(t.Context(), []string{"ledger", "--help"}, environment(), strings.NewReader(""), &stdout, io.Discard); code != cli.ExitOK || !strings.Contains(stdout.String(), "--acting-window") {
		t.Errorf("help: %d %s", code, &stdout)
	}
}

// Every flag has an environment variable, and takes precedence over it.
func TestFlagsAndEnvironment(t *testing.T) {
	values := func(args, env []string) map[string]string {
		root := newRoot(environment(env...))
		got := map[string]string{}
		cmd, rest, err := root.Find(append([]string{"ledger"}, args...))
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Fatal(err)
		}
		if err := cmd.PreRunE(cmd, nil); err != nil {
			t.Fatal(err)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { got[f.Name] = strings.Trim(f.Value.String(), "[]") })
		return got
	}
	given := map[string]string{}
	command.Ledger(nil).Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "bool":
			given[f.Name] = "true"
		case "duration":
			given[f.Name] = "7s"
		case "string":
			given[f.Name] = "seven"
		default:
			given[f.Name] = "7"
		}
	})
	var args, env []string
	for name, v := range given {
		args = append(args, "--"+name+"="+v)
		env = append(env, "FLEET_LEDGER_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+v)
	}
	for how, got := range map[string]map[string]string{"flags": values(args, nil), "environment": values(nil, env)} {
		for name, want := range given {
			if got[name] != want {
				t.Errorf("%s: %s is %q, want %q", how, name, got[name], want)
			}
		}
	}
	if got := values([]string{"--db", "mine"}, env)["db"]; got != "mine" {
		t.Errorf("a flag beside its variable is %q", got)
	}
}

type program struct {
	*exec.Cmd
	stdin  io.WriteCloser
	stderr *child.Buffer
	ready  command.LedgerReady
}

func started(t *testing.T, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{Cmd: exec.CommandContext(t.Context(), self, append([]string{"ledger", "--listen", "127.0.0.1:0"}, args...)...), stderr: &child.Buffer{}}
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
	if err != nil {
		_ = p.Wait()
		t.Fatalf("%q: %v\n%s", line, err, p.stderr)
	}
	return p
}

func (p *program) exit() int {
	timer := time.AfterFunc(20*time.Second, func() { _ = p.Process.Kill() })
	defer timer.Stop()
	_ = p.Wait()
	return p.ProcessState.ExitCode()
}

// When it is ready, it prints its address as one line of JSON. A signal or the end of its
// input stops it in order, and the next process finds what was written.
func TestReadyAndStop(t *testing.T) {
	db := filepath.Join(t.TempDir(), "l.db")
	for i, end := range []func(*program) error{
		func(p *program) error { return p.Process.Signal(syscall.SIGTERM) },
		func(p *program) error { return p.Process.Signal(os.Interrupt) },
		func(p *program) error { return p.stdin.Close() },
	} {
		p := started(t, "--db", db, "--until-eof")
		if p.ready.PID != p.Process.Pid || p.ready.URL != "http://"+p.ready.Addr || !p.ready.Fencing {
			t.Errorf("it says %+v", p.ready)
		}
		c, err := client.New(client.Config{URL: p.ready.URL})
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Allocate(t.Context(), "r", fence.Stamp{Deployment: "d", Group: "g", Token: 1}, api.SequenceWrite{Name: "ids", N: 1})
		if err != nil || r.First != uint64(i)+1 {
			t.Errorf("start %d: %+v, %v", i, r, err)
		}
		if err := end(p); err != nil {
			t.Fatal(err)
		}
		if code := p.exit(); code != cli.ExitOK || !strings.Contains(p.stderr.String(), "stopping") {
			t.Errorf("exit code %d\n%s", code, p.stderr)
		}
	}
}

// The second signal ends the process at once, whatever it waits for.
func TestSecondSignal(t *testing.T) {
	p := started(t, "--db", filepath.Join(t.TempDir(), "l.db"))
	// The process waits for a request that never ends. The answer to another request shows that
	// the first one has arrived.
	conn, err := net.Dial("tcp", p.ready.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST /v1/resources/r/seal HTTP/1.1\r\nHost: x\r\nFencing-Token: 1\r\nFencing-Group: g\r\nFencing-Deployment: d\r\nContent-Length: 9\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{URL: p.ready.URL})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Healthy(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); !strings.Contains(p.stderr.String(), "stopping") && time.Since(began) < 20*time.Second; {
		time.Sleep(5 * time.Millisecond)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exit()
	if ws, ok := p.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGTERM {
		t.Errorf("ended with %v, want by the signal\n%s", p.ProcessState, p.stderr)
	}
}
