package service

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/server/auth"
)

// overviewReader reads a stream of all groups as the page does.
type overviewReader struct {
	t      *testing.T
	lines  *bufio.Scanner
	id     string
	engine string
	wholes int
	groups map[string]OverviewGroup
}

func (in *instance) overview(t *testing.T, lastID string, headers ...header) *overviewReader {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", in.url+"/v1/overview", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	for _, h := range headers {
		for k, v := range h {
			req.Header.Set(k, v)
		}
	}
	resp, err := in.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = resp.Body.Close() })
	r := &overviewReader{t: t, lines: bufio.NewScanner(resp.Body), groups: map[string]OverviewGroup{}}
	r.lines.Buffer(nil, 1<<20)
	return r
}

// until reads events until f holds.
func (r *overviewReader) until(what string, f func() bool) {
	r.t.Helper()
	for !f() {
		if !r.lines.Scan() {
			r.t.Fatalf("the stream ended before this: %s; groups %v", what, r.groups)
		}
		name, value, _ := strings.Cut(r.lines.Text(), ": ")
		switch name {
		case "id":
			r.id = value
		case "data":
			var o Overview
			if err := json.Unmarshal([]byte(value), &o); err != nil {
				r.t.Fatal(err)
			}
			if o.Whole {
				clear(r.groups)
				r.wholes++
			}
			if o.Engine != "" {
				r.engine = o.Engine
			}
			for _, g := range o.Groups {
				r.groups[g.Group] = g
			}
		}
	}
}

// The stream of all groups begins with all of them, sends each change, and resumes with the
// changes alone. At another instance it begins again. It says when the engine cannot be watched.
func TestOverview(t *testing.T) {
	st := &unwatchableStore{Store: memStore(t), cut: make(chan struct{})}
	in := serve(t, st)
	a := lead(in, "a", "one")
	lead(in, "b", "one")
	s := in.overview(t, "")
	s.until("both groups", func() bool { return s.groups["a"].State == "led" && s.groups["b"].Holder == "one" && s.id != "" })
	resign(in, a)
	s.until("a is vacant", func() bool {
		g := s.groups["a"]
		return g.State == "vacant" && g.Reason == "resigned" && g.SinceMS > 0 && g.Term == a.Term
	})
	last := s.id
	a2 := lead(in, "a", "two")
	again := in.overview(t, last)
	again.until("the change", func() bool { return again.groups["a"].Term == a2.Term })
	if len(again.groups) != 1 || again.wholes != 0 {
		t.Errorf("resumed with %v, want the change alone", again.groups)
	}
	other := serve(t, st).overview(t, last)
	other.until("all groups", func() bool { return len(other.groups) == 2 })
	st.set(true)
	s.until("the engine is lost", func() bool { return s.engine == "unreachable" })
	st.set(false)
	s.until("the engine is back", func() bool { return s.engine == "ok" })
}

// The stream, the leases and the refused writes show only groups that the caller may observe.
// whoami says what that is.
func TestOverviewIsFiltered(t *testing.T) {
	ledger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"items":[{"id":2,"group":"zz","token":1,"current_token":2,"holder":"a"},{"id":1,"group":"mine-1","token":1,"current_token":2,"holder":"<b>"}],"total":2,"kept":9}`))
	}))
	defer ledger.Close()
	a := &caller{name: "a", rules: []rule{{"", []auth.Verb{auth.Campaign, auth.Observe}}}}
	b := &caller{name: "b", rules: []rule{{"mine-", []auth.Verb{auth.Observe, auth.StepDown}}}}
	in, _ := gated(t, []*caller{a, b}, func(c *Config) { c.Ledger = ledger.URL })
	for _, g := range []string{"mine-1", "zz"} {
		want[Leading](in, 200, "POST", "/v1/groups/"+g+"/campaign", CampaignRequest{NodeID: "a", TTLMS: 5000}, a.auth())
	}
	for _, tt := range []struct {
		who    *caller
		groups []string
	}{{a, []string{"mine-1", "zz"}}, {b, []string{"mine-1"}}} {
		s := in.overview(t, "", tt.who.auth())
		s.until("a set of groups", func() bool { return len(s.groups) >= len(tt.groups) && s.id != "" })
		leases := want[Leases](in, 200, "GET", "/v1/leases?group=mine-1&group=zz", nil, tt.who.auth())
		var leased, refusedWrites []string
		for _, l := range leases.Leases {
			leased = append(leased, l.Group)
			if l.Term != 1 || l.RemainingMS == nil || *l.RemainingMS > 5000 || l.TTLMS != 5000 || l.Candidates != 1 {
				t.Errorf("%+v", l)
			}
		}
		for _, r := range want[Rejections](in, 200, "GET", "/v1/rejections?limit=10", nil, tt.who.auth()).Items {
			refusedWrites = append(refusedWrites, r.Group)
		}
		slices.Sort(refusedWrites)
		if len(s.groups) != len(tt.groups) || !slices.Equal(leased, tt.groups) || !slices.Equal(refusedWrites, tt.groups) {
			t.Errorf("%s sees %v, leases of %v, refused writes of %v; want %v", tt.who.name, s.groups, leased, refusedWrites, tt.groups)
		}
	}
	me := want[Whoami](in, 200, "GET", "/v1/whoami", nil, b.auth())
	if me.NodeID != "b" || !me.Ledger || len(me.Grants) != 1 || me.Grants[0].Prefix != "mine-" || !slices.Equal(me.Grants[0].Verbs, b.rules[0].Verbs) {
		t.Errorf("%+v", me)
	}
	refused(serve(t, memStore(t)), 404, "no_ledger", "GET", "/v1/rejections", nil)
}

// The page is served without credentials, but not to a page that has given its own name to
// the address of this machine.
func TestConsole(t *testing.T) {
	page := func(c *Config) {
		c.Console = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("page")) })
	}
	in := serve(t, memStore(t), page)
	gatedIn, _ := gated(t, []*caller{{name: "a"}}, page)
	for _, tt := range []struct {
		in     *instance
		path   string
		host   string
		status int
	}{{in, "/ui/", "", 200}, {in, "/ui/app.js", "", 200}, {in, "/v1/ui/", "", 200}, {in, "/ui/", "evil.example", 403}, {gatedIn, "/ui/", "", 200}, {gatedIn, "/ui/", "tenure.example", 200}, {serve(t, memStore(t)), "/ui/", "", 404}} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", tt.in.url+tt.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = tt.host
		resp, err := tt.in.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tt.status {
			t.Errorf("%s with host %q: %d, want %d", tt.path, tt.host, resp.StatusCode, tt.status)
		}
	}
}
