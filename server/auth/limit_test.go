package auth

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth/limit"
	"github.com/tenurehq/tenure/server/httpapi"
)

// A caller above its rate gets 429 and the right time to retry. Its allowance is its own, and
// renewals have a separate one.
func TestRate(t *testing.T) {
	r := newRig(t)
	g, tokens := r.withTokens(Config{Limits: limit.Config{Rate: 2, Burst: 4, RenewRate: 10, RenewBurst: 10}}, "node-1", "node-2")
	check := func(name string, renewal bool) error {
		_, err := g.check(ask(tokens[name]), Rule{Verb: Campaign, Renewal: renewal, Groups: func(*http.Request) []string { return []string{"billing-eu"} }})
		return err
	}
	for i := range 4 {
		if err := check("node-1", false); err != nil {
			t.Fatalf("request %d: %v", i+1, err)
		}
	}
	err := check("node-1", false)
	var p *httpapi.Problem
	if !errors.As(err, &p) || p.Status != 429 || p.RetryAfter != 500*time.Millisecond || !p.Retryable {
		t.Fatalf("beyond the burst: %#v", err)
	}
	if err := check("node-2", false); err != nil {
		t.Errorf("another caller: %v", err)
	}
	for i := range 10 {
		if err := check("node-1", true); err != nil {
			t.Errorf("renewal %d: %v", i+1, err)
		}
	}
	if err := check("node-1", true); status(err) != 429 {
		t.Errorf("beyond the burst of renewals: %v", err)
	}
	r.time.move(p.RetryAfter)
	if err := check("node-1", false); err != nil {
		t.Errorf("after Retry-After: %v", err)
	}
	if err := check("node-1", false); status(err) != 429 {
		t.Errorf("and one more: %v", err)
	}
	r.time.move(-time.Hour)
	if err := check("node-1", false); status(err) != 429 {
		t.Errorf("after the clock was set back: %v", err)
	}
}

// While all slots are taken and requests wait, a renewal is admitted at once. Others are told
// to retry, and succeed when there is a free slot.
func TestReservedSlots(t *testing.T) {
	r := newRig(t)
	g, tokens := r.withTokens(Config{Limits: limit.Config{InFlight: 4, Line: 2, Patience: time.Minute, Renewals: 2, StreamsEach: 3}}, "node-1")
	release := make(chan struct{})
	var once sync.Once
	free := func() { once.Do(func() { close(release) }) }
	t.Cleanup(free)
	mux := http.NewServeMux()
	group := func(*http.Request) []string { return []string{"billing-eu"} }
	handle := func(path string, rule Rule, h http.HandlerFunc) {
		guarded, err := g.Guard(rule, h)
		if err != nil {
			t.Fatal(err)
		}
		mux.HandleFunc(path, guarded)
	}
	held := func(http.ResponseWriter, *http.Request) { <-release }
	quick := func(http.ResponseWriter, *http.Request) {}
	handle("/slow", Rule{Verb: Campaign, Groups: group}, held)
	handle("/renew", Rule{Verb: Campaign, Groups: group, Renewal: true}, quick)
	handle("/watch", Rule{Verb: Observe, Groups: group, Waits: func(*http.Request) bool { return true }}, held)
	handle("/health", Rule{Verb: Open}, quick)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(free) // end before the server waits for them

	get := func(path string) (int, string) {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL+path, http.NoBody)
		req.Header.Set("Authorization", "Bearer "+tokens["node-1"])
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get("Retry-After") + string(body)
	}
	answers := make(chan int, 20)
	var asking sync.WaitGroup
	t.Cleanup(asking.Wait)
	t.Cleanup(free)
	start := func(path string) {
		asking.Go(func() {
			code, _ := get(path)
			answers <- code
		})
	}
	for range 4 + 2 {
		start("/slow")
	}
	eventually(t, "every place is taken and the line is full", func() bool { return g.Stats().InFlight == 4 && g.ordinary.Waiting() == 2 })
	if code, said := get("/slow"); code != 503 || said[0] < '1' || said[0] > '3' || said[1] != '{' || !strings.Contains(said, `"busy"`) {
		t.Errorf("one more: %d %s", code, said)
	}
	for range 5 {
		if code, said := get("/renew"); code != 200 {
			t.Errorf("a renewal: %d %s", code, said)
		}
	}
	if code, said := get("/health"); code != 200 {
		t.Errorf("health: %d %s", code, said)
	}
	for range 3 {
		start("/watch")
	}
	eventually(t, "streams open beside them", func() bool { return g.Stats().Streams == 3 })
	if code, said := get("/watch"); code != 429 || !strings.Contains(said, "too_many_streams") {
		t.Errorf("a stream too many: %d %s", code, said)
	}
	free()
	for range 9 {
		if code := <-answers; code != 200 {
			t.Errorf("one that had waited: %d", code)
		}
	}
	eventually(t, "all places are given back", func() bool {
		s := g.Stats()
		return s.InFlight+s.Streams+s.Renewals == 0
	})
	if code, _ := get("/watch"); code != 200 {
		t.Errorf("a stream when others have closed: %d", code)
	}
}

// A body that is too large is refused before anything else is done, also without a
// Content-Length.
func TestBodyLimit(t *testing.T) {
	g := newRig(t).gate(Config{Limits: limit.Config{BodyBytes: 100}})
	h, err := g.Guard(Rule{Verb: Campaign}, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, "", http.StatusRequestEntityTooLarge)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]int{100: 200, 101: 413} {
		for _, told := range []bool{true, false} {
			req := httptest.NewRequest("POST", "http://127.0.0.1/", strings.NewReader(strings.Repeat("x", n)))
			req.RemoteAddr = "127.0.0.1:1"
			if !told {
				req.ContentLength = -1
			}
			w := httptest.NewRecorder()
			if h(w, req); w.Code != want {
				t.Errorf("%d bytes (said: %v): %d", n, told, w.Code)
			}
		}
	}
}

// A route cannot be guarded without a verb. A route without groups needs the verb on all
// groups.
func TestRuleIsNeeded(t *testing.T) {
	r := newRig(t)
	g, tokens := r.withTokens(Config{}, "node-1", "rita")
	for _, verb := range []Verb{"", "everything", "Open"} {
		if _, err := g.Guard(Rule{Verb: verb}, func(http.ResponseWriter, *http.Request) {}); err == nil {
			t.Errorf("the verb %q was taken", verb)
		}
	}
	h, err := g.Guard(Rule{Verb: Observe}, func(http.ResponseWriter, *http.Request) {})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"node-1": 403, "rita": 200} {
		w := httptest.NewRecorder()
		if h(w, ask(tokens[name])); w.Code != want {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	several, _ := g.Guard(Rule{Verb: Observe, Groups: func(r *http.Request) []string { return r.URL.Query()["group"] }}, func(http.ResponseWriter, *http.Request) {})
	for query, want := range map[string]int{"": 400, "group=billing-a&group=billing-b": 200, "group=billing-a&group=orders": 403} {
		req := ask(tokens["node-1"])
		req.URL.RawQuery = query
		w := httptest.NewRecorder()
		if several(w, req); w.Code != want {
			t.Errorf("%q: %d", query, w.Code)
		}
	}
	w := httptest.NewRecorder()
	if h(w, ask("")); w.Code != 401 || w.Header().Get("WWW-Authenticate") == "" || w.Header().Get("Content-Type") != httpapi.ContentTypeProblem {
		t.Errorf("without credentials: %d %v", w.Code, w.Header())
	}
}

// A quota counts existing and requested items.
func TestRoom(t *testing.T) {
	g := newRig(t).gate(Config{Limits: limit.Config{GroupsEach: 10, Candidates: 2}})
	for _, tt := range []struct {
		q          Quota
		have, more int
		want       int
	}{{GroupsHeld, 9, 1, 200}, {GroupsHeld, 9, 2, 429}, {GroupsHeld, 10, 1, 429}, {GroupsHeld, 1 << 62, 1 << 62, 429}, {CandidateIn, 1, 1, 200}, {CandidateIn, 2, 1, 429}} {
		if err := g.Room(tt.q, tt.have, tt.more); status(err) != tt.want {
			t.Errorf("%v: %v", tt, err)
		}
	}
}

// Few campaigns are handled at once, and fewer of one identity. One that waits for a vacancy
// gives its slot back. While all slots are taken, further campaigns are refused with
// different retry times; renewals and other requests are handled.
func TestCampaignSlots(t *testing.T) {
	r := newRig(t)
	g, tokens := r.withTokens(Config{Limits: limit.Config{Campaigns: 3, CampaignsEach: 2, Line: 1, Patience: time.Minute}}, "node-1", "node-2", "node-3")
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	mux := http.NewServeMux()
	handle := func(path string, rule Rule, h http.HandlerFunc) {
		rule.Verb, rule.Groups = Campaign, func(*http.Request) []string { return []string{"billing-eu"} }
		guarded, err := g.Guard(rule, h)
		if err != nil {
			t.Fatal(err)
		}
		mux.HandleFunc(path, guarded)
	}
	held := func(http.ResponseWriter, *http.Request) { <-release }
	quick := func(http.ResponseWriter, *http.Request) {}
	handle("/campaign", Rule{Campaign: true}, held)
	handle("/wait", Rule{Campaign: true, Waits: func(*http.Request) bool { return true }}, func(_ http.ResponseWriter, r *http.Request) {
		Yield(r.Context())
		Yield(r.Context()) // once is enough
		<-release
	})
	handle("/renew", Rule{Renewal: true}, quick)
	handle("/other", Rule{}, quick)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(free) // end before the server waits for them
	ask := func(node, path string) (int, string) {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL+path, http.NoBody)
		req.Header.Set("Authorization", "Bearer "+tokens[node])
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		said, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get("Retry-After") + string(said)
	}
	answers := make(chan int, 20)
	start := func(node, path string) {
		go func() {
			code, _ := ask(node, path)
			answers <- code
		}()
	}
	for range 5 {
		start("node-1", "/wait")
	}
	eventually(t, "five wait and use no place", func() bool { return g.Stats().Streams == 5 && g.Stats().Campaigns == 0 })
	start("node-1", "/campaign")
	start("node-1", "/campaign")
	eventually(t, "node-1 has its part of the places", func() bool { return g.Stats().Campaigns == 2 })
	if code, said := ask("node-1", "/campaign"); code != 429 || said[0] < '1' || said[0] > '3' {
		t.Errorf("one more of node-1: %d %s", code, said)
	}
	start("node-2", "/campaign")
	start("node-2", "/campaign")
	eventually(t, "all places are taken and one waits for a place", func() bool { return g.Stats().Campaigns == 3 && g.campaigns.Waiting() == 1 })
	if code, said := ask("node-3", "/campaign"); code != 503 || !strings.Contains(said, `"busy"`) {
		t.Errorf("one more: %d %s", code, said)
	}
	for _, path := range []string{"/renew", "/other"} {
		if code, said := ask("node-2", path); code != 200 {
			t.Errorf("%s: %d %s", path, code, said)
		}
	}
	free()
	for range 9 {
		if code := <-answers; code != 200 {
			t.Errorf("one that was let in: %d", code)
		}
	}
	eventually(t, "all places are given back", func() bool {
		s := g.Stats()
		return s.InFlight+s.Streams+s.Renewals+s.Campaigns == 0
	})
}
