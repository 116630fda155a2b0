package storeapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/storeapi"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
	"github.com/tenurehq/tenure/store/remote"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// A stream outlives the timeouts of the server, which apply to calls.
func TestStreamOutlivesTimeouts(t *testing.T) {
	engine := mem.New(mem.Options{})
	t.Cleanup(engine.Close)
	h, err := handler(trusting(engine))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const timeout = time.Second
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- httpapi.Serve(ctx, ln, h, httpapi.Limits{Read: timeout, Write: timeout, Grace: timeout}, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() { cancel(); <-done })
	s := connect(t, remote.Config{URLs: []string{"http://" + ln.Addr().String()}, Heartbeat: 500 * time.Millisecond})
	session, err := engine.Open(ctx, tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	for u, err := range s.Watch(ctx, store.Scope{"g"}) {
		if err != nil {
			t.Fatal(err)
		}
		if u.View.Group == "g" {
			return
		}
		if u.Kind != store.Synced {
			continue
		}
		time.AfterFunc(3*timeout, func() { _, _ = engine.Acquire(ctx, session.ID, store.Record{Group: "g"}) })
	}
}

// A service that stops ends its streams with an error line, and the caller's next watch goes
// to another instance.
func TestStopping(t *testing.T) {
	engine := mem.New(mem.Options{})
	t.Cleanup(engine.Close)
	stopping := make(chan struct{})
	cfg := trusting(engine)
	cfg.Stopping = stopping
	s := connect(t, remote.Config{URLs: []string{instance(t, cfg), instance(t, trusting(engine))}})
	var last error
	for u, err := range s.Watch(t.Context(), store.Scope{"g"}) {
		if err == nil && u.Kind == store.Synced {
			close(stopping)
		}
		last = err
	}
	if last == nil || !strings.Contains(last.Error(), "stopping") || store.Definite(last) {
		t.Errorf("it ended with %v", last)
	}
	for _, err := range s.Watch(t.Context(), store.Scope{"g"}) {
		if err != nil {
			t.Error(err)
		}
		break
	}
}

// A client does not use a service of another deployment, whichever is named first, and the
// other store is not changed.
func TestOtherDeployment(t *testing.T) {
	ours, theirs := mem.New(mem.Options{Deployment: "ours"}), mem.New(mem.Options{Deployment: "theirs"})
	t.Cleanup(ours.Close)
	t.Cleanup(theirs.Close)
	h, err := handler(trusting(ours))
	if err != nil {
		t.Fatal(err)
	}
	first := httptest.NewServer(h)
	other := instance(t, trusting(theirs))
	s := connect(t, remote.Config{URLs: []string{first.URL, other}})
	first.Close()
	if _, err := s.Meta(t.Context()); err == nil || !strings.Contains(err.Error(), "theirs") {
		t.Errorf("asked another deployment: %v", err)
	}
	if _, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}}); err == nil || !strings.Contains(err.Error(), "theirs") {
		t.Errorf("opened at another deployment: %v", err)
	}
	if n, err := theirs.Sessions(t.Context(), store.Scope{"*"}, store.Page{}); err != nil || len(n) != 0 {
		t.Errorf("it has %v, %v", n, err)
	}
}

// hangingStore does not answer reads, and reports their deadline.
type hangingStore struct {
	store.Store
	left chan time.Duration
}

func (s hangingStore) Read(ctx context.Context, _ string) (store.View, error) {
	deadline, _ := ctx.Deadline()
	s.left <- time.Until(deadline)
	<-ctx.Done()
	return store.View{}, ctx.Err()
}

// The engine gets no more time than the caller has.
func TestDeadlinePassedAlong(t *testing.T) {
	engine := mem.New(mem.Options{})
	t.Cleanup(engine.Close)
	slow := hangingStore{engine, make(chan time.Duration, 1)}
	s := connect(t, remote.Config{URLs: []string{instance(t, trusting(slow))}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.Read(ctx, "g"); err == nil || store.Definite(err) {
		t.Errorf("it answered %v", err)
	}
	if left := <-slow.left; left > time.Second {
		t.Errorf("the engine had %v", left)
	}
}

// post sends a body unchanged.
func post(h http.Handler, m wire.Method, body []byte) *httptest.ResponseRecorder {
	patience := 20 * time.Second
	if m == wire.Watch {
		patience = 20 * time.Millisecond // it does not end by itself
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1"+m.Path(), bytes.NewReader(body))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// No input causes a panic or a 5xx, and a refusal is problem+json with a code.
func FuzzBodies(f *testing.F) {
	engine := mem.New(mem.Options{})
	f.Cleanup(engine.Close)
	cfg := trusting(engine)
	h, err := handler(cfg)
	if err != nil {
		f.Fatal(err)
	}
	api, err := storeapi.New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	routes := api.Routes()
	for i := range routes {
		for _, body := range []string{
			``, `{}`, `[]`, `null`, `{"x":1}`, `{"session":"s1"}`, `{"session":"../x"}`, `{"group":"a/b"}`, `{"scope":["*"],"limit":-1}`, `{"to":99999999}`,
			`{"candidate":{"id":"a"},"ttl_ms":9223372036854775807,"scope":["g"]}`, `{"session":"s1","seen":[{"group":"g","version":1,"token":9}]}`,
			`{"session":"s1","held":{"group":"g"},"reason":"<script>"}`, `{"session":"s1","request":{"id":"r","verb":"step-down","group":"g","ttl_ms":1000}}`,
			`{"name":"group/g","version":18446744073709551615}`, `{"group":"g","after":"-1"}`, `{"scope":["g"],"heartbeat_ms":-5}`,
		} {
			f.Add(i, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, route int, body []byte) {
		m := routes[uint(route)%uint(len(routes))].Method
		w := post(h, m, body)
		if w.Code >= 500 {
			t.Errorf("%s %q: %d %s", m, body, w.Code, w.Body)
		}
		var p wire.Problem
		if w.Code != http.StatusOK && (json.Unmarshal(w.Body.Bytes(), &p) != nil || p.Code == "" || w.Header().Get("Content-Type") != wire.ContentTypeProblem) {
			t.Errorf("%s %q: %d %s", m, body, w.Code, w.Body)
		}
	})
}

// An instance that knows that a session has died keeps answering so. An id that no engine can
// have made is not looked up.
func TestImplausibleSessions(t *testing.T) {
	engine := mem.New(mem.Options{})
	t.Cleanup(engine.Close)
	s := connect(t, remote.Config{URLs: []string{instance(t, trusting(engine))}})
	for _, id := range []store.SessionID{"", "a/b", "never-was", store.SessionID(strings.Repeat("x", 200)), "s 1", "s\x00"} {
		if _, err := s.KeepAlive(t.Context(), id); !errors.Is(err, store.ErrSessionDead) {
			t.Errorf("keep-alive of %q: %v", id, err)
		}
		if err := s.End(t.Context(), id, ""); err != nil {
			t.Errorf("close of %q: %v", id, err)
		}
	}
}

// An HTTP/2 stream that is idle for longer than the write timeout stays open.
func TestIdleStreamOverHTTP2(t *testing.T) {
	engine := mem.New(mem.Options{})
	t.Cleanup(engine.Close)
	cfg := trusting(engine)
	cfg.WriteTimeout = 200 * time.Millisecond
	h, err := handler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+wire.Watch.Path(), strings.NewReader(`{"scope":["g"],"heartbeat_ms":1000}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := json.NewDecoder(resp.Body)
	beats := 0
	for beats < 3 { // the second comes a second after the first
		var line wire.Line
		if err := lines.Decode(&line); err != nil {
			t.Fatalf("HTTP/%d, after %d heartbeats: %v", resp.ProtoMajor, beats, err)
		}
		if line.Heartbeat {
			beats++
		}
	}
	if resp.ProtoMajor != 2 {
		t.Errorf("HTTP/%d", resp.ProtoMajor)
	}
}
