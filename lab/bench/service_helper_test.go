//go:build linux

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// helperEnv makes this test binary a helper process of a benchmark of the service; its value is a
// task.
const helperEnv = "TENURE_BENCH_AIDE"

// The tasks.
const (
	bareHandler   = "bare handler"
	bareBroadcast = "bare broadcaster"
	watchers      = "watchers"
	sleepers      = "watchers that never read"
	goHolder      = "holder of groups, store/remote"
	httpHolder    = "holder of groups, HTTP"
)

// task is what a helper process does.
type task struct {
	Kind, ID string
	URL      string // of what it calls, with the path
	N        int
	Headers  map[string]string
	Body     []byte
	Groups   []string // to lead
	Next     []string // to lead when they become vacant
	TTL      time.Duration
}

// tell is sent to a helper's standard input, told is its output, one JSON per line.
type tell struct {
	Do   string
	Text string
}

type told struct {
	What  string
	Text  string  `json:",omitempty"`
	At    []int64 `json:",omitempty"` // on CLOCK_BOOTTIME
	Error string  `json:",omitempty"`
}

// helperRun is the work of a helper process.
type helperRun struct {
	task
	ctx context.Context
	mu  sync.Mutex
	out *json.Encoder
	in  chan tell
}

func (e *helperRun) say(a told) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.out.Encode(a)
}

func helperMain(raw string) error {
	e := &helperRun{out: json.NewEncoder(os.Stdout), in: make(chan tell)}
	if err := json.Unmarshal([]byte(raw), &e.task); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	e.ctx = ctx
	go func() {
		defer close(e.in)
		defer cancel() // the parent has ended or closed our input
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			var t tell
			if json.Unmarshal(lines.Bytes(), &t) == nil {
				e.in <- t
			}
		}
	}()
	run, ok := map[string]func(*helperRun) error{
		bareHandler: serveBare, bareBroadcast: broadcast, watchers: watchAll, sleepers: sleepAll, goHolder: holdGo, httpHolder: holdHTTP,
	}[e.Kind]
	if !ok {
		return fmt.Errorf("unknown task %q", e.Kind)
	}
	return run(e)
}

// serve serves h on loopback until the parent has ended.
func (e *helperRun) serve(h http.Handler) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(e.ctx, func() { _ = s.Close() })()
	e.say(told{What: "ready", Text: "http://" + ln.Addr().String()})
	if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveBare answers every request with the same bytes, to measure what HTTP alone costs.
func serveBare(e *helperRun) error {
	go func() {
		for range e.in { // it gets no input
		}
	}()
	return e.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		for k, v := range e.Headers {
			h.Set(k, v)
		}
		_, _ = w.Write(e.Body)
	}))
}

// helper is a helper process, seen from the benchmark.
type helper struct {
	t    *testing.T
	kind string
	url  string // if it serves
	proc *child.Process
	in   io.WriteCloser
	told chan told
}

// start starts the process and waits until it is ready.
func (k task) start(t *testing.T) *helper {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	a := &helper{t: t, kind: k.Kind, told: make(chan told, 64)}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), helperEnv+"="+string(raw))
	cmd.Stderr = os.Stderr
	child.DieWithParent(cmd)
	var inErr error
	a.in, inErr = cmd.StdinPipe()
	out, err := cmd.StdoutPipe()
	if err = errors.Join(err, inErr); err != nil {
		t.Fatal(err)
	}
	a.proc, err = child.Start(cmd, func() {
		defer close(a.told)
		for in := json.NewDecoder(out); ; {
			var n told
			if in.Decode(&n) != nil {
				return
			}
			a.told <- n
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.kill)
	a.url = a.await("ready").Text
	return a
}

// kill kills the process (SIGKILL).
func (a *helper) kill() {
	go func() {
		for range a.told { // wait for the end of the reader
		}
	}()
	a.proc.Kill()
}

func (a *helper) tell(do, text string) {
	a.t.Helper()
	if err := json.NewEncoder(a.in).Encode(tell{do, text}); err != nil {
		a.t.Fatalf("%s: %v", a.kind, err)
	}
}

func (a *helper) await(what string) told {
	a.t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		select {
		case n, ok := <-a.told:
			switch {
			case !ok:
				a.t.Fatalf("%s ended before %q", a.kind, what)
			case n.Error != "":
				a.t.Fatalf("%s: %s", a.kind, n.Error)
			case n.What == what:
				return n
			}
		case <-limit:
			a.t.Fatalf("%s: no %q in two minutes", a.kind, what)
		}
	}
}
