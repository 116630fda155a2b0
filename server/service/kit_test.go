package service

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// patience bounds every wait of these tests. It is long enough for a busy machine.
const patience = 20 * time.Second

// instance is a service that listens.
type instance struct {
	t    testing.TB
	url  string
	svc  *Service
	stop func()
	http *http.Client
	doc  object // the OpenAPI document
}

func memStore(t testing.TB) *mem.Store {
	store := mem.New(mem.Options{Deployment: "here"})
	t.Cleanup(store.Close)
	return store
}

// backup copies the state of the engine. The function that it returns restores it.
func backup(store *mem.Store) (restore func()) {
	var kept *mem.Snapshot
	store.Driver.Do(func(_ clock.Instant, e *mem.Engine) { kept = e.Snapshot() })
	return func() { store.Driver.Do(func(now clock.Instant, e *mem.Engine) { e.Restore(now, kept) }) }
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serve starts an instance over a store. Every answer to a test is checked against the
// OpenAPI document.
func serve(t testing.TB, store store.Store, change ...func(*Config)) *instance {
	t.Helper()
	cfg := Config{Store: store, Log: quiet(), TTL: 5 * time.Second}
	for _, c := range change {
		c(&cfg)
	}
	svc, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- svc.Serve(ctx, ln, nil, Limits()) }()
	in := &instance{t: t, url: "http://" + ln.Addr().String(), svc: svc, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	in.doc = document(t, svc)
	stopped := false
	in.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-end; err != nil {
			t.Errorf("the server ended with %v", err)
		}
		svc.Close()
		in.http.CloseIdleConnections()
	}
	t.Cleanup(in.stop)
	return in
}

// reply is a complete answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) code() string {
	var p struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(r.body, &p)
	return p.Code
}

func (r reply) String() string { return fmt.Sprintf("%d %s", r.status, bytes.TrimSpace(r.body)) }

type header map[string]string

// ask makes a request with a JSON body (or raw text, if body is a string).
func (in *instance) ask(method, path string, body any, headers ...header) reply {
	in.t.Helper()
	r, err := in.try(method, path, body, headers...)
	if err != nil {
		in.t.Fatalf("%s %s: %v", method, path, err)
	}
	conforms(in.t, in.doc, method, path, r)
	checkWording(in.t, method+" "+path, r)
	return r
}

func (in *instance) try(method, path string, body any, headers ...header) (reply, error) {
	var text io.Reader = http.NoBody
	switch b := body.(type) {
	case nil:
	case string:
		text = strings.NewReader(b)
	default:
		data, err := json.Marshal(b)
		if err != nil {
			return reply{}, err
		}
		text = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, in.url+path, text)
	if err != nil {
		return reply{}, err
	}
	for _, h := range headers {
		for k, v := range h {
			req.Header.Set(k, v)
		}
	}
	resp, err := in.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, data}, err
}

// want makes a request, requires a status and decodes the answer.
func want[T any](in *instance, status int, method, path string, body any, headers ...header) T {
	in.t.Helper()
	r := in.ask(method, path, body, headers...)
	if r.status != status {
		in.t.Fatalf("%s %s: %v, want %d", method, path, r, status)
	}
	var v T
	if err := json.Unmarshal(r.body, &v); err != nil {
		in.t.Fatalf("%s %s: %v: %v", method, path, r, err)
	}
	return v
}

// refused makes a request and requires a problem.
func refused(in *instance, status int, code, method, path string, body any, headers ...header) reply {
	in.t.Helper()
	r := in.ask(method, path, body, headers...)
	if r.status != status || r.code() != code {
		in.t.Errorf("%s %s: %v, want %d %s", method, path, r, status, code)
	}
	return r
}

func lead(in *instance, group, node string) Leading {
	in.t.Helper()
	return want[Leading](in, 200, "POST", "/v1/groups/"+group+"/campaign", CampaignRequest{NodeID: node})
}

func resign(in *instance, l Leading) {
	in.t.Helper()
	want[Resigned](in, 200, "POST", "/v1/groups/"+l.Group+"/resign", ResignRequest{NodeID: l.LeaderNodeID, Term: l.Term, Handle: l.Handle})
}

// eventually polls until f returns true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("it did not happen: %s", what)
}

// sse is one Server-Sent Event.
type sse struct {
	kind, id string
	feed.Event
}

// listener reads a stream of events.
type listener struct {
	t      testing.TB
	events chan sse
	close  context.CancelFunc
}

func (in *instance) listen(path, lastID string, headers ...header) *listener {
	in.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "GET", in.url+path, http.NoBody)
	if err != nil {
		in.t.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	for _, h := range headers {
		for k, v := range h {
			req.Header.Set(k, v)
		}
	}
	resp, err := in.http.Do(req) //nolint:bodyclose // the goroutine below closes it, when the stream ends
	if err != nil {
		in.t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		in.t.Fatalf("%s: %d %s", path, resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	l := &listener{t: in.t, events: make(chan sse, 1024), close: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(l.events)
		defer func() { _ = resp.Body.Close() }()
		readEvents(resp.Body, l.events)
	}()
	in.t.Cleanup(func() { cancel(); <-done })
	return l
}

func readEvents(from io.Reader, to chan<- sse) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	var e sse
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			e.kind = value
		case "id":
			e.id = value
		case "data":
			_ = json.Unmarshal([]byte(value), &e.Event)
		case "":
			if lines.Text() == "" && e.kind != "" {
				to <- e
				e = sse{}
			}
		}
	}
}

// next returns the next event.
func (l *listener) next() sse {
	l.t.Helper()
	select {
	case e, ok := <-l.events:
		if !ok {
			l.t.Fatal("the stream ended")
		}
		return e
	case <-time.After(patience):
		l.t.Fatal("no event came")
	}
	return sse{}
}

// expect requires that the next event is this one.
func (l *listener) expect(group, state string, token uint64) sse {
	l.t.Helper()
	e := l.next()
	if e.kind != string(feed.Changed) || e.Group != group || e.State != state || uint64(e.Token) != token {
		l.t.Fatalf("heard %+v, want %s %s with token %d", e, group, state, token)
	}
	return e
}
