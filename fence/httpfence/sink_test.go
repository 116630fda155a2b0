package httpfence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/httpfence"
)

// shelf is a sink in a server: a file with the mark and the effects, replaced as a whole
// under one lock.
type shelf struct {
	path string
	back http.Client // to the clients, see between

	mu   sync.Mutex
	kept kept
}

type kept struct {
	Mark    fence.Mark
	Answer  string
	Effects []string
}

func openShelf(path string) (*shelf, error) {
	s := &shelf{path: path, back: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	return s, errors.Join(err, json.Unmarshal(text, &s.kept))
}

func (s *shelf) store(next kept) error {
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(s.path+".new", text, 0o644), os.Rename(s.path+".new", s.path)); err != nil {
		return err
	}
	s.kept = next
	return nil
}

// move raises the mark, and makes the effect if there is one.
func (s *shelf) move(stamp fence.Stamp, rule func(fence.Mark, fence.Stamp) (fence.Mark, error), between func(), effect ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark, err := rule(s.kept.Mark, stamp)
	if err != nil {
		return err
	}
	between()
	return s.store(kept{Mark: mark, Answer: s.kept.Answer, Effects: append(slices.Clip(s.kept.Effects), effect...)})
}

func (s *shelf) strict(stamp fence.Stamp, digest string, between func(), effect string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark, verdict, err := s.kept.Mark.AdmitStrict(stamp, digest)
	if err != nil || verdict == fence.Retry {
		return s.kept.Answer, err
	}
	between()
	answer := "made " + effect
	return answer, s.store(kept{Mark: mark, Answer: answer, Effects: append(slices.Clip(s.kept.Effects), effect)})
}

func (s *shelf) Mark(context.Context) (fence.Mark, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.Mark, nil
}

func (s *shelf) effects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.kept.Effects)
}

// append writes without a stamp, as the twins' handlers do.
func (s *shelf) append(effect string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store(kept{Mark: s.kept.Mark, Answer: s.kept.Answer, Effects: append(slices.Clip(s.kept.Effects), effect)})
}

// betweenHeader carries an address of the client. The server calls it between check and
// effect, so that the suite can pause the write.
const (
	betweenHeader = "Test-Between"
	digestHeader  = "Test-Digest"
)

func (s *shelf) between(r *http.Request) {
	resp, err := s.back.Get(r.Header.Get(betweenHeader))
	if err != nil {
		return // the client is gone
	}
	_ = resp.Body.Close()
}

func nothing() {}

// service serves /write, which is correct, and the twins' paths, which are not.
func (s *shelf) service() http.Handler {
	early, plain := httpfence.Guard{Mark: s}, httpfence.Guard{}
	mux := http.NewServeMux()
	handle := func(guard httpfence.Guard, path string, do func(r *http.Request, stamp fence.Stamp, body string) (string, error)) {
		mux.Handle("POST "+path, guard.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stamp, ok := httpfence.FromContext(r.Context())
			body, err := io.ReadAll(r.Body)
			if !ok || err != nil {
				http.Error(w, "no stamp or no body", http.StatusTeapot)
				return
			}
			answer, err := do(r, stamp, string(body))
			if err != nil {
				httpfence.WriteError(w, err)
				return
			}
			_, _ = io.WriteString(w, answer)
		})))
	}
	handle(early, "/write", func(r *http.Request, stamp fence.Stamp, body string) (string, error) {
		return "", s.move(stamp, fence.Mark.Admit, func() { s.between(r) }, body)
	})
	handle(early, "/strict", func(r *http.Request, stamp fence.Stamp, body string) (string, error) {
		return s.strict(stamp, r.Header.Get(digestHeader), func() { s.between(r) }, body)
	})
	handle(early, "/seal", func(_ *http.Request, stamp fence.Stamp, _ string) (string, error) {
		return "", s.move(stamp, fence.Mark.Admit, nothing)
	})
	handle(plain, "/advance", func(_ *http.Request, stamp fence.Stamp, _ string) (string, error) {
		return "", s.move(stamp, fence.Mark.Advance, nothing)
	})
	// The middleware checks the stamp; the handler ignores it.
	handle(early, "/ignores", func(r *http.Request, _ fence.Stamp, body string) (string, error) {
		s.between(r)
		return "", s.append(body)
	})
	// The middleware raises the mark, but the write is a separate step.
	handle(early, "/apart", func(r *http.Request, stamp fence.Stamp, body string) (string, error) {
		if err := s.move(stamp, fence.Mark.Admit, nothing); err != nil {
			return "", err
		}
		s.between(r)
		return "", s.append(body)
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, r *http.Request) {
		m, _ := s.Mark(r.Context())
		_ = json.NewEncoder(w).Encode(kept{Mark: m, Effects: s.effects()})
	})
	return mux
}

// servers are the servers of a test, which keep their data over a restart.
type servers struct{ all []*restartable }

type restartable struct {
	path string
	*httptest.Server
}

func (s *servers) create(t testing.TB) string {
	r := &restartable{path: filepath.Join(t.TempDir(), "shelf")}
	r.start(t, "127.0.0.1:0")
	s.all = append(s.all, r)
	t.Cleanup(func() {
		s.all = slices.DeleteFunc(s.all, func(other *restartable) bool { return other == r })
		r.Close()
	})
	return r.URL
}

func (r *restartable) start(t testing.TB, addr string) {
	t.Helper()
	s, err := openShelf(r.path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: s.service()}}
	r.Start()
}

func (s *servers) restart(t testing.TB) {
	for _, r := range s.all {
		addr := r.Listener.Addr().String()
		r.Close()
		r.start(t, addr)
	}
}

// fixed is a term that never ends.
type fixed fence.Stamp

func (fixed) Check() error         { return nil }
func (f fixed) Stamp() fence.Stamp { return fence.Stamp(f) }

// client is the leader's side of the connection.
type client struct {
	url   string
	http  http.Client
	echo  *httptest.Server
	calls sync.Map // contexts that wait for an answer
	last  atomic.Int64
}

func dial(url string) *client {
	c := &client{url: url, http: http.Client{Transport: &httpfence.Transport{Base: &http.Transport{MaxIdleConnsPerHost: 100}}}}
	c.echo = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if ctx, ok := c.calls.Load(r.URL.Path); ok {
			fencetest.Between(ctx.(context.Context))
		}
	}))
	return c
}

func (c *client) close() error {
	c.http.CloseIdleConnections()
	c.http.Transport.(*httpfence.Transport).Base.(*http.Transport).CloseIdleConnections()
	c.echo.Close()
	return nil
}

func (c *client) post(ctx context.Context, path string, s fence.Stamp, body, digest string) (string, error) {
	id := "/" + strconv.FormatInt(c.last.Add(1), 10)
	c.calls.Store(id, ctx)
	defer c.calls.Delete(id)
	req, err := http.NewRequestWithContext(httpfence.WithTerm(ctx, fixed(s)), http.MethodPost, c.url+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set(betweenHeader, c.echo.URL+id)
	req.Header.Set(digestHeader, digest)
	return c.do(req)
}

func (c *client) do(req *http.Request) (string, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := httpfence.Refusal(resp); err != nil {
		return "", err
	}
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return string(text), err
}

func (c *client) state(ctx context.Context) (k kept, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/state", nil)
	if err != nil {
		return k, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return k, err
	}
	defer func() { _ = resp.Body.Close() }()
	err = json.NewDecoder(resp.Body).Decode(&k)
	return k, err
}

// sink is a client, a server and a correct handler.
func (s *servers) sink() fencetest.Sink { return s.writing("http", "/write") }

func (s *servers) ignores() fencetest.Sink { return s.writing("handler ignores the stamp", "/ignores") }

func (s *servers) apart() fencetest.Sink { return s.writing("check in the middleware", "/apart") }

func (s *servers) writing(name, path string) fencetest.Sink {
	return fencetest.Sink{
		Name:    name,
		Create:  s.create,
		Restart: s.restart,
		Open: func(where string) (fencetest.Resource, error) {
			c := dial(where)
			return fencetest.Resource{
				Write: func(ctx context.Context, s fence.Stamp, payload string) error {
					_, err := c.post(ctx, path, s, payload, "")
					return err
				},
				WriteStrict: func(ctx context.Context, s fence.Stamp, digest, payload string) (string, error) {
					return c.post(ctx, "/strict", s, payload, digest)
				},
				Seal: func(ctx context.Context, s fence.Stamp) error {
					_, err := c.post(ctx, "/seal", s, "", "")
					return err
				},
				Advance: func(ctx context.Context, s fence.Stamp) error {
					_, err := c.post(ctx, "/advance", s, "", "")
					return err
				},
				Mark: func(ctx context.Context) (fence.Mark, error) {
					k, err := c.state(ctx)
					return k.Mark, err
				},
				Effects: func(ctx context.Context) ([]string, error) {
					k, err := c.state(ctx)
					return k.Effects, err
				},
				Close: c.close,
			}, nil
		},
	}
}

func TestMain(m *testing.M) {
	s := new(servers)
	fencetest.Child(s.sink(), s.ignores(), s.apart())
	os.Exit(m.Run())
}

// Client, connection and handler together pass the tests of a sink.
func TestSink(t *testing.T) { fencetest.Run(t, new(servers).sink()) }

// A middleware alone is not a sink: neither if the handler ignores the stamp, nor if the
// middleware raises the mark before the handler writes.
func TestTwins(t *testing.T) {
	fencetest.Breaks(t, new(servers).ignores(), fencetest.StaleRefused, fencetest.NotOvertaken)
	fencetest.Breaks(t, new(servers).apart(), fencetest.NotOvertaken)
}
