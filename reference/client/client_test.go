package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/client"
	"github.com/tenurehq/tenure/server/httpapi"
)

// standIn is three nodes that share one sequence and answer as nodes do.
type standIn struct {
	t     *testing.T
	nodes []*httptest.Server

	mu     sync.Mutex
	leads  int // -1: nobody
	token  fence.Token
	seq    uint64
	nexts  int                                                         // calls of /next that reached any node
	before func(node int, w http.ResponseWriter, r *http.Request) bool // returns true if it has answered
}

func newStandIn(t *testing.T) *standIn {
	s := &standIn{t: t, token: 7}
	for i := range 3 {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(i, w, r) }))
		t.Cleanup(srv.Close)
		s.nodes = append(s.nodes, srv)
	}
	return s
}

func (s *standIn) serve(i int, w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	if path == "/next" {
		s.nexts++
	}
	if s.before != nil && s.before(i, w, r) {
		return
	}
	switch {
	case path == "/status":
		st := api.Status{NodeID: fmt.Sprint("node-", i), Role: api.Follower, FenceToken: s.token}
		if s.leads == i {
			st.Role = api.Leader
		} else if s.leads >= 0 {
			st.Leader, st.LeaderAddress = fmt.Sprint("node-", s.leads), s.nodes[s.leads].URL
		}
		httpapi.WriteJSON(w, http.StatusOK, st)
	case s.leads < 0:
		httpapi.WriteProblem(w, api.NoLeader("g", "", s.token, time.Second))
	case s.leads != i:
		w.Header().Set("Location", s.nodes[s.leads].URL+r.URL.RequestURI())
		httpapi.WriteProblem(w, api.NotLeader("n", "g", fmt.Sprint("node-", s.leads), s.nodes[s.leads].URL, s.token))
	case path == "/next":
		s.seq++
		httpapi.WriteJSON(w, http.StatusOK, api.Next{Token: s.token, Seq: s.seq})
	default:
		httpapi.WriteProblem(w, &httpapi.Problem{Status: http.StatusNotFound, Code: "no_such_path"})
	}
}

func (s *standIn) lead(node int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads = node
	s.token++
}

// answer makes f answer first.
func (s *standIn) answer(f func(node int, w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

func (s *standIn) urls() []string {
	var urls []string
	for _, n := range s.nodes {
		urls = append(urls, n.URL)
	}
	return urls
}

func newClient(t *testing.T, urls ...string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URLs: urls, Timeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A client that knows one node finds the leader, follows it when it changes, and waits while
// there is none. Its numbers increase.
func TestFindsTheLeader(t *testing.T) {
	s := newStandIn(t)
	c := newClient(t, s.nodes[1].URL, s.nodes[2].URL)
	ctx := within(t, 30*time.Second)
	var last uint64
	for round, leader := range []int{0, 2, 1, 0} {
		if round == 2 {
			s.lead(-1)
			time.AfterFunc(150*time.Millisecond, func() { s.lead(leader) })
		} else {
			s.lead(leader)
		}
		for range 3 {
			r, err := c.Next(ctx, 1)
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if r.First <= last || r.Last != r.First {
				t.Errorf("round %d: %+v after %d", round, r, last)
			}
			last = r.Last
		}
	}
	l, err := c.Leader(ctx)
	if err != nil || l.ID != "node-0" || l.URL != s.nodes[0].URL {
		t.Errorf("leader %+v, %v", l, err)
	}
}

// The client caches the leader: one call is one request.
func TestRemembersTheLeader(t *testing.T) {
	s := newStandIn(t)
	s.lead(2)
	c := newClient(t, s.urls()...)
	for range 10 {
		if _, err := c.Next(within(t, 10*time.Second), 1); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nexts != 10 {
		t.Errorf("10 calls made %d requests", s.nexts)
	}
}

// A call is retried if the answer says that nothing was done. Otherwise it is ErrUnknown and
// was sent once.
func TestRepeatsOnlyWhatWasNotDone(t *testing.T) {
	problem := func(status int, code string, retry bool) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			httpapi.WriteProblem(w, &httpapi.Problem{Status: status, Code: code, Retryable: retry, Detail: code})
		}
	}
	for _, tt := range []struct {
		name   string
		answer func(http.ResponseWriter)
		again  bool
		want   error // if it is not retried
	}{
		{"no leader", problem(503, api.CodeNoLeader, true), true, nil},
		{"stepping down", problem(503, api.CodeStepping, true), true, nil},
		{"ledger away", problem(503, api.CodeUnavailable, true), true, nil},
		{"busy", problem(429, api.CodeBusy, true), true, nil},
		{"outcome unknown", problem(503, api.CodeOutcomeUnknown, true), false, client.ErrUnknown},
		{"a 503 that says nothing", func(w http.ResponseWriter) { w.WriteHeader(503) }, false, client.ErrUnknown},
		{"internal", problem(500, "internal", true), false, client.ErrUnknown},
		{"a gateway", func(w http.ResponseWriter) { w.WriteHeader(502) }, false, client.ErrUnknown},
		{"a redirect", func(w http.ResponseWriter) { w.Header().Set("Location", "/x"); w.WriteHeader(307) }, false, client.ErrUnknown},
		{"cut off", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, false, client.ErrUnknown},
		{"half an answer", func(w http.ResponseWriter) { w.Header().Set("Content-Length", "50"); _, _ = w.Write([]byte(`{"tok`)) }, false, client.ErrUnknown},
		{"no JSON", func(w http.ResponseWriter) { _, _ = w.Write([]byte(`hello`)) }, false, client.ErrUnknown},
		{"bad request", problem(400, api.CodeRequest, false), false, &client.ProblemError{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStandIn(t)
			s.lead(0)
			left := 1
			s.answer(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPost || left == 0 {
					return false
				}
				left--
				tt.answer(w)
				return true
			})
			c := newClient(t, s.urls()...)
			_, err := c.Next(within(t, 20*time.Second), 1)
			s.mu.Lock()
			defer s.mu.Unlock()
			var no *client.ProblemError
			switch {
			case tt.again:
				if err != nil || s.nexts != 2 {
					t.Errorf("%v after %d requests, want success after 2", err, s.nexts)
				}
			case s.nexts != 1:
				t.Errorf("%d requests, want 1", s.nexts)
			case errors.As(tt.want, &no) && !errors.As(err, &no), !errors.As(tt.want, &no) && !errors.Is(err, tt.want):
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

// If the leader accepts the call and never answers, the outcome is unknown. The call is not
// sent to another node.
func TestTimeoutIsUnknown(t *testing.T) {
	s := newStandIn(t)
	s.lead(0)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	s.answer(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			w.Header().Set("Location", "http://"+ln.Addr().String()+"/next")
			httpapi.WriteProblem(w, api.NotLeader("n", "g", "silent", "http://"+ln.Addr().String(), 8))
			return true
		}
		return false
	})
	c, err := client.New(client.Config{URLs: s.urls(), Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Next(within(t, 20*time.Second), 1); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("%v, want ErrUnknown", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nexts != 1 {
		t.Errorf("%d requests at the nodes, want 1", s.nexts)
	}
}

// If a node is down, the call was certainly not sent and goes to another node. If all are
// down, the error says that nothing was done.
func TestDeadNodes(t *testing.T) {
	s := newStandIn(t)
	s.lead(0)
	c := newClient(t, s.urls()...)
	if _, err := c.Next(within(t, 10*time.Second), 1); err != nil {
		t.Fatal(err)
	}
	c.Close() // an idle connection may take the request before its failure is noticed
	s.nodes[0].Close()
	s.lead(1)
	if _, err := c.Next(within(t, 10*time.Second), 1); err != nil {
		t.Fatalf("the leader died and another leads: %v", err)
	}
	c.Close()
	s.nodes[1].Close()
	s.nodes[2].Close()
	_, err := c.Next(within(t, 300*time.Millisecond), 1)
	if !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrUnknown) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

// A node that claims to lead with a lower token than one that was seen is ignored.
func TestOldLeaderIsNotBelieved(t *testing.T) {
	s := newStandIn(t)
	s.lead(1)
	c := newClient(t, s.urls()...)
	if _, err := c.Leader(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	s.answer(func(node int, w http.ResponseWriter, _ *http.Request) bool {
		if node == 0 {
			httpapi.WriteJSON(w, 200, api.Status{NodeID: "zombie", Role: api.Leader, FenceToken: 3})
			return true
		}
		if node == 1 {
			time.Sleep(20 * time.Millisecond) // slower than the zombie
		}
		return false
	})
	for range 5 {
		if l, err := c.Leader(within(t, 10*time.Second)); err != nil || l.ID != "node-1" {
			t.Errorf("%+v, %v: want node-1", l, err)
		}
	}
}

// Any running node serves records, versions are sent as ETags, and a conflict differs from a
// failure.
func TestRecords(t *testing.T) {
	s := newStandIn(t)
	s.nodes[0].Close()
	version := uint64(0)
	s.answer(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			httpapi.WriteJSON(w, 200, api.Record{Key: "k", Version: version, Value: json.RawMessage(`1`)})
			return true
		}
		match := r.Header.Get("If-Match")
		if match != "" && match != fmt.Sprintf("%q", fmt.Sprint(version)) || r.Header.Get("If-None-Match") == "*" && version > 0 {
			httpapi.WriteProblem(w, &httpapi.Problem{Status: 412, Code: "version_conflict", More: map[string]any{"current_version": version}})
			return true
		}
		version++
		httpapi.WriteJSON(w, 200, api.Record{Key: "k", Version: version})
		return true
	})
	c := newClient(t, s.urls()...)
	ctx := within(t, 20*time.Second)
	zero := uint64(0)
	v, err := c.Put(ctx, "k", json.RawMessage(`1`), &zero)
	if err != nil || v != 1 {
		t.Fatalf("%d, %v", v, err)
	}
	if v, err = c.Put(ctx, "k", json.RawMessage(`2`), &v); err != nil || v != 2 {
		t.Fatalf("%d, %v", v, err)
	}
	_, err = c.Put(ctx, "k", json.RawMessage(`3`), &zero)
	var no *client.ProblemError
	if !errors.Is(err, client.ErrVersion) || !errors.As(err, &no) || no.CurrentVersion != 2 {
		t.Errorf("%v, want a version conflict at 2", err)
	}
	for range 3 {
		if r, err := c.Get(ctx, "k"); err != nil || r.Version != 2 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// Invalid input is refused before anything is sent.
func TestBadInput(t *testing.T) {
	for _, urls := range [][]string{nil, {"127.0.0.1:1"}, {"ftp://x"}, {"http://"}} {
		if _, err := client.New(client.Config{URLs: urls}); err == nil {
			t.Errorf("%q is taken", urls)
		}
	}
	s := newStandIn(t)
	c := newClient(t, s.urls()...)
	for _, n := range []int{-1, 0, api.MaxNext + 1} {
		var no *client.ProblemError
		if _, err := c.Next(t.Context(), n); !errors.As(err, &no) {
			t.Errorf("n=%d: %v", n, err)
		}
	}
}

// The Location of a 409 is enough to find the leader, with or without the version in its
// path.
func TestFollowsLocation(t *testing.T) {
	for _, path := range []string{"/next", "/v1/next"} {
		s := newStandIn(t)
		s.lead(0)
		s.answer(func(node int, w http.ResponseWriter, r *http.Request) bool {
			switch {
			case node != 1:
				return false
			case r.Method == http.MethodGet: // it says that it leads, until it is called
				httpapi.WriteJSON(w, 200, api.Status{NodeID: "node-1", Role: api.Leader, FenceToken: 1})
			default:
				w.Header().Set("Location", s.nodes[0].URL+path)
				httpapi.WriteProblem(w, &httpapi.Problem{Status: 409, Code: api.CodeNotLeader, Retryable: true})
			}
			return true
		})
		c := newClient(t, s.nodes[1].URL)
		if r, err := c.Next(within(t, 2*time.Second), 1); err != nil || r.First != 1 {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
}

// A node that does not answer in time who leads does not stop the retries: an unknown leader
// does not make the outcome of the call unknown.
func TestSlowStatus(t *testing.T) {
	s := newStandIn(t)
	s.lead(0)
	asked := 0
	s.answer(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			return false
		}
		if asked++; asked > 4 {
			return false
		}
		w.Header().Set("Content-Length", "50") // but the body is never sent
		return true
	})
	c := newClient(t, s.nodes[0].URL)
	if _, err := c.Next(within(t, 20*time.Second), 1); err != nil {
		t.Error(err)
	}
	s.answer(func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	if _, err := c.Status(within(t, 20*time.Second), s.nodes[0].URL); !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrUnknown) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	if _, err := c.Get(within(t, 200*time.Millisecond), "k"); !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrUnknown) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}
