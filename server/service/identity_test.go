package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

const (
	instanceA = "instance-a-0123456789"
	instanceB = "instance-b-0123456789"
)

// process campaigns for the group billing as node-1, as one process would, and returns its
// token, or 0 if it is not elected soon.
type process func(t *testing.T) fence.Token

// paths are the ways by which a process can campaign.
func paths(in *instance, st store.Store) map[string]func() process {
	http := func(instance, query string) func() process {
		return func() process {
			return func(t *testing.T) fence.Token {
				r, err := in.try("POST", "/v1/groups/billing/campaign"+query, CampaignRequest{NodeID: "node-1", Instance: instance})
				if err != nil || r.status != 200 && r.status != 409 {
					t.Errorf("%v, %v", r, err)
				}
				if r.status == 409 {
					return 0 // the term in the answer is the leader's
				}
				return decode[Leading](t, r).Term
			}
		}
	}
	within := func() process {
		return func(t *testing.T) fence.Token {
			s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "node-1", Groups: []string{"*"}})
			b := want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: []string{"billing"}})
			for _, l := range b.Led {
				return l.Term
			}
			return 0
		}
	}
	library := func(st store.Store) func() process {
		return func() process {
			return func(t *testing.T) fence.Token {
				node, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: "node-1"}, Scope: store.Scope{"billing"}, Log: quiet()})
				if err != nil {
					t.Fatal(err)
				}
				e, err := node.Elector("billing")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					_ = node.Close(ctx)
				})
				ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
				defer cancel()
				term, err := e.Campaign(ctx)
				if errors.Is(err, context.DeadlineExceeded) {
					return 0
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					_ = term.Resign(ctx)
				})
				return term.Token()
			}
		}
	}
	n := 0
	return map[string]func() process{
		"http": http("", ""),
		"http with an instance": func() process {
			n++
			return http(fmt.Sprintf("instance-%020d", n), "")()
		},
		"http that waits": http("", "?wait=300ms"),
		"http session":    within,
		"remote":          library(client(in, nil)),
		"library":         library(st),
	}
}

// Two processes with one node id never get the same token, however each of them campaigns:
// the second one is refused or waits. That holds while the first one is silent, because the
// second cannot distinguish this from a pause or a partition.
func TestOneTokenOneProcess(t *testing.T) {
	names := []string{"http", "http with an instance", "http that waits", "http session", "remote", "library"}
	for _, one := range names {
		for _, two := range names {
			t.Run(one+" and "+two, func(t *testing.T) {
				t.Parallel()
				store := memStore(t)
				all := paths(serve(t, store, func(c *Config) { c.TTL = time.Minute }), store)
				first, second := all[one]()(t), all[two]()(t)
				if first != 1 || second != 0 {
					t.Errorf("the first process has token %d, the second %d", first, second)
				}
			})
		}
	}
}

// A retry is recognised by node id and instance, at every instance of the service, and has the same answer. Another
// process with that node id is refused and learns who leads and since when.
func TestRetryByInstance(t *testing.T) {
	st := memStore(t)
	in, other := serve(t, st), serve(t, st)
	const path = "/v1/groups/billing/campaign"
	call := CampaignRequest{NodeID: "a", TTLMS: 4000, Priority: 3, Metadata: map[string]string{"zone": "1"}, Instance: instanceA}
	first := want[Leading](in, 200, "POST", path, call)
	for _, svc := range []*instance{in, other} {
		for _, query := range []string{"", "?wait=5s"} {
			if again := want[Leading](svc, 200, "POST", path+query, call); again.Term != first.Term || again.Handle != first.Handle || again.TTLMS != 4000 {
				t.Errorf("the same call again: %+v, want %+v", again, first)
			}
		}
		for _, instance := range []string{"", instanceB} {
			call := call
			call.Instance = instance
			r := refused(svc, 409, "node_id_in_use", "POST", path, call)
			if !strings.Contains(string(r.body), `"leader_node_id":"a"`) || !strings.Contains(string(r.body), "since ") {
				t.Errorf("it is told %v", r)
			}
			refused(svc, 409, "node_id_in_use", "POST", path+"?wait=100ms", call)
		}
		for name, change := range map[string]func(*CampaignRequest){
			"ttl":      func(c *CampaignRequest) { c.TTLMS = 8000 },
			"metadata": func(c *CampaignRequest) { c.Metadata = nil },
			"priority": func(c *CampaignRequest) { c.Priority = 4 },
			"address":  func(c *CampaignRequest) { c.Address = "http://elsewhere" },
		} {
			call := call
			change(&call)
			if r := svc.ask("POST", path, call); r.status != 409 || r.code() != "instance_reused" {
				t.Errorf("another %s: %v", name, r)
			}
		}
	}
	want[Renewed](other, 200, "POST", "/v1/groups/billing/renew", RenewRequest{NodeID: "a", Term: first.Term, Handle: first.Handle})
	if line, err := st.Sessions(t.Context(), store.Scope{"*"}, store.Page{}); err != nil || len(line) != 1 {
		t.Errorf("the calls left %d sessions behind, %v", len(line), err)
	}
	resign(in, first)
	call.TTLMS = 8000
	if next := want[Leading](in, 200, "POST", path, call); next.Term != 2 || next.TTLMS != 8000 {
		t.Errorf("after it resigned: %+v", next)
	}
	for _, wrong := range []string{"short", strings.Repeat("x", 65)} {
		refused(in, 400, "bad_argument", "POST", path, CampaignRequest{NodeID: "a", Instance: wrong})
		refused(in, 400, "bad_argument", "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"g"}, Instance: wrong})
	}
}

// Opening a session again from the same instance returns the same session; another instance
// gets another one. The session of a campaign is not the one that the client opened.
func TestSessionByInstance(t *testing.T) {
	store := memStore(t)
	in, other := serve(t, store), serve(t, store)
	open := SessionRequest{NodeID: "a", Groups: []string{"billing"}, TTLMS: 4000, Instance: instanceA}
	first := want[Session](in, 201, "POST", "/v1/sessions", open)
	if again := want[Session](other, 201, "POST", "/v1/sessions", open); again.Handle != first.Handle {
		t.Errorf("opened again: %+v, not %+v", again, first)
	}
	for _, instance := range []string{"", instanceB} {
		open := open
		open.Instance = instance
		if s := want[Session](other, 201, "POST", "/v1/sessions", open); s.Handle == first.Handle {
			t.Errorf("instance %q got the session of another process", instance)
		}
	}
	changed := open
	changed.TTLMS = 8000
	refused(other, 409, "instance_reused", "POST", "/v1/sessions", changed)
	l := want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a", TTLMS: 4000, Instance: instanceA})
	if sessionOf(t, in, l.Handle) == sessionOf(t, in, first.Handle) {
		t.Error("the campaign leads in the session that the client opened")
	}
	resign(in, l)
	want[Beat](other, 200, "POST", "/v1/sessions/"+first.Handle+"/keepalive", nil)
}

// Processes that share a node id are counted, and logged once for each node, without the
// secrets that would let a reader of the log act for them. A restarted instance of the
// service reports them too.
func TestDuplicateNodeIDsAreReported(t *testing.T) {
	st := memStore(t)
	var mu sync.Mutex
	var log bytes.Buffer
	in := serve(t, st, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&lockedWriter{mu: &mu, to: &log}, nil)) })
	const warning = "two processes use one node id"
	warnings := func() int {
		mu.Lock()
		defer mu.Unlock()
		return strings.Count(log.String(), warning)
	}
	l := want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a", Instance: instanceA})
	lead(in, "shipping", "a")
	lead(in, "billing-2", "b")
	if n := warnings(); n != 0 || in.gauge("tenure_duplicate_node_ids_total") != "0" {
		t.Errorf("%d warnings about one process per group: %s", n, log.String())
	}
	refused(in, 409, "node_id_in_use", "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a", Instance: instanceB})
	refused(in, 409, "node_id_in_use", "POST", "/v1/groups/billing/campaign?wait=10ms", CampaignRequest{NodeID: "a"})
	if n, count := warnings(), in.gauge("tenure_duplicate_node_ids_total"); n != 1 || count == "0" {
		t.Errorf("%d warnings, %s counted", n, count)
	}
	s := client(in, nil)
	for range 2 {
		if _, err := s.Open(bound(t), candidate("b"), 5*time.Second, store.OpenOptions{Scope: store.Scope{"billing*"}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := warnings(); n != 2 {
		t.Errorf("%d warnings when a Go program uses the id of another", n)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, secret := range []string{instanceA, instanceB, l.Handle, `"` + string(sessionOf(t, in, l.Handle)) + `"`} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log reveals %q: %s", secret, log.String())
		}
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

// drops starts a waiting call. The function that it returns makes the client disconnect, and
// returns when the connection is closed.
func (in *instance) drops(path string, body any) (drop func()) {
	in.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		in.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "POST", in.url+path, bytes.NewReader(data))
	if err != nil {
		in.t.Fatal(err)
	}
	done := make(chan struct{})
	transport := &http.Transport{DisableKeepAlives: true}
	go func() {
		defer close(done)
		if resp, err := transport.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	drop = func() { cancel(); <-done }
	in.t.Cleanup(drop)
	return drop
}

// nodesOf lists the nodes that are candidates for a group.
func nodesOf(in *instance, group string) string {
	in.t.Helper()
	var all []string
	for _, c := range want[Candidates](in, 200, "GET", "/v1/groups/"+group+"/candidates", nil).Candidates {
		all = append(all, c.NodeID)
	}
	return strings.Join(all, " ")
}

// A client that resigned, whose wait ended, that lost, or whose connection is closed is no
// longer a candidate, and a transfer to it is refused. TENURE_ROUNDS sets the number of
// repetitions.
func TestWhoLeftIsNoCandidate(t *testing.T) {
	n, _ := rounds(t)
	for _, instance := range []string{"", instanceB} {
		t.Run("instance "+instance, func(t *testing.T) {
			store := memStore(t)
			in := serve(t, store, func(c *Config) { c.TTL = time.Hour; c.MaxTTL = time.Hour })
			b := CampaignRequest{NodeID: "b", Instance: instance}
			const path = "/v1/groups/billing/campaign"
			left := func(how string) {
				t.Helper()
				eventually(t, "b is no candidate after "+how, func() bool { return nodesOf(in, "billing") == "a" })
				refused(in, 409, "no_successor", "POST", "/v1/groups/billing/transfer?to=b", nil)
			}
			resign(in, want[Leading](in, 200, "POST", path, b))
			a := lead(in, "billing", "a")
			for range n {
				left("it resigned")
				refused(in, 409, "not_leader", "POST", path+"?wait=20ms", b)
				left("its wait ended")
				drop := in.drops(path+"?wait=30s", b)
				eventually(t, "b waits", func() bool { return nodesOf(in, "billing") == "a b" })
				drop()
				left("its connection was closed")
				s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "b", Groups: []string{"*"}, Instance: instance})
				want[Closed](in, 200, "DELETE", "/v1/sessions/"+s.Handle, nil)
				left("it closed its session")
				resign(in, a)
				resign(in, want[Leading](in, 200, "POST", path, b))
				a = lead(in, "billing", "a")
			}
		})
	}
}

// A service that stops leaves no candidates behind for the clients that it disconnects.
func TestDrainLeavesNoCandidates(t *testing.T) {
	store := memStore(t)
	in, other := serve(t, store), serve(t, store)
	lead(other, "draining", "a")
	came := make(chan reply, 1)
	go func() {
		r, _ := in.try("POST", "/v1/groups/draining/campaign?wait=30s", CampaignRequest{NodeID: "b", Instance: instanceB})
		came <- r
	}()
	eventually(t, "b waits", func() bool { return nodesOf(other, "draining") == "a b" && in.waiting("draining") == 1 })
	in.svc.Drain()
	if r := <-came; r.status != 503 || r.code() != "stopping" {
		t.Errorf("%v", r)
	}
	if all := nodesOf(other, "draining"); all != "a" {
		t.Errorf("candidates: %s", all)
	}
}

// closingStore calls a function just before the first Close.
type closingStore struct {
	store.Store
	once   sync.Once
	before func()
}

func (s *closingStore) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	s.once.Do(s.before)
	return s.Store.End(ctx, id, why, seen...)
}

// A call that ends does not close its session if a retry at another instance of the service
// leads with that session. A caller that still waits for the first call gets the same term;
// without one, the session lives on.
func TestAbandonLeavesTheRetryAlone(t *testing.T) {
	for _, gone := range []bool{false, true} {
		plain := memStore(t)
		store := &closingStore{Store: plain}
		in, other := serve(t, store), serve(t, plain)
		a := lead(other, "shipping", "a")
		b := CampaignRequest{NodeID: "b", Instance: instanceB}
		closing := make(chan Leading, 1)
		store.before = func() {
			// The first call has seen another leader, and is about to close its session.
			resign(other, a)
			closing <- want[Leading](other, 200, "POST", "/v1/groups/shipping/campaign", b)
		}
		var l Leading
		if gone {
			drop := in.drops("/v1/groups/shipping/campaign?wait=30s", b)
			eventually(t, "b waits", func() bool { return nodesOf(in, "shipping") == "a b" })
			drop()
			l = <-closing
			eventually(t, "the call is over", func() bool { return in.waiting("shipping") == 0 })
		} else {
			first := want[Leading](in, 200, "POST", "/v1/groups/shipping/campaign?wait=50ms", b)
			if l = <-closing; first.Term != l.Term || first.Handle != l.Handle {
				t.Errorf("%+v, and the retry %+v", first, l)
			}
		}
		want[Renewed](other, 200, "POST", "/v1/groups/shipping/renew", RenewRequest{NodeID: "b", Term: l.Term, Handle: l.Handle})
		if again := want[Leading](in, 200, "POST", "/v1/groups/shipping/campaign", b); l.Term != 2 || again.Handle != l.Handle {
			t.Errorf("%+v, and again %+v", l, again)
		}
	}
}

// wonStore calls a function just after the first Acquire.
type wonStore struct {
	store.Store
	once  sync.Once
	after func()
}

func (s *wonStore) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	granted, err := s.Store.Acquire(ctx, id, seen...)
	s.once.Do(s.after)
	return granted, err
}

// If a client without an instance has disconnected when its campaign wins, the service leaves
// no leader behind.
func TestWinOfDisconnectedClient(t *testing.T) {
	plain := memStore(t)
	ctx, leave := context.WithCancel(t.Context())
	in := serve(t, &wonStore{Store: plain, after: leave}, func(c *Config) { c.TTL = time.Hour; c.MaxTTL = time.Hour })
	r := httptest.NewRequestWithContext(ctx, "POST", in.url+"/v1/groups/billing/campaign", strings.NewReader(`{"node_id":"a"}`))
	r.RemoteAddr = "127.0.0.1:1"
	answer := httptest.NewRecorder()
	in.svc.ServeHTTP(answer, r)
	if v, err := plain.Read(t.Context(), "billing"); err != nil || v.Token != 1 || v.State != tenure.Vacant || answer.Code == http.StatusOK {
		t.Errorf("answered %d, and %+v, %v", answer.Code, v, err)
	}
}

// A session that the client opened outlives the terms in it, even if its scope is a single
// group.
func TestResignKeepsTheClientsSession(t *testing.T) {
	in := serve(t, memStore(t))
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"billing"}})
	for term := range 2 {
		l := want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a", Session: s.Handle})
		if int(l.Term) != term+1 || l.Handle != s.Handle {
			t.Errorf("%+v", l)
		}
		resign(in, l)
	}
	want[Beat](in, 200, "POST", "/v1/sessions/"+s.Handle+"/keepalive", nil)
}
