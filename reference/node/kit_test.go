package node_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
	"github.com/tenurehq/tenure/reference/node"
	"github.com/tenurehq/tenure/reference/node/nodehttp"
)

// roleEnv makes this test binary run as a process of a fleet.
const roleEnv = "TENURE_FLEET_TEST_ROLE"

type role struct {
	Ledger *ledgerRole
	Node   *nodeRole
}

type ledgerRole struct{ Listen, DB string }

// nodeRole has the part of a configuration that can be encoded as JSON.
type nodeRole struct {
	ID, Group, Listen, Store, Ledger, DataDir string
	Peers                                     map[string]string
	TTL, Tick, SinkPatience, ElectionTimeout  time.Duration
	Hooks                                     bool // pauseHooks
	AdminCredentialFile                       string
}

func (r nodeRole) config() node.Config {
	c := node.Config{
		ID: r.ID, Group: r.Group, Listen: r.Listen, Store: r.Store, Ledger: r.Ledger, DataDir: r.DataDir, Peers: r.Peers,
		Tick: r.Tick, SinkPatience: r.SinkPatience, ElectionTimeout: r.ElectionTimeout, AdminCredentialFile: r.AdminCredentialFile,
	}
	if r.Hooks {
		c.Hooks = newPauseHooks()
	}
	c.TTL = r.TTL
	return c
}

func TestMain(m *testing.M) {
	if s := os.Getenv(roleEnv); s != "" {
		if err := play(s); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play runs a process of the fleet. It stops in order when its standard input ends.
func play(env string) error {
	var r role
	if err := json.Unmarshal([]byte(env), &r); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel(errors.New("standard input ended"))
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ready := func(url string) error {
		return json.NewEncoder(os.Stdout).Encode(api.Ready{URL: url, PID: os.Getpid()})
	}
	switch {
	case r.Ledger != nil:
		cfg := ledgerhttp.Config{Listen: r.Ledger.Listen}
		cfg.DB, cfg.Logger = r.Ledger.DB, log
		return ledgerhttp.Serve(ctx, cfg, func(addr string) error { return ready("http://" + addr) })
	case r.Node != nil:
		cfg := r.Node.config()
		cfg.Log = log
		return nodehttp.Run(ctx, cfg, func(a api.Ready) error { return ready(a.URL) })
	default:
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		if err := ready("http://" + ln.Addr().String()); err != nil {
			return err
		}
		constant := []byte("{\"token\":1,\"seq\":1000000}\n")
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(constant)
		})}
		context.AfterFunc(ctx, func() { _ = s.Close() })
		return s.Serve(ln)
	}
}

// process is this test binary in a role.
type process struct {
	*child.Process
	URL   string
	stdin io.Closer
	log   *child.Tail
}

// patience is long, because a machine that runs all tests at once is slow.
const patience = 60 * time.Second

// start starts a process and waits until it serves, or returns its output if it ends.
func start(t testing.TB, r role) (*process, error) {
	t.Helper()
	env, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+string(env))
	child.DieWithParent(cmd)
	p := &process{log: &child.Tail{}}
	cmd.Stderr = p.log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	lines := make(chan string, 1)
	p.Process, err = child.Start(cmd, func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		lines <- line
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("a process said:\n%s", p.log)
		}
	})
	select {
	case line := <-lines:
		var a api.Ready
		if json.Unmarshal([]byte(line), &a) != nil {
			<-p.Exited
			return p, errors.New(strings.TrimSpace(p.log.String()))
		}
		p.URL = a.URL
	case <-time.After(patience):
		return p, fmt.Errorf("not ready in %v: %s", patience, p.log)
	}
	return p, nil
}

func mustStart(t testing.TB, r role) *process {
	t.Helper()
	p, err := start(t, r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stop stops the process and waits for it.
func (p *process) stop(t testing.TB) error {
	t.Helper()
	_ = p.stdin.Close()
	select {
	case <-p.Exited:
		return p.Err
	case <-time.After(patience):
		t.Fatalf("it did not end: %s", p.log)
		return nil
	}
}

func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func startLedger(t testing.TB, listen string, db string) *process {
	t.Helper()
	if db == "" {
		db = filepath.Join(t.TempDir(), "ledger.db")
	}
	return mustStart(t, role{Ledger: &ledgerRole{listen, db}})
}

// answered has the parts of an answer besides its body.
type answered struct {
	StatusCode int
	Header     http.Header
}

// ask makes a request and decodes the answer into v, if it is not nil.
func ask(t testing.TB, method, url, body string, v any, headers ...string) (answered, []byte) {
	t.Helper()
	resp, data, err := try(t, method, url, body, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	if v != nil {
		if err := json.Unmarshal(data, v); err != nil {
			t.Fatalf("%s %s: %d %s: %v", method, url, resp.StatusCode, data, err)
		}
	}
	return resp, data
}

func try(t testing.TB, method, url, body string, headers ...string) (answered, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return answered{}, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	return answered{resp.StatusCode, resp.Header}, data, err
}

// eventually waits until f returns true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

// leaderOf waits until one of the nodes leads with a token above the given one, and serves
// calls.
func leaderOf(t testing.TB, above uint64, nodes ...*process) (*process, api.Status) {
	t.Helper()
	var found *process
	var status api.Status
	eventually(t, fmt.Sprintf("somebody leads with a token above %d", above), func() bool {
		for _, p := range nodes {
			resp, data, err := try(t, "GET", p.URL+"/status", "")
			if err != nil || resp.StatusCode != http.StatusOK {
				continue
			}
			var s api.Status
			if json.Unmarshal(data, &s) == nil && s.Role == api.Leader && s.Working && uint64(s.FenceToken) > above {
				found, status = p, s
				return true
			}
		}
		return false
	})
	return found, status
}

func serveHandler(t testing.TB, h http.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// etcdURL is the --store of a cluster.
func etcdURL(c *enginetest.Engine) string {
	return "etcd://" + strings.ReplaceAll(strings.Join(c.Endpoints(), ","), "http://", "")
}
