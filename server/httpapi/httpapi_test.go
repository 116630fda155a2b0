package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A problem is one flat object. Further members do not replace the fixed ones, and
// Retry-After is rounded up.
func TestProblem(t *testing.T) {
	w := httptest.NewRecorder()
	WriteProblem(w, &Problem{Status: 429, Code: "busy", Detail: "later", Retryable: true, RetryAfter: 1200 * time.Millisecond, More: map[string]any{"queue": 7, "status": 200}})
	want := `{"code":"busy","detail":"later","queue":7,"retryable":true,"status":429,"title":"Too Many Requests","type":"about:blank"}` + "\n"
	if w.Code != 429 || w.Body.String() != want || w.Header().Get("Retry-After") != "2" || w.Header().Get("Content-Type") != ContentTypeProblem {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

// A body is one JSON value within the limit, with known fields. Otherwise the error says
// briefly what is wrong.
func TestReadJSON(t *testing.T) {
	for _, tt := range []struct {
		body       string
		emptyIsOK  bool
		wantStatus int
		wantCode   string
	}{
		{`{"a":1}`, false, 0, ""},
		{` {"a":1} `, false, 0, ""},
		{"", true, 0, ""},
		{"", false, 400, "bad_body"},
		{`{"b":1}`, false, 400, "bad_body"},
		{`{"a":1}x`, false, 400, "bad_body"},
		{`{"a":1}{"a":2}`, false, 400, "bad_body"},
		{`{"a":"` + strings.Repeat("x", 50) + `"}`, false, 400, "bad_body"},
		{`{"a":"` + strings.Repeat("x", 101) + `"}`, false, 413, "body_too_large"},
	} {
		var v struct {
			A int `json:"a"`
		}
		r := httptest.NewRequest("POST", "/", strings.NewReader(tt.body))
		err := ReadJSON(httptest.NewRecorder(), r, 100, tt.emptyIsOK, &v)
		var p *Problem
		if errors.As(err, &p) != (tt.wantStatus != 0) || p != nil && (p.Status != tt.wantStatus || p.Code != tt.wantCode || len(p.Detail) > 400) {
			t.Errorf("%q: %v", tt.body, err)
		}
	}
}

// A path is served under /v1 and without it. An unknown path is a problem too.
func TestMux(t *testing.T) {
	m := NewMux()
	m.Handle("GET", "/things/{name}", func(w http.ResponseWriter, r *http.Request) { WriteJSON(w, 200, r.PathValue("name")) })
	m.Handle("POST", "/things/{name}", func(w http.ResponseWriter, _ *http.Request) { WriteJSON(w, 201, "made") })
	for _, tt := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/things/a", 200, `"a"`},
		{"GET", "/v1/things/a%2Fb", 200, `"a/b"`},
		{"POST", "/v1/things/a", 201, `"made"`},
		{"PUT", "/v1/things/a", 405, "GET, POST"},
		{"GET", "/v2/things/a", 404, "no_such_path"},
		{"GET", "/" + strings.Repeat("x", 1000), 404, "…"},
	} {
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest(tt.method, tt.path, http.NoBody))
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.body) {
			t.Errorf("%s %.40s: %d %s", tt.method, tt.path, w.Code, w.Body)
		}
	}
}

type serving struct {
	addr string
	stop context.CancelFunc
	end  chan error
}

func serveHere(t *testing.T, h http.HandlerFunc, l Limits) serving {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s := serving{ln.Addr().String(), cancel, make(chan error, 1)}
	go func() { s.end <- Serve(ctx, ln, h, l, slog.New(slog.DiscardHandler)) }()
	return s
}

// When the server stops, a pending request is answered. One that takes too long is cut off,
// and the server returns an error.
func TestGrace(t *testing.T) {
	for _, tt := range []struct {
		name  string
		grace time.Duration
		ok    bool
	}{{"in time", time.Minute, true}, {"too late", 20 * time.Millisecond, false}} {
		t.Run(tt.name, func(t *testing.T) {
			began, finish := make(chan struct{}), make(chan struct{})
			s := serveHere(t, func(w http.ResponseWriter, _ *http.Request) {
				close(began)
				<-finish
				WriteJSON(w, 200, "done")
			}, Limits{Grace: tt.grace})
			answer := make(chan error, 1)
			go func() {
				resp, err := http.Get("http://" + s.addr)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				answer <- err
			}()
			<-began
			s.stop()
			if !tt.ok {
				if err := <-s.end; err == nil {
					t.Errorf("it ended with %v", err)
				}
			}
			close(finish)
			if err := <-answer; (err == nil) != tt.ok {
				t.Errorf("the request: %v", err)
			}
			if tt.ok {
				if err := <-s.end; err != nil {
					t.Errorf("it ended with %v", err)
				}
			}
		})
	}
}

// Connections above the limit wait until one ends, and headers have a limit.
func TestLimits(t *testing.T) {
	s := serveHere(t, func(w http.ResponseWriter, _ *http.Request) { WriteJSON(w, 200, "ok") }, Limits{Connections: 1, HeaderBytes: 1000})
	ask := func(conn net.Conn, more string, patience time.Duration) string {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n"+more+"\r\n"); err != nil {
			return err.Error()
		}
		begin := make([]byte, 12)
		if _, err := io.ReadFull(conn, begin); err != nil {
			return "nothing"
		}
		return string(begin)
	}
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	first := dial()
	if got := ask(first, "", 5*time.Second); got != "HTTP/1.1 200" {
		t.Fatalf("the first connection: %s", got)
	}
	second := dial()
	if got := ask(second, "", 100*time.Millisecond); got != "nothing" {
		t.Errorf("a second connection: %s", got)
	}
	_ = first.Close()
	_ = second.SetDeadline(time.Now().Add(5 * time.Second))
	begin := make([]byte, 12)
	if _, err := io.ReadFull(second, begin); err != nil || string(begin) != "HTTP/1.1 200" {
		t.Errorf("a second connection, when the first is closed: %q, %v", begin, err)
	}
	_ = second.Close()
	if got := ask(dial(), "X: "+strings.Repeat("x", 20_000)+"\r\n", 5*time.Second); got != "HTTP/1.1 431" {
		t.Errorf("a large header: %s", got)
	}
}

// Every answer is valid JSON.
func TestWriteJSON(t *testing.T) {
	w := httptest.NewRecorder()
	WriteJSON(w, 200, map[string]any{"f": func() {}})
	var p map[string]any
	if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&p); err != nil || w.Code != 500 || p["code"] != "internal" {
		t.Errorf("%d %s, %v", w.Code, w.Body, err)
	}
}
