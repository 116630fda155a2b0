package ledger_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/reference/ledger/client"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
)

// serveEnv makes the test binary run as a ledger; its value is JSON.
const serveEnv = "TENURE_LEDGER_TEST_SERVE"

type served struct {
	DB       string
	Listen   string
	Unfenced bool
}

func TestMain(m *testing.M) {
	if s := os.Getenv(serveEnv); s != "" {
		os.Exit(serve(s))
	}
	fencetest.Child(sinkOf("sqlite", nil), sinkOf("postgres", nil), sinkOf("unfenced", nil))
	os.Exit(m.Run())
}

// serve runs a ledger until its standard input ends.
func serve(env string) int {
	var s served
	if err := json.Unmarshal([]byte(env), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	cfg := ledgerhttp.Config{Listen: s.Listen}
	cfg.DB, cfg.Unfenced = s.DB, s.Unfenced
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	err := ledgerhttp.Serve(ctx, cfg, func(addr string) error {
		_, err := fmt.Println(addr)
		return err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a ledger in a separate process that can be killed and restarted at the same
// address.
type process struct {
	t     testing.TB
	s     served
	cmd   *exec.Cmd
	stdin io.Closer
	err   *strings.Builder
}

func startProcess(t testing.TB, s served) *process {
	t.Helper()
	s.Listen = "127.0.0.1:0"
	p := &process{t: t, s: s}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.kill()
		}
	})
	p.start()
	return p
}

func (p *process) url() string { return "http://" + p.s.Listen }

func (p *process) client() *client.Client {
	c, err := client.New(client.Config{URL: p.url(), Holder: "test"})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(c.Close)
	return c
}

func (p *process) start() {
	p.t.Helper()
	var said string
	// Another process may use the port for a moment.
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if said = p.launch(); said == "" {
			return
		}
	}
	p.t.Fatalf("the ledger does not start: %s", said)
}

func (p *process) launch() (failed string) {
	env, err := json.Marshal(p.s)
	if err != nil {
		return err.Error()
	}
	program, err := os.Executable()
	if err != nil {
		return err.Error()
	}
	cmd := exec.Command(program, "-test.run=^$")
	cmd.Env = append(os.Environ(), serveEnv+"="+string(env))
	p.err = &strings.Builder{}
	cmd.Stderr = p.err
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err.Error()
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err.Error()
	}
	if err := cmd.Start(); err != nil {
		return err.Error()
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return p.err.String()
	}
	p.s.Listen, p.cmd, p.stdin = strings.TrimSpace(line), cmd, stdin
	return ""
}

// kill sends SIGKILL.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.stdin.Close()
	p.cmd = nil
}

func (p *process) restart() {
	p.t.Helper()
	p.kill()
	p.start()
}
