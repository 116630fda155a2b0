package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/embeddedetcd"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// updateEnv rewrites the golden parts of the scripts.
const updateEnv = "TENURE_UPDATE_SCRIPTS"

// Commands, output formats, errors and exit codes are as in the scripts. Those in both/ run
// directly on a real engine and through a real service, the others once.
func TestScripts(t *testing.T) {
	e, err := embeddedetcd.Start(t.Context(), embeddedetcd.Config{ClientURL: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, run := range []struct {
		name, dir string
		service   bool
	}{
		{"engine", "both", false},
		{"service", "both", true},
		{"straight", "straight", false},
		{"served", "served", true},
	} {
		t.Run(run.name, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Dir:                 filepath.Join("testdata", "script", run.dir),
				Setup:               func(env *testscript.Env) error { return newStage(t, env, e.Endpoints(), run.name, run.service) },
				Cmds:                map[string]func(*testscript.TestScript, bool, []string){"stand": doStand, "mute": doMute, "gone": doGone, "keys": doKeys, "scrub": doScrub, "code": doCode, "follow": doFollow, "told": doTold},
				UpdateScripts:       os.Getenv(updateEnv) != "",
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
			})
		})
	}
}

// stage is the environment of one script: a prefix of the engine, optionally a service, and
// the candidates that it starts.
type stage struct {
	store  *etcd.Store
	prefix string
	client *clientv3.Client
	ctx    context.Context

	mu      sync.Mutex
	running map[string]func()
	told    *child.Buffer
}

type stageKey struct{}

func newStage(t *testing.T, env *testscript.Env, endpoints []string, run string, service bool) error {
	prefix := "/" + run + "/" + filepath.Base(env.WorkDir)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	store, err := etcd.Open(ctx, etcd.Config{Endpoints: endpoints, Prefix: prefix})
	if err != nil {
		cancel()
		return err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		cancel()
		return err
	}
	s := &stage{store: store, prefix: prefix, client: client, ctx: ctx, running: make(map[string]func())}
	env.Values[stageKey{}] = s
	env.Defer(func() {
		for _, stop := range s.running {
			stop()
		}
		cancel()
		store.Close()
		_ = client.Close()
	})
	at := "etcd://" + strings.TrimPrefix(endpoints[0], "http://")
	env.Setenv("ENGINES", strings.Replace(at, "etcd:", "etcds:", 1))
	env.Setenv("PREFIX", prefix)
	env.Setenv("TENURE_STORE", at)
	env.Setenv("TENURE_STORE_PREFIX", prefix)
	if service {
		url, err := s.serve(env, at)
		if err != nil {
			return err
		}
		env.Setenv("TENURE_STORE", url)
		env.Setenv("TENURE_STORE_PREFIX", "")
	}
	return nil
}

// serve runs a service on the stage's prefix. If a script has a policy, the service requires
// credentials, and WATCHER has that of "watcher".
func (s *stage) serve(env *testscript.Env, at string) (string, error) {
	args := []string{"serve", "--listen", "127.0.0.1:0", "--store", at, "--store-prefix", s.prefix}
	if policy := filepath.Join(env.WorkDir, "policy.json"); exists(policy) {
		token, hash := bearer.NewCredential()
		tokens := filepath.Join(env.WorkDir, "credentials.json")
		if err := os.WriteFile(tokens, []byte(fmt.Sprintf(`{"credentials":[{"name":"watcher","sha256":%q}]}`, hash)), 0o600); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(env.WorkDir, "token"), []byte(token+"\n"), 0o600); err != nil {
			return "", err
		}
		env.Setenv("WATCHER", token)
		args = append(args, "--credentials", tokens, "--policy", policy)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	r, w := io.Pipe()
	var stderr child.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, args, environment(), strings.NewReader(""), w, &stderr)
		_ = w.Close()
	}()
	env.Defer(func() {
		cancel()
		<-ended
	})
	var ready serveReady
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, stderr.String())
	}
	return ready.URL, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func stageOf(ts *testscript.TestScript) *stage { return ts.Value(stageKey{}).(*stage) }

func (s *stage) start(ts *testscript.TestScript, name string, stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[name] != nil {
		ts.Fatalf("%s stands already", name)
	}
	s.running[name] = stop
}

// stand NODE GROUP [PRIORITY] starts a candidate that obeys requests: a node of the library.
func doStand(ts *testscript.TestScript, _ bool, args []string) {
	s := stageOf(ts)
	priority := 0
	if len(args) > 2 {
		priority, _ = strconv.Atoi(args[2])
	}
	node, err := lease.New(s.store, lease.Config{
		Candidate: tenure.Candidate{ID: args[0], Address: "10.0.0.1:80", Priority: priority}, Scope: store.Scope{args[1]},
		Timing: lease.Timing{TTL: 10 * time.Second, Beat: 300 * time.Millisecond}, Log: slog.New(slog.DiscardHandler),
	})
	ts.Check(err)
	elector, err := node.Elector(args[1])
	ts.Check(err)
	ctx, cancel := context.WithCancel(s.ctx)
	var leading sync.WaitGroup
	leading.Go(func() {
		_ = tenure.Lead(ctx, elector, func(ctx context.Context, _ *tenure.Term) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
	s.start(ts, args[0], func() {
		cancel()
		leading.Wait()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = node.Close(ctx)
	})
	s.until(ts, func(ctx context.Context) (bool, error) {
		line, err := s.store.Sessions(ctx, store.Scope{args[1]}, store.Page{})
		for _, l := range line {
			if l.Candidate.ID == args[0] {
				return true, err
			}
		}
		return false, err
	})
}

// mute NODE GROUP... makes a node lead that never answers requests.
func doMute(ts *testscript.TestScript, _ bool, args []string) {
	s := stageOf(ts)
	session, err := s.store.Open(s.ctx, tenure.Candidate{ID: args[0]}, time.Minute, store.OpenOptions{Scope: args[1:]})
	ts.Check(err)
	for _, g := range args[1:] {
		v, err := s.store.Read(s.ctx, g)
		ts.Check(err)
		_, err = s.store.Acquire(s.ctx, session.ID, v.Record)
		ts.Check(err)
	}
	s.start(ts, args[0], func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 10*time.Second)
		defer cancel()
		_ = s.store.End(ctx, session.ID, store.Closed)
	})
}

// gone NODE stops a candidate in order.
func doGone(ts *testscript.TestScript, _ bool, args []string) {
	s := stageOf(ts)
	s.mu.Lock()
	stop := s.running[args[0]]
	delete(s.running, args[0])
	s.mu.Unlock()
	stop()
}

// follow ARGS... runs a command beside the script, and told N FILE waits for N lines of its output.
func doFollow(ts *testscript.TestScript, _ bool, args []string) {
	s := stageOf(ts)
	s.told = &child.Buffer{}
	env := environment("TENURE_STORE="+ts.Getenv("TENURE_STORE"), "TENURE_STORE_PREFIX="+ts.Getenv("TENURE_STORE_PREFIX"))
	ctx, cancel := context.WithCancel(s.ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx, args, env, strings.NewReader(""), s.told, io.Discard) })
	s.start(ts, "follow", func() {
		cancel()
		running.Wait()
	})
}

func doTold(ts *testscript.TestScript, _ bool, args []string) {
	s := stageOf(ts)
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	s.until(ts, func(context.Context) (bool, error) {
		text := s.told.String()
		return strings.Count(text, "\n") >= n, fmt.Errorf("%q", text)
	})
	if len(args) > 1 {
		ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(s.told.String()), 0o600))
	}
}

func (s *stage) until(ts *testscript.TestScript, is func(context.Context) (bool, error)) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		ok, err := is(s.ctx)
		if ok {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("in vain: %v", err)
		}
	}
}

// keys put KEY FILE, keys delete KEY and keys get KEY access stored values directly, below
// the prefix.
func doKeys(ts *testscript.TestScript, _ bool, args []string) {
	s := stageOf(ts)
	key := s.prefix + "/" + args[1]
	switch args[0] {
	case "put":
		_, err := s.client.Put(s.ctx, key, strings.TrimSpace(ts.ReadFile(args[2])))
		ts.Check(err)
	case "edit": // KEY OLD NEW
		got, err := s.client.Get(s.ctx, key)
		ts.Check(err)
		if len(got.Kvs) != 1 || !strings.Contains(string(got.Kvs[0].Value), args[2]) {
			ts.Fatalf("%s holds no %q: %v", key, args[2], got.Kvs)
		}
		_, err = s.client.Put(s.ctx, key, strings.ReplaceAll(string(got.Kvs[0].Value), args[2], args[3]))
		ts.Check(err)
	case "delete":
		_, err := s.client.Delete(s.ctx, key)
		ts.Check(err)
	default:
		ts.Fatalf("keys put, edit or delete")
	}
}

// scrub FROM TO copies a text and replaces what differs from run to run.
func doScrub(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	for _, r := range []struct{ pattern, with string }{
		{`\b1[0-9]{12}\b`, "MILLIS"},
		{`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`, "TIME"},
		{`\b\d\d:\d\d:\d\d\.\d\d\d\b`, "CLOCK"},
		{`\b[0-9a-f]{15,16}\b`, "SESSION"},
		{`\bd[0-9a-f]{16}\b`, "DEPLOYMENT"},
		{`"?duration_ms"?: ?\d+`, "DURATION"},
		{`\b(\d+m)?\d+(\.\d+)?(µs|ms|s)\b`, "AGE"},
		{` *(\d+m)?\d+(\.\d+)?µs`, " AGE"},
		{`127\.0\.0\.1:\d+`, "LOOPBACK"},
		{` +\n`, "\n"},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.with)
	}
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		indent := len(l) - len(strings.TrimLeft(l, " "))
		if !strings.HasPrefix(strings.TrimSpace(l), "\"") { // the width of columns depends on their content
			lines[i] = l[:indent] + regexp.MustCompile(` {2,}`).ReplaceAllString(l[indent:], "  ")
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(strings.Join(lines, "\n")), 0o600))
}

// code N COMMAND... expects the exit code N.
func doCode(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := err.(interface{ ExitCode() int }); ok {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit code %d, not %s\nstdout: %s\nstderr: %s", got, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}
