package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/server/service"
)

// link forwards connections to a server until it is cut.
type link struct {
	net.Listener
	to string

	mu    sync.Mutex
	off   bool
	conns []net.Conn
	work  sync.WaitGroup
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{Listener: ln, to: to}
	l.work.Go(l.serve)
	t.Cleanup(func() { l.cut(); l.work.Wait() })
	return l
}

func (l *link) serve() {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", l.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, in, out)
		off := l.off
		l.mu.Unlock()
		if off {
			_, _ = in.Close(), out.Close()
			return
		}
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			l.work.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_, _ = in.Close(), out.Close()
			})
		}
	}
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = true
	_ = l.Close()
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// candidateProcess is a process that campaigns as node-1 repeatedly.
type candidateProcess struct {
	pid    int
	tokens func() []string // the tokens that its work had
	link   *link
}

var worksWith = regexp.MustCompile(`works"?,? ?(?:"term": ?)?(\d+)`)

func tokensIn(text string) []string {
	var all []string
	for _, m := range worksWith.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(all, m[1]) {
			all = append(all, m[1])
		}
	}
	return all
}

// Two processes with one node id never work with the same token, while the first one runs, is
// paused or is cut off: over HTTP, with exec over the service, and with exec directly on the
// engine.
func TestTwoProcessesOneNodeID(t *testing.T) {
	engine := enginetest.Cluster(t, 1).Members[0].Addr()
	p := startServe(t, "--store", etcdURL(engine))
	wrap := func(store, to string) func(*testing.T, string) candidateProcess {
		return func(t *testing.T, group string) candidateProcess {
			l := newLink(t, to)
			w := execute(t, strings.Replace(store, "LINK", l.Addr().String(), 1), group, []string{"--id=node-1", "--restart=on-lost"},
				"sh", "-c", `echo "works $TENURE_FENCING_TOKEN" >> "$DIR/works"; exec sleep 600`)
			return candidateProcess{w.Process.Pid, func() []string {
				text, _ := os.ReadFile(filepath.Join(w.dir, "works"))
				return tokensIn(string(text))
			}, l}
		}
	}
	example := func(d dialect) func(*testing.T, string) candidateProcess {
		return func(t *testing.T, group string) candidateProcess {
			l := newLink(t, strings.TrimPrefix(p.ready.URL, "http://"))
			s := startScript(t, []string{"TENURE_STORE=http://" + l.Addr().String(), "TENURE_TTL_MS=3000"}, d.program, append([]string{group, "node-1"}, d.long...)...)
			return candidateProcess{s.cmd.Process.Pid, func() []string {
				s.mu.Lock()
				defer s.mu.Unlock()
				var all strings.Builder
				for _, l := range s.lines {
					all.WriteString(l.text + "\n")
				}
				return tokensIn(all.String())
			}, l}
		}
	}
	curl, python := dialects()[0], dialects()[1]
	start := map[string]func(*testing.T, string) candidateProcess{
		"exec":           wrap("http://LINK", strings.TrimPrefix(p.ready.URL, "http://")),
		"exec on engine": wrap("etcd://LINK", engine),
		"curl":           example(curl),
		"python":         example(python),
	}
	n := 0
	for _, pair := range [][2]string{{"exec", "exec"}, {"exec", "python"}, {"curl", "exec"}, {"exec on engine", "exec"}, {"exec on engine", "exec on engine"}, {"python", "curl"}} {
		for _, state := range []string{"running", "paused", "cut off"} {
			n++
			group := fmt.Sprint("group-", n)
			t.Run(pair[0]+" "+state+", "+pair[1], func(t *testing.T) {
				t.Parallel()
				first := start[pair[0]](t, group)
				within(t, "the first works", func() bool { return len(first.tokens()) == 1 })
				var problem struct{ Code, Handle string }
				status := askAs(t, p, "", http.MethodPost, "/v1/groups/"+group+"/campaign", nil, service.CampaignRequest{NodeID: "node-1"}, &problem)
				if status != http.StatusConflict || problem.Code != "node_id_in_use" || problem.Handle != "" {
					t.Errorf("a campaign beside it: %d %+v", status, problem)
				}
				second := start[pair[1]](t, group)
				within(t, "the second waits", func() bool {
					var c service.Candidates
					return askAs(t, p, "", http.MethodGet, "/v1/groups/"+group+"/candidates", nil, nil, &c) == http.StatusOK && len(c.Candidates) == 2
				})
				if got := second.tokens(); len(got) > 0 {
					t.Fatalf("the second works with token %v beside the first", got)
				}
				switch state {
				case "running":
					_ = syscall.Kill(first.pid, syscall.SIGTERM)
				case "paused":
					_ = syscall.Kill(-first.pid, syscall.SIGSTOP)
				case "cut off":
					first.link.cut()
				}
				within(t, "the second works", func() bool { return len(second.tokens()) > 0 })
				_ = syscall.Kill(-first.pid, syscall.SIGCONT)
				for _, token := range second.tokens() {
					if slices.Contains(first.tokens(), token) {
						t.Errorf("both work with token %s: %v and %v", token, first.tokens(), second.tokens())
					}
				}
			})
		}
	}
}
