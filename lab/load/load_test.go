package load_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/load"
	"github.com/tenurehq/tenure/lab/verdict"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// standIn imitates nodes that share one sequence. hold, if set, delays an answer.
type standIn struct {
	nodes []*httptest.Server

	mu    sync.Mutex
	leads int
	token fence.Token
	seq   uint64
	calls int64
	hold  func()
}

func newStandIn(t *testing.T, n int) *standIn {
	s := &standIn{token: 1}
	for i := range n {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(i, w, r) }))
		t.Cleanup(srv.Close)
		s.nodes = append(s.nodes, srv)
	}
	return s
}

func (s *standIn) serve(i int, w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil && r.Method == http.MethodPost {
		hold()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := api.Status{NodeID: fmt.Sprint("node-", i), Role: api.Follower, FenceToken: s.token}
	switch {
	case r.Method == http.MethodGet:
		if i == s.leads {
			st.Role = api.Leader
		}
		httpapi.WriteJSON(w, 200, st)
	case s.leads < 0:
		httpapi.WriteProblem(w, api.NoLeader("g", "", s.token, time.Second))
	case i != s.leads:
		at := s.nodes[s.leads].URL
		w.Header().Set("Location", at+r.URL.RequestURI())
		httpapi.WriteProblem(w, api.NotLeader("n", "g", fmt.Sprint("node-", s.leads), at, s.token))
	default:
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		n = max(n, 1)
		s.calls++
		first := s.seq + 1
		s.seq += uint64(n)
		httpapi.WriteJSON(w, 200, api.Next{Token: s.token, Seq: first, Last: s.seq})
	}
}

func (s *standIn) lead(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads = i
	s.token++
}

func (s *standIn) urls() (urls []string) {
	for _, n := range s.nodes {
		urls = append(urls, n.URL)
	}
	return urls
}

// A run ends after its count. Its report and its history have all calls.
func TestCount(t *testing.T) {
	s := newStandIn(t, 1)
	dir := t.TempDir()
	w, err := history.Create(dir, "calls")
	if err != nil {
		t.Fatal(err)
	}
	r, err := load.Run(t.Context(), load.Config{URLs: s.urls(), Connections: 8, Count: 500, N: 10, For: time.Minute, Calls: w, Timeout: 20 * time.Second})
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if r.Calls != 500 || r.IDs != 5000 || r.Errors() != 0 || r.Disordered != 0 || s.seq != 5000 {
		t.Errorf("%+v, and the sequence is at %d", r, s.seq)
	}
	if c := callers(t, dir); c.Calls != 500 || c.Numbers != 5000 {
		t.Errorf("%+v", c)
	}
}

// callers is what a history shows, if it passes the checks of a sequence.
func callers(t *testing.T, dir string) verdict.Callers {
	t.Helper()
	r, err := check.Dir(t.Context(), dir, check.Options{Checks: []string{"sequence", "linearizable"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Verdicts {
		if v.Check != "history" && v.Result != verdict.Pass { // the history has no run
			t.Error(v)
		}
	}
	return r.Callers
}

// The leader changes under load: every call has an outcome, and the history passes the checks
// of a sequence.
func TestFollowsTheLeader(t *testing.T) {
	s := newStandIn(t, 3)
	dir := t.TempDir()
	w, err := history.Create(dir, "calls")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			s.lead(-1)
			time.Sleep(10 * time.Millisecond)
			s.lead(i % 3)
			time.Sleep(80 * time.Millisecond)
		}
	})
	r, err := load.Run(t.Context(), load.Config{URLs: s.urls(), Rate: 500, Connections: 16, For: 2 * time.Second, Calls: w, Timeout: 20 * time.Second})
	cancel()
	churn.Wait()
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	c := callers(t, dir)
	if c.Calls != r.Calls || int64(c.Numbers) != r.IDs {
		t.Errorf("%+v for %+v", c, r)
	}
	if r.Calls != 1000 || r.Errors() != 0 || r.LeaderChanges < 3 || c.Tokens < 3 {
		t.Errorf("%+v: want 1000 calls without error over several leaders", r)
	}
}

// Latency counts from when a call was due: one stall of the server slows down all calls that
// were due meanwhile, not only the open ones.
func TestNoCoordinatedOmission(t *testing.T) {
	s := newStandIn(t, 1)
	const stall = 600 * time.Millisecond
	var once sync.Once
	var gate sync.RWMutex
	s.hold = func() {
		once.Do(func() { // the first call; the others queue behind it
			gate.Lock()
			time.Sleep(stall)
			gate.Unlock()
		})
		gate.RLock()
		defer gate.RUnlock()
	}
	r, err := load.Run(t.Context(), load.Config{URLs: s.urls(), Rate: 200, Connections: 2, For: 1500 * time.Millisecond, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	// Two of 300 calls were open; about 120 were due during the stall.
	if got := r.At(75); got < stall/10 {
		t.Errorf("p75 is %v: the stall of %v was left out\n%+v", got, stall, r)
	}
	if r.Calls != 300 {
		t.Errorf("%d calls, want 300", r.Calls)
	}
}

// A call that was sent and not answered has an unknown outcome and is not repeated. Its node is
// not called again before it is found to lead.
func TestUnknownIsNotRepeated(t *testing.T) {
	var mu sync.Mutex
	posts := 0
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = c.Close() }()
				in := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					body := `{"node_id":"n","role":"leader","fence_token":4}`
					if r.Method == http.MethodPost {
						mu.Lock()
						posts++
						odd := posts%2 == 1
						mu.Unlock()
						if odd {
							return // the request was read, and the connection is closed
						}
						body = fmt.Sprintf(`{"token":4,"seq":%d}`, posts)
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
				}
			})
		}
	})
	r, err := load.Run(t.Context(), load.Config{URLs: []string{"http://" + ln.Addr().String()}, Connections: 1, Count: 20, For: time.Minute, Timeout: 5 * time.Second})
	_ = ln.Close()
	serving.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if posts != 20 || r.Unknown != 10 || r.Calls != 10 || r.Again != 0 {
		t.Errorf("%d requests for %+v: want 20, 10 of them unknown", posts, r)
	}
}

// A run ends also if nobody answers, and counts that.
func TestEndsWithoutALeader(t *testing.T) {
	s := newStandIn(t, 2)
	var calls atomic.Int64
	s.hold = func() {
		if calls.Add(1) == 50 {
			s.lead(-1)
		}
	}
	began := time.Now()
	r, err := load.Run(t.Context(), load.Config{URLs: s.urls(), Connections: 4, For: time.Second, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	if r.GaveUp == 0 || r.Calls == 0 {
		t.Errorf("%+v: want calls, and some that gave up", r)
	}
}

// A wrong configuration and a fleet without a leader are errors.
func TestBadConfig(t *testing.T) {
	for _, cfg := range []load.Config{
		{}, {URLs: []string{"https://127.0.0.1:1"}}, {URLs: []string{"http://x"}}, {URLs: []string{"http://127.0.0.1:1"}, Rate: -1},
		{URLs: []string{"http://127.0.0.1:1"}, Connections: 1_000_000}, {URLs: []string{"http://127.0.0.1:1"}, For: 48 * time.Hour},
		{URLs: []string{"http://127.0.0.1:1"}, N: 1_000_000}, {URLs: []string{"http://127.0.0.1:1"}, Count: -1},
		{URLs: []string{"http://127.0.0.1:1"}, Patience: 100 * time.Millisecond},
	} {
		if _, err := load.Run(t.Context(), cfg); err == nil {
			t.Errorf("%+v was run", cfg)
		}
	}
}

// The bare handler is called like a node.
func TestBare(t *testing.T) {
	srv := httptest.NewServer(load.Bare())
	defer srv.Close()
	var lines []string
	r, err := load.Run(t.Context(), load.Config{URLs: []string{srv.URL}, Connections: 4, For: 1200 * time.Millisecond, Bare: true, Timeout: 20 * time.Second,
		Progress: func(p load.Progress) { lines = append(lines, p.String()) }})
	if err != nil || r.Calls == 0 || r.Errors() != 0 || r.Disordered != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if len(lines) == 0 {
		t.Error("no progress")
	}
}
