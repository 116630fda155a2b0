package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// languages have a package in clients. Both run the same cases.
var languages = []string{"python", "typescript"}

// What is committed in clients/typescript/dist was compiled from the committed sources. This needs
// no npm.
func TestTypeScriptCompiled(t *testing.T) {
	dir := "../../../clients/typescript"
	list, err := os.ReadFile(filepath.Join(dir, "dist", "sources.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, pattern := range []string{"dist/*.js", "dist/*.ts", "package-lock.json", "src/*.ts", "tsconfig.json"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = fmt.Fprintf(&got, "%x  %s\n", sha256.Sum256(text), filepath.ToSlash(strings.TrimPrefix(name, filepath.Clean(dir)+string(filepath.Separator))))
		}
	}
	if want := string(list); got.String() != want {
		t.Errorf("clients/typescript/dist was made from other sources: run make typescript, and commit dist\n%s\nsources.txt has\n%s", &got, want)
	}
}

// clientCall is a call that a client has made.
type clientCall struct {
	op    string // campaign, renew, resign or watch
	at    time.Time
	query string
	body  struct {
		NodeID    string `json:"node_id"`
		Instance  string `json:"instance"`
		Term      int    `json:"term"`
		Handle    string `json:"handle"`
		Successor string `json:"successor"`
	}
}

// scripted is a service that gives the answers of a case, and then repeats the last of each kind.
type scripted struct {
	*httptest.Server
	mu    sync.Mutex
	calls []clientCall
}

func newScripted(t *testing.T, answers map[string][]http.HandlerFunc) *scripted {
	t.Helper()
	s := &scripted{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := clientCall{op: r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], at: time.Now(), query: r.URL.RawQuery}
		if text, err := io.ReadAll(r.Body); err != nil || len(text) > 0 && json.Unmarshal(text, &c.body) != nil {
			t.Errorf("%s: the body is %q, %v", c.op, text, err)
		}
		s.mu.Lock()
		n := len(s.of(c.op))
		s.calls = append(s.calls, c)
		s.mu.Unlock()
		all := answers[c.op]
		switch {
		case len(all) == 0 && c.op == "renew":
			renewed("")(w, r)
			return
		case len(all) == 0:
			t.Errorf("the client called %s", r.URL)
			return
		}
		all[min(n, len(all)-1)](w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// of returns the calls of one kind. The caller has the lock, or the client has ended.
func (s *scripted) of(op string) (calls []clientCall) {
	for _, c := range s.calls {
		if c.op == op {
			calls = append(calls, c)
		}
	}
	return calls
}

func answer(format string, args ...any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, format, args...) }
}

func elected(term int, ttl, held time.Duration) http.HandlerFunc {
	return answer(`{"group":"g","leader_node_id":"n","term":%d,"ttl_ms":%d,"held_ms":%d,"handle":"h%d","metadata":{},"deployment":"d","fenced":true}`, term, ttl.Milliseconds(), held.Milliseconds(), term)
}

// caseTTL is the TTL of most cases.
const caseTTL = 6 * time.Second

func renewed(more string) http.HandlerFunc {
	return answer(`{"group":"g","leader_node_id":"n","term":1,"ttl_ms":%d%s}`, caseTTL.Milliseconds(), more)
}

func refuse(status int, code string, retryable bool, more string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		answer(`{"status":%d,"code":%q,"retryable":%v,"detail":"a test"%s}`, status, code, retryable, more)(w, r)
	}
}

func after(d time.Duration, then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
			then(w, r)
		case <-r.Context().Done():
		}
	}
}

// cut closes the connection after half an answer.
func cut(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = io.WriteString(w, `{"group":`)
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// clientCase is what a client must do if the service answers like this.
type clientCase struct {
	name      string
	env, args []string // besides the group and the node
	campaign  []http.HandlerFunc
	renew     []http.HandlerFunc
	resign    []http.HandlerFunc
	watch     []http.HandlerFunc
	code      int
	says      []string // parts of its lines, in this order
	never     string   // part of no line
	calls     string   // the calls besides renewals, with the terms of resignations; "": any
	check     func(t *testing.T, s *scripted)
	most      time.Duration // how long the term lasts at any time, as it says; 0: any
}

func clientCases() []clientCase {
	const ttl = caseTTL
	type answers = []http.HandlerFunc
	lead, ok := elected(1, ttl, 0), answer(`{}`)
	ttlMS := func(ms int) []string { return []string{fmt.Sprint("TENURE_TTL_MS=", ms)} }
	state := func(cursor string, events ...string) http.HandlerFunc {
		return answer(`{"events":[%s],"cursor":%q}`, strings.Join(events, ","), cursor)
	}
	const vacant = `{"group":"g","state":"vacant","term":1,"leader_node_id":"n","reason":"resigned","snapshot":true}`
	const led = `{"group":"g","state":"led","term":2,"leader_node_id":"m"}`
	return []clientCase{
		{
			name:     "a campaign without an answer is repeated with the same instance",
			campaign: answers{cut, answer("not from the service"), refuse(502, "bad", true, ""), lead}, resign: answers{ok}, args: []string{"0"},
			says: []string{`"leads","term":1,"deployment":"d","fenced":true`, `"resigned"`}, calls: "campaign campaign campaign campaign resign:1",
			check: func(t *testing.T, s *scripted) {
				for _, c := range s.of("campaign") {
					if c.body.Instance != s.calls[0].body.Instance || len(c.body.Instance) < 32 || c.body.NodeID != "n" {
						t.Errorf("%+v", c.body)
					}
				}
			},
		},
		{
			name: "a campaign is repeated after retry_after_ms", args: []string{"0"},
			campaign: answers{refuse(409, "not_leader", true, `,"retry_after_ms":700`), lead}, resign: answers{ok},
			says: []string{`"leads","term":1`, `"resigned"`},
			check: func(t *testing.T, s *scripted) {
				if c := s.of("campaign"); c[1].at.Sub(c[0].at) < 700*time.Millisecond {
					t.Errorf("again after %v", c[1].at.Sub(c[0].at))
				}
			},
		},
		{
			name:     "a definite refusal ends the campaign",
			campaign: answers{refuse(403, "denied", false, "")}, code: 1, says: []string{`"error","code":"denied","retryable":false`}, calls: "campaign",
		},
		{
			name: "a campaign has a timeout", env: []string{"TEST_TIMEOUT_MS=300"},
			campaign: answers{refuse(409, "not_leader", true, `,"retry_after_ms":100`)}, code: 1, says: []string{`"error","code":"not_elected"`},
		},
		{
			name: "a lease that ended before the answer is given back", env: ttlMS(1000), args: []string{"0"},
			campaign: answers{after(1500*time.Millisecond, elected(1, time.Second, 0)), elected(2, ttl, 0)}, resign: answers{ok},
			says: []string{`"leads","term":2`, `"resigned"`}, never: `"leads","term":1`, calls: "campaign resign:1 campaign resign:2",
		},
		{
			name: "the time in line does not count", args: []string{"0"},
			campaign: answers{after(3*time.Second, elected(1, 3*time.Second, 3*time.Second))}, resign: answers{ok},
			says: []string{`"leads","term":1`, `"resigned"`}, calls: "campaign resign:1",
		},
		{
			name: "a lease counts from when the call was sent", args: []string{"8"},
			campaign: answers{after(500*time.Millisecond, lead)}, renew: answers{after(500*time.Millisecond, renewed(""))}, resign: answers{ok},
			says: []string{`"resigned"`},
			// Less drift, margin, grace, and the time that the answers took.
			most: ttl*98/100 - ttl/40 - ttl/10 - 500*time.Millisecond,
		},
		{
			name: "a lease is shorter than the TTL", env: ttlMS(600_000), args: []string{"0"},
			campaign: answers{elected(1, 600*time.Second, 0)}, resign: answers{ok},
			says: []string{`"resigned"`},
			most: (588 - 15 - 60) * time.Second, // less drift, margin and grace
		},
		{
			name: "a term that was resigned is not led again", env: []string{"TEST_TERMS=2"}, args: []string{"0"},
			campaign: answers{lead, lead, elected(2, ttl, 0)}, resign: answers{ok},
			says: []string{`"leads","term":1`, `"resigned"`, `"leads","term":2`, `"resigned"`}, calls: "campaign resign:1 campaign resign:1 campaign resign:2",
		},
		{
			name: "a resignation without an answer is repeated", args: []string{"0"},
			campaign: answers{lead}, resign: answers{cut, refuse(503, "no_quorum", true, ""), ok},
			says: []string{`"resigned"`}, calls: "campaign resign:1 resign:1 resign:1",
		},
		{
			name:     "work stops at once if the service says that the term is over",
			campaign: answers{lead}, renew: answers{refuse(409, "not_leader", false, "")}, code: 75,
			says: []string{`"stopped","term":1,"reason":"lost"`, `"lost","term":1,"reason":"lost"`}, calls: "campaign",
		},
		{
			name: "failed renewals do not end a term", args: []string{"6"},
			campaign: answers{lead}, resign: answers{ok},
			renew: answers{cut, refuse(503, "no_quorum", true, ""), refuse(403, "denied", false, ""), answer("<html>"), renewed("")},
			says:  []string{`"stopped","term":1,"reason":""`, `"resigned"`}, calls: "campaign resign:1",
		},
		{
			name: "a renewal without an answer ends the term in time", env: append(ttlMS(2000), "TEST_LATE=1"),
			campaign: answers{elected(1, 2*time.Second, 0)}, renew: answers{hang}, resign: answers{hang}, code: 75,
			says: []string{`"stopped","term":1,"reason":"expired"`, `"lost","term":1,"reason":"expired"`}, calls: "campaign resign:1",
		},
		{
			name: "the process ends if its work does not", env: append(ttlMS(2000), "TEST_STUCK=1"),
			campaign: answers{elected(1, 2*time.Second, 0)}, renew: answers{hang}, code: 75,
			says: []string{`is expired and work has not stopped`}, never: "stopped\"", calls: "campaign",
		},
		{
			name:     "a request ends work, then the term",
			campaign: answers{lead}, renew: answers{renewed(`,"requests":[{"id":"r","verb":"transfer","group":"g","term":1,"to":"m","reason":"why"}]`)}, resign: answers{ok},
			says: []string{`"stopped","term":1,"reason":"transfer","request":{"verb":"transfer","to":"m"}`, `"resigned"`}, calls: "campaign resign:1",
			check: func(t *testing.T, s *scripted) {
				if b := s.of("resign")[0].body; b.Handle != "h1" || b.NodeID != "n" || b.Successor != "" {
					t.Errorf("%+v", b)
				}
			},
		},
		{
			name: "a second instance is called", env: []string{"TENURE_STORE=http://127.0.0.1:1,%s"}, args: []string{"0"},
			campaign: answers{lead}, resign: answers{ok}, says: []string{`"resigned"`},
		},
		{
			name:  "a watch resumes and starts again",
			watch: answers{state("c1", vacant), cut, state("c2", led), refuse(410, "cursor_too_old", false, ""), state("c3", led, vacant), refuse(403, "denied", false, "")},
			code:  1, says: []string{`"snapshot","group":"g","state":"vacant","term":1`, `"changed","group":"g","state":"led","term":2,"leader_node_id":"m"`, `"reset"`, `"snapshot"`, "denied"},
			check: func(t *testing.T, s *scripted) {
				for i, cursor := range []string{"", "c1", "c1", "c2", "", "c3"} {
					if q := s.calls[i].query; !strings.Contains(q, "group=g") || cursor == "" && strings.Contains(q, "after=") || !strings.Contains(q+"&", cursor+"&") {
						t.Errorf("call %d has the query %s, want the cursor %q", i, q, cursor)
					}
				}
			},
		},
	}
}

// Each client answers every behaviour of the service in the same way.
func TestClientCases(t *testing.T) {
	for _, c := range clientCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var services []*scripted
			var clients []*script
			for _, language := range languages {
				s := newScripted(t, map[string][]http.HandlerFunc{"campaign": c.campaign, "renew": c.renew, "resign": c.resign, "watch": c.watch})
				env := []string{"TENURE_STORE=" + s.URL}
				for _, e := range c.env {
					env = append(env, strings.ReplaceAll(e, "%s", strings.TrimPrefix(s.URL, "http://")))
				}
				args := append([]string{"g", "n"}, c.args...)
				if c.watch != nil {
					args = []string{"watch", "g"}
				}
				services, clients = append(services, s), append(clients, startScript(t, env, language, args...))
			}
			for i, s := range services {
				clients[i].behaves(c, s)
			}
			if len(services[0].of("campaign")) > 0 && services[0].calls[0].body.Instance == services[1].calls[0].body.Instance {
				t.Error("two processes have one instance")
			}
		})
	}
}

// behaves checks a client after its end.
func (s *script) behaves(c clientCase, answered *scripted) {
	t := s.t
	t.Helper()
	name := filepath.Base(s.cmd.Path)
	if code := s.exits(); code != c.code {
		t.Errorf("%s: exit code %d, want %d", name, code, c.code)
	}
	s.saidInOrder(c.says)
	if l, ok := s.last(c.never); c.never != "" && ok {
		t.Errorf("%s says %s", name, l.text)
	}
	if c.most > 0 {
		s.remaining(c.most, c.renew != nil)
	}
	answered.mu.Lock()
	defer answered.mu.Unlock()
	var ops []string
	for _, call := range answered.calls {
		switch call.op {
		case "campaign":
			ops = append(ops, call.op)
		case "resign":
			ops = append(ops, fmt.Sprint(call.op, ":", call.body.Term))
		}
	}
	if got := strings.Join(ops, " "); c.calls != "" && got != c.calls {
		t.Errorf("%s calls %s, want %s", name, got, c.calls)
	}
	if c.check != nil && !t.Failed() {
		c.check(t, answered)
	}
}

// remaining checks that the term never lasts longer than this, and whether it was extended.
func (s *script) remaining(most time.Duration, renewed bool) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	before, extended := 0.0, 0
	for _, l := range s.lines {
		var said struct{ Remaining float64 }
		if json.Unmarshal([]byte(l.text), &said) != nil || said.Remaining == 0 {
			continue
		}
		if said.Remaining > float64(most.Milliseconds()) {
			s.t.Errorf("it says %s, and may work for %v at most", l.text, most)
		}
		if said.Remaining > before && before > 0 {
			extended++
		}
		before = said.Remaining
	}
	if before == 0 || (extended > 0) != renewed {
		s.t.Errorf("the term was extended %d times", extended)
	}
}

// saidInOrder checks that lines with these parts came in this order.
func (s *script) saidInOrder(parts []string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, l := range s.lines {
		if n < len(parts) && strings.Contains(l.text, parts[n]) {
			n++
		}
	}
	if n < len(parts) {
		s.t.Errorf("it does not say %s", parts[n])
	}
}

// Each client proves who it is with a client certificate.
func TestClientsUseCertificates(t *testing.T) {
	dir := t.TempDir()
	ca, cert, key := issue(t, dir)
	policy := filepath.Join(dir, "policy.json")
	if err := os.WriteFile(policy, []byte(`{"roles":{"node":[{"prefix":"","verbs":["campaign"]}]},"names":{"node-1":["node"]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startServe(t, "--data-dir", filepath.Join(dir, "data"), "--cert", cert, "--key", key, "--client-ca", ca, "--policy", policy)
	for _, language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			env := []string{"TENURE_STORE=" + p.ready.URL, "TENURE_STORE_CA=" + ca, "TENURE_STORE_CERT=" + cert, "TENURE_STORE_KEY=" + key}
			if code := startScript(t, env, language, language, "node-1", "0").exits(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			other := startScript(t, env, language, language, "node-2", "0")
			if code := other.exits(); code != 1 {
				t.Errorf("with another node id: exit code %d", code)
			}
			other.says(`"error","code":"not_your_node"`)
		})
	}
}

// A credential is not sent unencrypted, and a URL must not have one.
func TestClientsRefuseToLeak(t *testing.T) {
	for _, language := range languages {
		for _, env := range [][]string{
			{"TENURE_STORE=http://10.0.0.1:7400", "TENURE_STORE_CREDENTIAL=secret-of-the-test"},
			{"TENURE_STORE=https://user:secret-of-the-test@127.0.0.1:7400"},
		} {
			s := startScript(t, env, language, "g", "n")
			if code := s.exits(); code != 1 {
				t.Errorf("%s: exit code %d", language, code)
			}
			s.says("rl: ")
			if l, ok := s.last("secret-of"); ok {
				t.Errorf("%s: %s", language, l.text)
			}
		}
	}
}
