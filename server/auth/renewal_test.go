package auth

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth/limit"
)

// renewing serves one route for renewals.
func renewing(t *testing.T, g *Gate, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	guarded, err := g.Guard(Rule{Verb: Campaign, Groups: func(*http.Request) []string { return []string{"billing-eu"} }, Renewal: true}, h)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(guarded)
	t.Cleanup(s.Close)
	return s
}

func renew(t *testing.T, url, token, body string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	said, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(said)
}

// A node that sends the bodies of its renewals slowly, or not at all, takes no slot from
// others and is cut off soon. The handler gets complete bodies.
func TestSlowRenewalsTakeNoSlot(t *testing.T) {
	r := newRig(t)
	g, tokens := r.withTokens(Config{Limits: limit.Config{Renewals: 2, RenewalsEach: 10, Line: 1, Patience: 50 * time.Millisecond}}, "node-1", "node-2")
	s := renewing(t, g, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	const slow = 6
	var conns []net.Conn
	for range slow {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 10\r\n\r\n{", tokens["node-1"])
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	under := func() (n int) {
		g.known.With("node-1", r.time.Now(), func(c *limit.Caller) { n = c.Renewing })
		return n
	}
	eventually(t, "all are being read", func() bool { return under() == slow })
	if places := g.Stats().Renewals; places != 0 {
		t.Errorf("they have %d places", places)
	}
	if code, said := renew(t, s.URL, tokens["node-2"], "whole"); code != 200 || said != "whole" {
		t.Errorf("another's renewal: %d %s", code, said)
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		begin := make([]byte, 12)
		if _, err := io.ReadFull(conn, begin); err != nil || string(begin) != "HTTP/1.1 400" {
			t.Errorf("a slow one was told %q, %v", begin, err)
		}
	}
	eventually(t, "none is under way", func() bool { return under() == 0 })
	if code, _ := renew(t, s.URL, tokens["node-2"], strings.Repeat("x", renewalBody+1)); code != 413 {
		t.Errorf("a body that is no renewal's: %d", code)
	}
}

// One identity can use only part of the slots for renewals, so that others find some.
func TestRenewalsOfOneIdentity(t *testing.T) {
	r := newRig(t)
	g, tokens := r.withTokens(Config{Limits: limit.Config{Renewals: 4}}, "node-1", "node-2")
	release, asked := make(chan struct{}), sync.WaitGroup{}
	s := renewing(t, g, func(http.ResponseWriter, *http.Request) { <-release })
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free) // end before the server waits for them
	answers := make(chan int, 3)
	start := func(name string) {
		asked.Go(func() {
			code, _ := renew(t, s.URL, tokens[name], "x")
			answers <- code
		})
	}
	start("node-1")
	start("node-1")
	eventually(t, "they have their places", func() bool { return g.Stats().Renewals == 2 })
	if code, said := renew(t, s.URL, tokens["node-1"], "x"); code != 429 || !strings.Contains(said, "too_many_requests") {
		t.Errorf("one too many: %d %s", code, said)
	}
	start("node-2")
	eventually(t, "another has its place", func() bool { return g.Stats().Renewals == 3 })
	free()
	asked.Wait()
	for range 3 {
		if code := <-answers; code != 200 {
			t.Errorf("a renewal: %d", code)
		}
	}
}
