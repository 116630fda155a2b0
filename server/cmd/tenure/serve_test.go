package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/service"
)

// Flags that cannot work are refused before anything is started, with what to do.
func TestServeExitCodes(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"other hosts, no credentials", []string{"--listen", "0.0.0.0:0"}, "no credentials"},
		{"no such store", []string{"--store", "mysql://x"}, "postgres://user@host:port/database"},
		{"a service", []string{"--store", "http://127.0.0.1:1"}, "or embedded"},
		{"an empty host", []string{"--store", "etcd://a:1,,b:1"}, "etcd://host:port,host:port"},
		{"groups maybe", []string{"--groups", "maybe"}, "neither open nor declared"},
		{"policy alone", []string{"--policy", "x"}, "policy without credentials"},
		{"tls without authority", []string{"--store", "etcds://a:1"}, "--store-ca"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), append([]string{"serve"}, tt.args...), environment(), strings.NewReader(""), &stdout, &stderr)
			if code != cli.ExitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("%d, %q", code, stderr.String())
			}
		})
	}
}

// serveProcess is `tenure serve` as a process.
type serveProcess struct {
	t *testing.T
	*exec.Cmd
	args   []string
	stdin  io.WriteCloser
	stderr *child.Buffer
	ready  serveReady
}

func startServe(t *testing.T, args ...string) *serveProcess {
	t.Helper()
	p := &serveProcess{t: t, args: args}
	t.Cleanup(func() {
		if p.Cmd != nil {
			p.kill()
		}
	})
	p.launch("127.0.0.1:0")
	return p
}

func (p *serveProcess) launch(listen string) {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	var said string
	// Another process may use the port for a moment.
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		p.Cmd = exec.Command(self, append([]string{"serve", "--listen", listen, "--until-eof"}, p.args...)...)
		p.stderr = &child.Buffer{}
		p.Env, p.Stderr = append(os.Environ(), mainEnv+"=1"), p.stderr
		if p.stdin, err = p.StdinPipe(); err != nil {
			p.t.Fatal(err)
		}
		stdout, err := p.StdoutPipe()
		if err != nil {
			p.t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			p.t.Fatal(err)
		}
		line, err := bufio.NewReader(stdout).ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &p.ready)
		}
		if err == nil {
			return
		}
		_ = p.Process.Kill()
		_ = p.Wait()
		said = p.stderr.String()
	}
	p.t.Fatalf("it does not start: %s", said)
}

// kill sends SIGKILL.
func (p *serveProcess) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
	_ = p.stdin.Close()
	p.Cmd = nil
}

// call returns the status, or 0 without an answer, and decodes the answer.
func (p *serveProcess) call(method, path string, in, out any) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		p.t.Error(err)
		return 0
	}
	req, err := http.NewRequestWithContext(ctx, method, p.ready.URL+path, bytes.NewReader(body))
	if err != nil {
		p.t.Error(err)
		return 0
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return 0
	}
	return resp.StatusCode
}

// until repeats a call through every interruption.
func (p *serveProcess) until(method, path string, in, out any) {
	p.t.Helper()
	status := 0
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if status = p.call(method, path, in, out); status == 200 {
			return
		}
	}
	p.t.Fatalf("%s %s answers %d", method, path, status)
}

// follow passes the events of a stream after the last id to f, until the stream ends or f
// returns false.
func follow(ctx context.Context, url, last string, f func(id string, kind feed.Kind, e feed.Event) bool) {
	req, err := http.NewRequestWithContext(ctx, "GET", url, http.NoBody)
	if err != nil {
		return
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	var id string
	var kind feed.Kind
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "event":
			kind, id = feed.Kind(value), ""
		case "data":
			var e feed.Event
			if err := json.Unmarshal([]byte(value), &e); err != nil || !f(id, kind, e) {
				return
			}
		}
	}
}

// The embedded engine keeps terms over a stop and a restart, a second instance can share it
// if it has an address, and both stop in order.
func TestServeEmbedded(t *testing.T) {
	p := startServe(t, "--data-dir", filepath.Join(t.TempDir(), "data"), "--ttl", "3s", "--engine-listen", "127.0.0.1:0")
	second := startServe(t, "--store", "etcd://"+strings.TrimPrefix(p.ready.Store[0], "http://"))
	if second.ready.Deployment != p.ready.Deployment || p.ready.PID != p.Process.Pid {
		t.Errorf("%+v beside %+v", second.ready, p.ready)
	}
	var l service.Leading
	p.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "a", Instance: "process-a-of-the-test"}, &l)
	var renewed service.Renewed
	second.until("POST", "/v1/groups/billing/renew", service.RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, &renewed)
	if renewed.Term != 1 || renewed.TTLMS != 3000 {
		t.Errorf("renewed by the second instance: %+v", renewed)
	}
	var out service.Resigned
	second.until("POST", "/v1/groups/billing/resign", service.ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, &out)
	for _, s := range []*serveProcess{second, p} {
		if err := s.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Minute, func() { _ = s.Process.Kill() })
		_ = s.Wait()
		timer.Stop()
		if code := s.ProcessState.ExitCode(); code != 0 {
			t.Errorf("stopped with %d: %s", code, s.stderr)
		}
	}
	second.Cmd = nil
	p.launch("127.0.0.1:0")
	p.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "b", Instance: "process-b-of-the-test"}, &l)
	if l.Term != 2 {
		t.Errorf("after the restart: %+v", l)
	}
}

// If an instance is killed, its leader renews at the other one, and its watcher resumes there
// without missing anything.
func TestServeInstanceKilled(t *testing.T) {
	e := enginetest.Cluster(t, 1)
	store := "etcd://" + e.Members[0].Addr()
	one, two := startServe(t, "--store", store), startServe(t, "--store", store)
	var l service.Leading
	one.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "a", Instance: "process-a-of-the-test", TTLMS: 20_000}, &l)
	var last string
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	follow(ctx, one.ready.URL+"/v1/groups/billing/watch", "", func(id string, _ feed.Kind, _ feed.Event) bool {
		last = id
		return false
	})
	if last == "" {
		t.Fatal("no snapshot came")
	}
	one.kill()
	var renewed service.Renewed
	two.until("POST", "/v1/groups/billing/renew", service.RenewRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, &renewed)
	var out service.Resigned
	two.until("POST", "/v1/groups/billing/resign", service.ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, &out)
	two.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "b", Instance: "process-b-of-the-test"}, &l)
	var told []string
	follow(ctx, two.ready.URL+"/v1/groups/billing/watch", last, func(_ string, kind feed.Kind, e feed.Event) bool {
		told = append(told, fmt.Sprint(kind, " ", e.State, " ", e.Token))
		return len(told) < 2
	})
	if got := strings.Join(told, ", "); got != "LEADER_CHANGED vacant 1, LEADER_CHANGED led 2" {
		t.Errorf("the watcher was told: %s", got)
	}
}

func rounds(t *testing.T, otherwise int) int {
	t.Helper()
	s := os.Getenv("TENURE_ROUNDS")
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("TENURE_ROUNDS=%q", s)
	}
	return n
}

// journal records what a watcher got, through all interruptions.
type journal struct {
	mu    sync.Mutex
	told  map[string]int
	reset int
	last  string
}

func (j *journal) note(id string, kind feed.Kind, e feed.Event) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if kind == feed.Reset {
		j.reset++
	}
	if id != "" {
		j.last = id
	}
	if e.State != "unknown" && !e.Snapshot {
		j.told[fmt.Sprint(e.State, e.Token)]++
	}
	return true
}

func (j *journal) place() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last
}

// Service and engine are killed together at random instants, TENURE_ROUNDS times: no token is
// granted twice, the history has every term, and a watcher that reconnects gets each change
// once.
func TestServeKilled(t *testing.T) {
	p := startServe(t, "--data-dir", filepath.Join(t.TempDir(), "data"))
	addr := p.ready.Addr
	j := &journal{told: make(map[string]int)}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		for ctx.Err() == nil {
			follow(ctx, "http://"+addr+"/v1/groups/billing/watch", j.place(), j.note)
			time.Sleep(20 * time.Millisecond)
		}
	})
	for end := time.Now().Add(time.Minute); j.place() == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no snapshot came")
		}
	}
	highest := uint64(0)
	for range rounds(t, 3) {
		killed := make(chan struct{})
		go func(of *os.Process) {
			defer close(killed)
			time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
			_ = of.Kill()
		}(p.Process)
		for dead := false; !dead; {
			select {
			case <-killed:
				dead = true
				continue
			default:
			}
			var l service.Leading
			if p.call("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "a", Instance: "process-a-of-the-test"}, &l) != 200 {
				continue
			}
			if uint64(l.Term) < highest {
				t.Errorf("term %d after %d", l.Term, highest)
			}
			highest = max(highest, uint64(l.Term))
			var out service.Resigned
			if p.call("POST", "/v1/groups/billing/resign", service.ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, &out) == 200 {
				highest++ // this one must not be granted again
			}
		}
		_ = p.Wait()
		p.launch(addr)
	}
	var l service.Leading
	p.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "a", Instance: "process-a-of-the-test"}, &l)
	led := fmt.Sprint("led", l.Term)
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		j.mu.Lock()
		done := j.told[led] > 0
		j.mu.Unlock()
		if done {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the watcher was not told of term %d", l.Term)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.reset > 0 {
		t.Errorf("%d resets", j.reset)
	}
	for token := uint64(1); token <= uint64(l.Term); token++ {
		if n := j.told[fmt.Sprint("led", token)]; n != 1 {
			t.Errorf("led %d was told %d times", token, n)
		}
		if n := j.told[fmt.Sprint("vacant", token)]; n != 1 && token < uint64(l.Term) {
			t.Errorf("vacant %d was told %d times", token, n)
		}
	}
	var h service.History
	p.until("GET", "/v1/groups/billing/history?limit=1000", nil, &h)
	if len(h.Terms) != min(int(l.Term), 1000) {
		t.Errorf("the history has %d terms of %d", len(h.Terms), l.Term)
	}
	t.Logf("%d terms", l.Term)
}

// serve tells systemd when it is ready and when it stops, and logs a command to try.
func TestServeNotifies(t *testing.T) {
	dir, err := os.MkdirTemp("", "notify") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := filepath.Join(dir, "s")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	told := func(want string) {
		t.Helper()
		buf := make([]byte, 100)
		if err := socket.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := socket.Read(buf); err != nil || string(buf[:n]) != want {
			t.Fatalf("%q, %v; want %s", buf[:n], err, want)
		}
	}
	t.Setenv("NOTIFY_SOCKET", at)
	p := startServe(t, "--data-dir", filepath.Join(t.TempDir(), "data"))
	told("READY=1")
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	told("STOPPING=1")
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	if said := p.stderr.String(); !strings.Contains(said, "msg=ready url="+p.ready.URL+" ") || !strings.Contains(said, ` try="tenure exec --store=`+p.ready.URL+" billing -- ") {
		t.Errorf("%s", said)
	}
	p.Cmd = nil
}
