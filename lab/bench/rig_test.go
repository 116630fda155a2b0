//go:build linux

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
)

// programs builds the programs of the fleet once. Bugs can be planted in labfleet-planted.
var programs = sync.OnceValues(func() (string, error) {
	bin, err := child.CacheDir("fleet")
	if err != nil {
		return "", err
	}
	return bin, errors.Join(
		build(bin+"/", nil, "server/cmd/tenure", "reference/cmd/fleet", "lab/cmd/labfleet", "lab/cmd/lab"),
		build(filepath.Join(bin, "labfleet-planted"), []string{"-tags", "planted"}, "lab/cmd/labfleet"))
})

func build(out string, flags []string, programs ...string) error {
	top, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	return child.Build(context.Background(), top, out, flags, programs...)
}

// rig is a fleet of real processes: an engine, a ledger and nodes.
type rig struct {
	t         *testing.T
	bin       string
	node      string // the program
	endpoints []string
	ttl       time.Duration
	db        string
	ledger    *program
	args      []string // of every node
	nodes     map[string]*program
	addrs     map[string]string // a restarted node keeps its address
	http      *http.Client
}

// program is a process that has printed its address.
type program struct {
	api.Ready
	proc *child.Process
	said *child.Tail
}

type rigConfig struct {
	node      string
	nodes     int
	ttl       time.Duration
	db        string
	endpoints []string
	args      []string
}

func newRig(t *testing.T, cfg rigConfig) *rig {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.node == "" {
		cfg.node = "labfleet"
	}
	if cfg.db == "" {
		cfg.db = filepath.Join(t.TempDir(), "ledger.db")
	}
	if cfg.endpoints == nil {
		cfg.endpoints = enginetest.Cluster(t, 1).Endpoints()
	}
	r := &rig{
		t: t, bin: bin, node: cfg.node, endpoints: cfg.endpoints, ttl: cfg.ttl, db: cfg.db, args: cfg.args, nodes: map[string]*program{}, addrs: map[string]string{},
		http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	t.Cleanup(r.http.CloseIdleConnections)
	r.ledger = r.run("fleet", "ledger", "--listen", "127.0.0.1:0", "--db", cfg.db)
	for i := range cfg.nodes {
		r.start(fmt.Sprintf("node-%d", i+1))
	}
	return r
}

// start starts or restarts a node.
func (r *rig) start(id string) {
	r.t.Helper()
	if r.addrs[id] == "" {
		ports, err := child.FreePorts(1)
		if err != nil {
			r.t.Fatal(err)
		}
		r.addrs[id] = ports[0]
	}
	args := append([]string{
		"node", "--id", id, "--group", "billing", "--listen", r.addrs[id], "--store", "etcd://" + strings.ReplaceAll(strings.Join(r.endpoints, ","), "http://", ""),
		"--ledger", r.ledger.URL, "--lease-ttl", r.ttl.String(),
	}, r.args...)
	r.nodes[id] = r.run(r.node, args...)
}

// run starts a program and waits for its line. It ends with the test.
func (r *rig) run(name string, args ...string) *program {
	r.t.Helper()
	p := &program{said: &child.Tail{}}
	cmd := exec.Command(filepath.Join(r.bin, name), args...)
	child.DieWithParent(cmd)
	cmd.Stderr = p.said
	// Some programs end when their standard input ends, so it stays open.
	_, inErr := cmd.StdinPipe()
	stdout, err := cmd.StdoutPipe()
	if err = errors.Join(err, inErr); err != nil {
		r.t.Fatal(err)
	}
	ready := make(chan error, 1)
	p.proc, err = child.Start(cmd, func() {
		lines := bufio.NewReader(stdout)
		line, err := lines.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &p.Ready)
		}
		ready <- err
		_, _ = io.Copy(io.Discard, lines)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(p.proc.Kill)
	select {
	case err = <-ready:
	case <-time.After(time.Minute):
		err = fmt.Errorf("nothing after a minute")
	}
	if err != nil {
		p.proc.Kill()
		r.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, p.said)
	}
	return p
}

// call sends a request to a node and reads the answer.
func (r *rig) call(ctx context.Context, method, url string, body, into any) (int, error) {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, in)
	if err != nil {
		return 0, err
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return resp.StatusCode, err
	case resp.StatusCode >= 300:
		return resp.StatusCode, fmt.Errorf("%s %s: %d %s", method, url, resp.StatusCode, data)
	case into != nil:
		return resp.StatusCode, json.Unmarshal(data, into)
	}
	return resp.StatusCode, nil
}

// leader waits for a working leader with a token above the given one.
func (r *rig) leader(above uint64) (string, api.Status) {
	r.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for id, p := range r.nodes {
			var s api.Status
			ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
			_, err := r.call(ctx, http.MethodGet, p.URL+"/status", nil, &s)
			cancel()
			if err == nil && s.Role == api.Leader && s.Working && uint64(s.FenceToken) > above {
				return id, s
			}
		}
	}
	for id, p := range r.nodes {
		r.t.Logf("%s said:\n%s", id, p.said)
	}
	r.t.Fatal("nobody leads after two minutes")
	return "", api.Status{}
}

func (r *rig) client() *client.Client {
	r.t.Helper()
	c, err := client.New(client.Config{URL: r.ledger.URL, Timeout: 30 * time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// kill kills the process (SIGKILL).
func (r *rig) kill(id string) {
	r.nodes[id].proc.Kill()
	delete(r.nodes, id)
}

// hammer calls POST /next at the leader repeatedly, until stop.
func (r *rig) hammer(callers int) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	var all sync.WaitGroup
	var urls []string
	for _, p := range r.nodes {
		urls = append(urls, p.URL)
	}
	for range callers {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; {
				if code, _ := r.call(ctx, http.MethodPost, urls[i%len(urls)]+"/next", nil, nil); code != http.StatusOK {
					i++
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	return func() { cancel(); all.Wait() }
}
