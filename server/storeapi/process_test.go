package storeapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store/etcd"
)

// serveEnv makes the test binary run as an instance of the service; its value is JSON.
const serveEnv = "TENURE_STOREAPI_TEST_SERVE"

type served struct {
	Endpoints []string
	Listen    string
}

func TestMain(m *testing.M) {
	if s := os.Getenv(serveEnv); s != "" {
		if err := serve(s); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = flag.Set("test.parallel", "8") // they mostly wait
	}
	os.Exit(m.Run())
}

// serve runs an instance until its standard input ends.
func serve(env string) error {
	var s served
	if err := json.Unmarshal([]byte(env), &s); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	opening, opened := context.WithTimeout(ctx, 20*time.Second)
	defer opened()
	engine, err := etcd.Open(opening, etcd.Config{Endpoints: s.Endpoints, MinTTL: time.Second})
	if err != nil {
		return err
	}
	defer engine.Close()
	h, err := handler(trusting(engine))
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return httpapi.Serve(ctx, ln, h, httpapi.Limits{Grace: time.Second}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// process is an instance that can be killed and restarted at the same address.
type process struct {
	t testing.TB
	s served

	mu  sync.Mutex
	run *child.Process
	end io.Closer
}

func startProcess(t testing.TB, endpoints []string) *process {
	t.Helper()
	p := &process{t: t, s: served{Endpoints: endpoints, Listen: "127.0.0.1:0"}}
	t.Cleanup(p.kill)
	p.start()
	return p
}

func (p *process) url() string { return "http://" + p.s.Listen }

func (p *process) start() {
	p.t.Helper()
	var err error
	// Another process may use the port for a moment.
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = p.launch(); err == nil {
			return
		}
	}
	p.t.Errorf("the instance does not start: %v", err)
}

func (p *process) launch() error {
	env, err := json.Marshal(p.s)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "-test.run=^$")
	cmd.Env = append(os.Environ(), serveEnv+"="+string(env))
	child.DieWithParent(cmd)
	said := &child.Tail{}
	cmd.Stderr = said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	ready := make(chan string, 1)
	run, err := child.Start(cmd, func() {
		out := bufio.NewReader(stdout)
		line, _ := out.ReadString('\n')
		ready <- strings.TrimSpace(line)
		_, _ = io.Copy(io.Discard, out)
	})
	if err != nil {
		return err
	}
	select {
	case addr := <-ready:
		if addr == "" {
			run.Kill()
			return fmt.Errorf("it ended: %s", said)
		}
		p.s.Listen = addr
	case <-time.After(30 * time.Second):
		run.Kill()
		return fmt.Errorf("it is not ready: %s", said)
	}
	p.mu.Lock()
	p.run, p.end = run, stdin
	p.mu.Unlock()
	return nil
}

// kill sends SIGKILL.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil {
		p.run.Kill()
		_ = p.end.Close()
		p.run = nil
	}
}
