package remote_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// scriptedService answers every call with something that can be read, and does what
// a test wants instead where it wants that.
type scriptedService struct {
	*httptest.Server

	mu     sync.Mutex
	script http.HandlerFunc
	heard  []wire.Method
	last   http.Header
}

// welcome is what every scripted service stands for.
const welcome = `{"deployment":"d1","min_ttl_ms":10,"max_ttl_ms":3600000,"batch":10}`

func newScripted(t *testing.T) *scriptedService {
	s := &scriptedService{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// does replaces what is answered to everything but limits.
func (s *scriptedService) does(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script, s.heard = h, nil
}

// count returns how often a method was called since does.
func (s *scriptedService) count(m wire.Method) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.heard {
		if h == m {
			n++
		}
	}
	return n
}

func (s *scriptedService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := wire.Method(path.Base(r.URL.Path))
	s.mu.Lock()
	script := s.script
	s.heard = append(s.heard, m)
	s.last = r.Header.Clone()
	s.mu.Unlock()
	switch {
	case m == wire.Caps:
		answer(w, 200, wire.ContentType, welcome)
	case script != nil:
		script(w, r)
	default:
		fine(w, r)
	}
}

func fine(w http.ResponseWriter, r *http.Request) {
	switch wire.Method(path.Base(r.URL.Path)) {
	case wire.Read:
		answer(w, 200, wire.ContentType, `{"group":"g","state":"vacant"}`)
	case wire.Acquire, wire.Release:
		answer(w, 200, wire.ContentType, `{"records":[{"group":"g","version":1,"token":1}]}`)
	case wire.Watch:
		answer(w, 200, wire.ContentTypeStream, `{"view":{"group":"g","state":"vacant"}}`+"\n"+`{"complete":true}`+"\n")
	default:
		answer(w, 200, wire.ContentType, `{}`)
	}
}

func answer(w http.ResponseWriter, status int, contentType, body string) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

func refuse(p wire.Problem) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, _ := json.Marshal(p)
		answer(w, p.Status, wire.ContentTypeProblem, string(body))
	}
}

// hangUp takes the call and closes the connection without an answer.
func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// hang takes the call and never answers.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // or it would not be told that the caller left
	<-r.Context().Done()
}

func connect(t *testing.T, cfg remote.Config) *remote.Store {
	t.Helper()
	s, err := remote.Open(within(t, 10*time.Second), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// methods makes each call of a Store that is not a watch.
func methods(s store.Store) map[wire.Method]func(context.Context) error {
	second := func(_ any, err error) error { return err }
	return map[wire.Method]func(context.Context) error{
		wire.Open: func(ctx context.Context) error {
			return second(s.Open(ctx, tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}}))
		},
		wire.FindSession: func(ctx context.Context) error { return second(s.Session(ctx, "s1")) },
		wire.KeepAlive:   func(ctx context.Context) error { return second(s.KeepAlive(ctx, "s1")) },
		wire.Close:       func(ctx context.Context) error { return s.End(ctx, "s1", "") },
		wire.Acquire:     func(ctx context.Context) error { return second(s.Acquire(ctx, "s1", store.Record{Group: "g"})) },
		wire.Release:     func(ctx context.Context) error { return second(s.Release(ctx, "s1", "", "", store.Record{Group: "g"})) },
		wire.Ask:         func(ctx context.Context) error { return s.Ask(ctx, "s1", store.Request{ID: "r"}) },
		wire.Answer:      func(ctx context.Context) error { return s.Answer(ctx, "s1", "r", store.Answer{Outcome: store.Done}) },
		wire.Answered:    func(ctx context.Context) error { return second(s.Answered(ctx, "s1", "r")) },
		wire.Read:        func(ctx context.Context) error { return second(s.Read(ctx, "g")) },
		wire.Groups:      func(ctx context.Context) error { return second(s.Groups(ctx, store.Scope{"*"}, store.Page{})) },
		wire.Sessions:    func(ctx context.Context) error { return second(s.Sessions(ctx, store.Scope{"*"}, store.Page{})) },
		wire.History:     func(ctx context.Context) error { return second(s.History(ctx, "g", store.Page{})) },
		wire.Meta:        func(ctx context.Context) error { return second(s.Meta(ctx)) },
		wire.RaiseEpoch: func(ctx context.Context) error {
			return second(s.RaiseEpoch(ctx, 1))
		},
		wire.Suspect:    func(ctx context.Context) error { return s.Suspect(ctx, "g", 1) },
		wire.Attributes: func(ctx context.Context) error { return second(s.Attributes(ctx, "group/g")) },
		wire.SetAttributes: func(ctx context.Context) error {
			return second(s.SetAttributes(ctx, store.Attributes{Name: "group/g"}))
		},
	}
}
