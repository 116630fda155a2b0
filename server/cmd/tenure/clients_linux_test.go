package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/server/service"
)

const clientTTL = 4 * time.Second

// leader is a client that leads a group and writes to a fenced folder over HTTP.
type clientLeader struct {
	*script
	t        *testing.T
	p        *serveProcess
	language string
	group    string
	dir      *filefence.Dir
	mu       sync.Mutex
	stamp    fence.Stamp // of the last write that was accepted
}

func startLeader(t *testing.T, p *serveProcess, language, group string, env ...string) *clientLeader {
	t.Helper()
	l := &clientLeader{t: t, p: p, language: language, group: group}
	var err error
	if l.dir, err = filefence.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.dir.Close() })
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stamp, err := httpfence.Parse(r.Header.Values)
		if err == nil {
			err = l.dir.WriteFile(r.Context(), stamp, "report", []byte("x"), 0o600)
		}
		if err != nil {
			httpfence.WriteError(w, err)
			return
		}
		l.mu.Lock()
		l.stamp = stamp
		l.mu.Unlock()
	}))
	t.Cleanup(sink.Close)
	env = append(env, "TENURE_STORE="+p.ready.URL, "TEST_SINK="+sink.URL, fmt.Sprint("TENURE_TTL_MS=", clientTTL.Milliseconds()))
	l.script = startScript(t, env, language, group, "first")
	l.says(`"works"`)
	return l
}

// succeed campaigns for the group as another node, seals, and checks that a write with the old
// token is refused.
func (l *clientLeader) succeed() {
	l.t.Helper()
	var won service.Leading
	l.p.until("POST", "/v1/groups/"+l.group+"/campaign?wait=25s", service.CampaignRequest{NodeID: "next", Instance: "the-next-leader-of-" + l.group}, &won)
	l.replacedBy(won)
}

func (l *clientLeader) replacedBy(won service.Leading) {
	l.t.Helper()
	next := fence.Stamp{Deployment: won.Deployment, Group: l.group, Token: won.Term}
	if err := l.dir.Seal(l.t.Context(), next); err != nil {
		l.t.Errorf("%s: %v", l.language, err)
	}
	l.mu.Lock()
	old := l.stamp
	l.mu.Unlock()
	var stale *fence.StaleError
	if err := l.dir.WriteFile(l.t.Context(), old, "report", nil, 0o600); !errors.As(err, &stale) || old.Token >= next.Token {
		l.t.Errorf("%s: a write with %v after %v: %v", l.language, old, next, err)
	}
}

// stopped checks that work was told to stop for this reason, and returns when it did.
func (l *clientLeader) stopped(reason string, code int) time.Duration {
	l.t.Helper()
	if got := l.exits(); got != code {
		l.t.Errorf("%s: exit code %d, want %d", l.language, got, code)
	}
	line, _ := l.last(`"stopped"`)
	var said struct {
		Reason string
		At     float64
	}
	if err := json.Unmarshal([]byte(line.text), &said); err != nil || said.Reason != reason {
		l.t.Errorf("%s: it says %q, want the reason %s", l.language, line.text, reason)
	}
	return time.Duration(said.At * float64(time.Millisecond))
}

// monotonic is the clock of the clients' "at".
func monotonic(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// clientFault is something that happens to leaders, one in each language.
type clientFault struct {
	name string
	// overrun: the client exits if work does not stop in time. Otherwise work always says when it
	// stopped, and makes one more write.
	overrun bool
	// engine: the service has its engine in another process.
	engine bool
	round  func(t *testing.T, p *serveProcess, e *enginetest.Engine, leaders []*clientLeader)
}

// inTime checks that work stopped within the TTL after the last renewal that can have been
// acknowledged. On a machine that runs other tests too, a process may be late.
func inTime(t *testing.T, l *clientLeader, cut, at time.Duration) {
	t.Helper()
	if took := at - cut; os.Getenv("TENURE_ROUNDS") != "" && took >= clientTTL {
		t.Errorf("%s: work stopped %v after the last renewal, and the TTL is %v", l.language, took, clientTTL)
	}
}

func clientFaults() []clientFault {
	return []clientFault{
		{name: "paused", round: func(t *testing.T, _ *serveProcess, _ *enginetest.Engine, leaders []*clientLeader) {
			for _, l := range leaders {
				if err := child.Pause(l.cmd.Process); err != nil {
					t.Fatal(err)
				}
			}
			for _, l := range leaders {
				within(t, l.language+" is paused", func() bool { return child.Paused(l.cmd.Process.Pid) })
				l.succeed()
				if err := child.Resume(l.cmd.Process); err != nil {
					t.Fatal(err)
				}
			}
			for _, l := range leaders {
				l.stopped("expired", 75)
				l.says(`"refused"`, `"status":412`)
			}
		}},
		{name: "paused, the process may end first", overrun: true, round: func(t *testing.T, _ *serveProcess, _ *enginetest.Engine, leaders []*clientLeader) {
			for _, l := range leaders {
				if err := child.Pause(l.cmd.Process); err != nil {
					t.Fatal(err)
				}
			}
			for _, l := range leaders {
				l.succeed()
				if err := child.Resume(l.cmd.Process); err != nil {
					t.Fatal(err)
				}
				if code := l.exits(); code != 75 { // whether or not work could return first
					t.Errorf("%s: exit code %d", l.language, code)
				}
			}
		}},
		{name: "service killed", round: func(t *testing.T, p *serveProcess, _ *enginetest.Engine, leaders []*clientLeader) {
			p.kill()
			killed := monotonic(t)
			for _, l := range leaders {
				inTime(t, l, killed, l.stopped("expired", 75))
			}
			p.launch(p.ready.Addr)
			for _, l := range leaders {
				l.succeed()
			}
		}},
		{name: "engine gone", engine: true, round: func(t *testing.T, _ *serveProcess, e *enginetest.Engine, leaders []*clientLeader) {
			e.Members[0].Kill()
			killed := monotonic(t)
			for _, l := range leaders {
				inTime(t, l, killed, l.stopped("expired", 75))
			}
			e.Members[0].Restart()
			for _, l := range leaders {
				l.succeed()
			}
		}},
		{name: "transfer", round: func(t *testing.T, p *serveProcess, _ *enginetest.Engine, leaders []*clientLeader) {
			for _, l := range leaders {
				var next sync.WaitGroup
				var won service.Leading
				next.Go(func() {
					p.until("POST", "/v1/groups/"+l.group+"/campaign?wait=25s", service.CampaignRequest{NodeID: "next", Instance: "the-next-leader-of-" + l.group}, &won)
					if at := monotonic(t); l.stopped("transfer", 0) > at {
						t.Errorf("%s: another leads, and work has not stopped", l.language)
					}
				})
				within(t, "the successor stands in line", func() bool {
					var c service.Candidates
					return p.call("GET", "/v1/groups/"+l.group+"/candidates", nil, &c) == 200 && len(c.Candidates) == 2
				})
				var out service.SteppedDown
				if status := p.call("POST", "/v1/groups/"+l.group+"/transfer?wait=25s&to=next", nil, &out); status != 200 || out.Outcome != "done" || out.LeaderNodeID != "next" {
					t.Errorf("%s: transfer: %d %+v", l.language, status, out)
				}
				next.Wait()
				l.says(`"stopped"`, `"request":{"verb":"transfer","to":"next"}`)
				l.replacedBy(won)
			}
		}},
	}
}

// Whatever happens to a leader, its service or its engine: its work is told to stop before its
// lease ends, or when it wakes up, and a fenced resource refuses its token as soon as another
// leads. TENURE_ROUNDS sets the number of rounds, and makes the time limit strict.
func TestClientsStop(t *testing.T) {
	for _, f := range clientFaults() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--data-dir", filepath.Join(t.TempDir(), "data")}
			var e *enginetest.Engine
			if f.engine {
				e = enginetest.Cluster(t, 1)
				args = []string{"--store", "etcd://" + e.Members[0].Addr()}
			}
			p := startServe(t, args...)
			n := rounds(t, 1)
			for i := range n {
				t.Run(fmt.Sprint(i), func(t *testing.T) {
					p.t = t
					var leaders []*clientLeader
					var env []string
					if !f.overrun {
						env = []string{"TEST_LATE=1"}
					}
					for _, language := range languages {
						leaders = append(leaders, startLeader(t, p, language, fmt.Sprintf("%s-%d", language, i), env...))
					}
					f.round(t, p, e, leaders)
				})
			}
			p.t = t
			t.Logf("%s: %d rounds in each language", f.name, n)
		})
	}
}

// Work of the Python client in a process of its own ends even if the process that leads is killed
// or paused, and if work ignores that it should stop.
func TestPythonProcess(t *testing.T) {
	p := startServe(t, "--data-dir", filepath.Join(t.TempDir(), "data"))
	for _, tt := range []struct {
		name   string
		env    string
		signal syscall.Signal
		code   int
	}{
		{"killed", "", syscall.SIGKILL, -1},
		{"killed, work is stuck", "TEST_STUCK=1", syscall.SIGKILL, -1},
		{"paused", "", syscall.SIGSTOP, 75},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := startLeader(t, p, "python", fmt.Sprint("g", len(tt.name)), "TEST_PROCESS=1", tt.env)
			if err := l.cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			// The sink refuses its work, or it has ended.
			l.succeed()
			_ = l.cmd.Process.Signal(syscall.SIGCONT)
			if code := l.exits(); code != tt.code { // returns when no process has its output open
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if line, ok := l.last(`"refused"`); ok && os.Getenv("TENURE_ROUNDS") != "" {
				t.Errorf("work went on until another led: %s", line.text)
			}
		})
	}
}
