package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/service"
)

// A new credential is shown once, with its hash for the file, and works. An invalid name is
// refused.
func TestServeToken(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"serve", "credential", "Node 1"}, environment(), strings.NewReader(""), &stdout, &stderr); code != cli.ExitUsage || stdout.Len() > 0 {
		t.Errorf("%d, %s", code, &stderr)
	}
	made := makeToken(t, "node-1", "--expires", "1h")
	if made.Entry.Name != "node-1" || len(made.Entry.SHA256) != 64 || strings.Contains(made.Credential, made.Entry.SHA256) || time.Until(made.Entry.Expires) < 30*time.Minute {
		t.Errorf("%+v", made.Entry)
	}
	if again := makeToken(t, "node-1"); again.Credential == made.Credential || !again.Entry.Expires.IsZero() {
		t.Errorf("%+v", again.Entry)
	}
}

func makeToken(t *testing.T, args ...string) newCredential {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), append([]string{"serve", "credential"}, args...), environment(), strings.NewReader(""), &stdout, &stderr); code != cli.ExitOK {
		t.Fatalf("%d, %s", code, &stderr)
	}
	var made newCredential
	if err := json.Unmarshal(stdout.Bytes(), &made); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stderr.String(), made.Credential) {
		t.Error("the token is on standard error as well, where logs are kept")
	}
	return made
}

// guardedServe starts a service with one credential for each name, and returns them.
func guardedServe(t *testing.T, policy string, names ...string) (*serveProcess, map[string]string) {
	t.Helper()
	dir := t.TempDir()
	var file struct {
		Tokens []credentialEntry `json:"credentials"`
	}
	tokens := make(map[string]string)
	for _, n := range names {
		made := makeToken(t, n)
		tokens[n] = made.Credential
		file.Tokens = append(file.Tokens, made.Entry)
	}
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"credentials.json": text, "policy.json": []byte(policy)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return startServe(t, "--data-dir", filepath.Join(dir, "data"), "--credentials", filepath.Join(dir, "credentials.json"), "--policy", filepath.Join(dir, "policy.json")), tokens
}

// said is a line of output and its time.
type said struct {
	at   time.Time
	text string
}

// script is one of the clients of docs/api.md, as a process.
type script struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex
	lines []said
}

// programs are the clients of docs/api.md, with what each needs.
var programs = map[string]struct{ path, needs string }{
	"lead.sh":    {"../../../examples/api/lead.sh", "curl"},
	"python":     {"../../../clients/python/tests/candidate.py", "python3"},
	"typescript": {"../../../clients/typescript/test/candidate.mjs", "node"},
}

// startScript runs a client in its own process group, so that its descendants end with the test.
func startScript(t *testing.T, env []string, program string, args ...string) *script {
	t.Helper()
	path, err := filepath.Abs(programs[program].path)
	if err != nil {
		t.Fatal(err)
	}
	needs := servertest.Command(t, programs[program].needs)
	s := &script{t: t, cmd: exec.Command(path, args...), done: make(chan struct{})}
	s.cmd.Env = slices.Concat(needs.Env, []string{"PATH=" + filepath.Dir(needs.Path) + string(filepath.ListSeparator) + os.Getenv("PATH")}, env)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdout, s.cmd.Stderr = in, in
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	go func() {
		defer close(s.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			s.mu.Lock()
			s.lines = append(s.lines, said{time.Now(), lines.Text()})
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		// Its command is in another process group, and ends with it on SIGTERM.
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-s.done:
		case <-time.After(15 * time.Second):
			t.Errorf("%s %v does not end", program, args)
		}
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		_ = s.cmd.Wait()
		_ = out.SetReadDeadline(time.Now())
		<-s.done
		_ = out.Close()
		if t.Failed() {
			t.Logf("%s %v said:\n%s", program, args, s.tail())
		}
	})
	return s
}

func (s *script) tail() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, l := range s.lines[max(0, len(s.lines)-20):] {
		_, _ = fmt.Fprintf(&b, "%s %s\n", l.at.Format("05.000"), l.text)
	}
	return b.String()
}

// last returns the last line that contains all parts.
func (s *script) last(parts ...string) (said, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range slices.Backward(s.lines) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(l.text, p) }) {
			return l, true
		}
	}
	return said{}, false
}

func (s *script) says(parts ...string) {
	s.t.Helper()
	within(s.t, fmt.Sprintf("%s says %q", filepath.Base(s.cmd.Path), parts), func() bool { _, ok := s.last(parts...); return ok })
}

// exits waits for its end.
func (s *script) exits() int {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		s.t.Fatalf("it does not end: %s", s.tail())
	}
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

// dialect is how to start one of the clients, and the form of its output.
type dialect struct {
	program, group string
	long, short    []string // work for ever, and for a moment
	works          string   // its output while it leads with a term
	asked          int      // exit code after a request to step down
}

func dialects() []dialect {
	return []dialect{
		{
			"lead.sh", "by-curl", []string{"sh", "-c", `while :; do echo "works $TENURE_FENCING_TOKEN"; sleep 0.05; done & wait`}, []string{"sh", "-c", `echo "works $TENURE_FENCING_TOKEN"`},
			"works %d", 128 + int(syscall.SIGTERM),
		},
		{"python", "by-python", nil, []string{"0.2"}, `"works","term":%d,`, 0},
		{"typescript", "by-typescript", nil, []string{"0.2"}, `"works","term":%d,`, 0},
	}
}

// The clients of docs/api.md lead, wait, renew, step down on request, stop in time when the
// service does not answer, resign, and watch.
func TestClientsOfTheDocs(t *testing.T) {
	all := dialects()
	p, tokens := guardedServe(t, `{"roles":{"node":[{"prefix":"by-","verbs":["campaign","observe"]}],"operator":[{"prefix":"","verbs":["step-down","observe"]}]},
		"names":{"node-*":["node"],"op":["operator"]}}`, "node-a", "node-b", "node-c", "op")
	start := func(d dialect, node string, work []string) *script {
		env := []string{"TENURE_STORE=" + p.ready.URL, "TENURE_STORE_CREDENTIAL=" + tokens[node], "TENURE_TTL_MS=3000"}
		return startScript(t, env, d.program, append([]string{d.group, node}, work...)...)
	}
	works := func(d dialect, term int) string { return fmt.Sprintf(d.works, term) }
	first, second, watcher := make([]*script, len(all)), make([]*script, len(all)), make([]*script, len(all))
	for i, d := range all {
		watcher[i] = startScript(t, []string{"TENURE_STORE=" + p.ready.URL, "TENURE_STORE_CREDENTIAL=" + tokens["op"]}, d.program, "watch", d.group)
		first[i] = start(d, "node-a", d.long)
	}
	for i, d := range all {
		first[i].says(works(d, 1))
		second[i] = start(d, "node-b", d.long)
	}
	for i, d := range all {
		within(t, "node-b stands in line", func() bool {
			var c service.Candidates
			return askAs(t, p, tokens["op"], "GET", "/v1/groups/"+d.group+"/candidates", nil, nil, &c) == 200 && len(c.Candidates) == 2
		})
		var out service.SteppedDown
		status := askAs(t, p, tokens["op"], "POST", "/v1/groups/"+d.group+"/step-down?wait=30s", http.Header{"If-Match": {`"1"`}}, service.StepDownRequest{Reason: "test"}, &out)
		if status != 200 || out.Outcome != "done" {
			t.Errorf("%s: step-down: %d %+v", d.program, status, out)
		}
		if code := first[i].exits(); code != d.asked {
			t.Errorf("%s: exit code %d after it was asked to give up, want %d", d.program, code, d.asked)
		}
		second[i].says(works(d, 2))
	}
	// Nobody answers any more: the leader stops before its TTL has passed since its last answered
	// renewal.
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	for i, d := range all {
		code := second[i].exits()
		last, _ := second[i].last(works(d, 2))
		if after := last.at.Sub(stopped); code != 75 || after > 3*time.Second || after < 500*time.Millisecond {
			t.Errorf("%s: without the service it worked for another %v and exited with %d, want less than the TTL of 3s, and 75", d.program, after, code)
		}
	}
	if err := p.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for i, d := range all {
		third := start(d, "node-c", d.short)
		if code := third.exits(); code != 0 {
			t.Errorf("%s: exit code %d", d.program, code)
		}
		third.says(works(d, 3))
		var h service.History
		if askAs(t, p, tokens["op"], "GET", "/v1/groups/"+d.group+"/history", nil, nil, &h); len(h.Terms) != 3 || h.Terms[0].Reason != "resigned" || h.Terms[2].Reason != "stepped-down" {
			t.Errorf("%s: %+v", d.program, h.Terms)
		}
		for _, state := range []string{"led", "vacant"} {
			within(t, d.program+" is told of term 3", func() bool {
				watcher[i].mu.Lock()
				defer watcher[i].mu.Unlock()
				for _, l := range watcher[i].lines {
					var e feed.Event
					if json.Unmarshal([]byte(l.text), &e) == nil && e.State == state && e.Token == 3 {
						return true
					}
				}
				return false
			})
		}
	}
}

// The clients of docs/api.md obey a transfer: the named node leads next, before one that has
// waited longer.
func TestClientsObeyTransfer(t *testing.T) {
	p := startServe(t, "--data-dir", filepath.Join(t.TempDir(), "data"))
	for _, d := range dialects() {
		t.Run(d.program, func(t *testing.T) {
			t.Parallel()
			candidates := 0
			start := func(node string) *script {
				s := startScript(t, []string{"TENURE_STORE=" + p.ready.URL, "TENURE_TTL_MS=3000"}, d.program, append([]string{d.group, node}, d.long...)...)
				candidates++
				within(t, node+" is a candidate", func() bool {
					var c service.Candidates
					return askAs(t, p, "", "GET", "/v1/groups/"+d.group+"/candidates", nil, nil, &c) == 200 && len(c.Candidates) == candidates
				})
				return s
			}
			first := start("node-a")
			start("node-b")
			third := start("node-c")
			first.says(fmt.Sprintf(d.works, 1))
			var out service.SteppedDown
			status := askAs(t, p, "", "POST", "/v1/groups/"+d.group+"/transfer?wait=30s&to=node-c", nil, nil, &out)
			if status != 200 || out.Outcome != "done" || out.LeaderNodeID != "node-c" {
				t.Errorf("transfer: %d %+v", status, out)
			}
			if code := first.exits(); code != d.asked {
				t.Errorf("exit code %d after it was asked to give up, want %d", code, d.asked)
			}
			third.says(fmt.Sprintf(d.works, 2))
		})
	}
}

// askAs makes a call with a credential.
func askAs(t *testing.T, p *serveProcess, token, method, path string, h http.Header, in, out any) int {
	t.Helper()
	body := io.Reader(http.NoBody)
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.ready.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range h {
		req.Header[k] = v
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}
