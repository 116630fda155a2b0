package grpcfence_test

import (
	"context"
	"encoding/json"
	"errors"
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

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/grpcfence"
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

// betweenKey carries an address of the client. The server calls it between check and effect,
// so that the suite can pause the write.
const (
	betweenKey = "test-between"
	digestKey  = "test-digest"
)

func said(ctx context.Context, key string) string {
	return strings.Join(metadata.ValueFromIncomingContext(ctx, key), "")
}

func (s *shelf) between(ctx context.Context) {
	address := said(ctx, betweenKey)
	if address == "" {
		return
	}
	resp, err := s.back.Get(address)
	if err != nil {
		return // the client is gone
	}
	_ = resp.Body.Close()
}

func nothing() {}

type text = wrapperspb.StringValue

const service = "/tenure.test.Shelf/"

// register registers Write, which is correct, and the twins' methods, which are not.
func (s *shelf) register(server *grpc.Server) {
	desc := grpc.ServiceDesc{ServiceName: strings.Trim(service, "/"), HandlerType: (*any)(nil)}
	method := func(name string, do func(ctx context.Context, stamp fence.Stamp, body string) (string, error)) {
		handler := func(ctx context.Context, req any) (any, error) {
			stamp, _ := grpcfence.FromContext(ctx)
			answer, err := do(ctx, stamp, req.(*text).Value)
			return &text{Value: answer}, err
		}
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			req := new(text)
			if err := decode(req); err != nil {
				return nil, err
			}
			return intercept(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: service + name}, handler)
		}})
	}
	method("Write", func(ctx context.Context, stamp fence.Stamp, body string) (string, error) {
		return "", s.move(stamp, fence.Mark.Admit, func() { s.between(ctx) }, body)
	})
	method("Strict", func(ctx context.Context, stamp fence.Stamp, body string) (string, error) {
		return s.strict(stamp, said(ctx, digestKey), func() { s.between(ctx) }, body)
	})
	method("Seal", func(_ context.Context, stamp fence.Stamp, _ string) (string, error) {
		return "", s.move(stamp, fence.Mark.Admit, nothing)
	})
	method("Advance", func(_ context.Context, stamp fence.Stamp, _ string) (string, error) {
		return "", s.move(stamp, fence.Mark.Advance, nothing)
	})
	// The interceptor checks the stamp; the handler ignores it.
	method("Ignores", func(ctx context.Context, _ fence.Stamp, body string) (string, error) {
		s.between(ctx)
		return "", s.append(body)
	})
	// The mark is raised, but the write is a separate step.
	method("Apart", func(ctx context.Context, stamp fence.Stamp, body string) (string, error) {
		if err := s.move(stamp, fence.Mark.Admit, nothing); err != nil {
			return "", err
		}
		s.between(ctx)
		return "", s.append(body)
	})
	method("State", func(ctx context.Context, _ fence.Stamp, _ string) (string, error) {
		m, _ := s.Mark(ctx)
		state, err := json.Marshal(kept{Mark: m, Effects: s.effects()})
		return string(state), err
	})
	// Each message is a write, each answer confirms one.
	desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: "Writes", ClientStreams: true, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
		stamp, _ := grpcfence.FromContext(stream.Context())
		for {
			req := new(text)
			if err := stream.RecvMsg(req); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := s.move(stamp, fence.Mark.Admit, nothing, req.Value); err != nil {
				return err
			}
			if err := stream.SendMsg(&text{Value: "made " + req.Value}); err != nil {
				return err
			}
		}
	}})
	server.RegisterService(&desc, nil)
}

// servers are the servers of a test, which keep their data over a restart.
type servers struct{ all []*restartable }

type restartable struct {
	path   string
	addr   string
	shelf  *shelf
	server *grpc.Server
	done   chan struct{}
}

func (s *servers) create(t testing.TB) string {
	r := &restartable{path: filepath.Join(t.TempDir(), "shelf"), addr: "127.0.0.1:0"}
	r.start(t)
	s.all = append(s.all, r)
	t.Cleanup(func() {
		s.all = slices.DeleteFunc(s.all, func(other *restartable) bool { return other == r })
		r.stop()
	})
	return r.addr
}

func (r *restartable) start(t testing.TB) {
	t.Helper()
	var err error
	if r.shelf, err = openShelf(r.path); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	r.addr, r.done = l.Addr().String(), make(chan struct{})
	early := grpcfence.Guard{Mark: r.shelf, Methods: func(m string) bool { return m != service+"State" && m != service+"Advance" }}
	plain := grpcfence.Guard{Methods: func(m string) bool { return m == service+"Advance" }}
	r.server = grpc.NewServer(grpc.ChainUnaryInterceptor(early.Unary, plain.Unary), grpc.ChainStreamInterceptor(early.Stream))
	r.shelf.register(r.server)
	go func() {
		defer close(r.done)
		_ = r.server.Serve(l)
	}()
}

func (r *restartable) stop() {
	r.server.Stop()
	<-r.done
}

func (s *servers) restart(t testing.TB) {
	for _, r := range s.all {
		r.stop()
		r.start(t)
	}
}

// client is the leader's side of the connection.
type client struct {
	conn  *grpc.ClientConn
	echo  *httptest.Server
	calls sync.Map // contexts that wait for an answer
	last  atomic.Int64
}

func dial(addr string) (*client, error) {
	interceptor := grpcfence.Client{}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(interceptor.Unary), grpc.WithChainStreamInterceptor(interceptor.Stream))
	c := &client{conn: conn}
	c.echo = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if ctx, ok := c.calls.Load(r.URL.Path); ok {
			fencetest.Between(ctx.(context.Context))
		}
	}))
	return c, err
}

func (c *client) close() error {
	c.echo.Close()
	return c.conn.Close()
}

func (c *client) call(ctx context.Context, method string, s fence.Stamp, body, digest string) (string, error) {
	id := "/" + strconv.FormatInt(c.last.Add(1), 10)
	c.calls.Store(id, ctx)
	defer c.calls.Delete(id)
	ctx = metadata.AppendToOutgoingContext(ctx, betweenKey, c.echo.URL+id, digestKey, digest)
	reply := new(text)
	err := c.conn.Invoke(grpcfence.WithTerm(ctx, fixed(s)), service+method, &text{Value: body}, reply)
	return reply.Value, err
}

func (c *client) state(ctx context.Context) (k kept, err error) {
	answer, err := c.call(ctx, "State", fence.Stamp{Deployment: "any", Group: "any", Token: 1}, "", "")
	if err != nil {
		return k, err
	}
	err = json.Unmarshal([]byte(answer), &k)
	return k, err
}

// fixed is a term that never ends.
type fixed fence.Stamp

func (fixed) Check() error         { return nil }
func (f fixed) Stamp() fence.Stamp { return fence.Stamp(f) }

// sink is a client, a server and a correct handler.
func (s *servers) sink() fencetest.Sink { return s.writing("grpc", "Write") }

func (s *servers) ignores() fencetest.Sink { return s.writing("handler ignores the stamp", "Ignores") }

func (s *servers) apart() fencetest.Sink { return s.writing("check in the interceptor", "Apart") }

func (s *servers) writing(name, method string) fencetest.Sink {
	return fencetest.Sink{
		Name:    name,
		Create:  s.create,
		Restart: s.restart,
		Open: func(where string) (fencetest.Resource, error) {
			c, err := dial(where)
			return fencetest.Resource{
				Write: func(ctx context.Context, s fence.Stamp, payload string) error {
					_, err := c.call(ctx, method, s, payload, "")
					return err
				},
				WriteStrict: func(ctx context.Context, s fence.Stamp, digest, payload string) (string, error) {
					return c.call(ctx, "Strict", s, payload, digest)
				},
				Seal: func(ctx context.Context, s fence.Stamp) error {
					_, err := c.call(ctx, "Seal", s, "", "")
					return err
				},
				Advance: func(ctx context.Context, s fence.Stamp) error {
					_, err := c.call(ctx, "Advance", s, "", "")
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
			}, err
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

// An interceptor alone is not a sink: neither if the handler ignores the stamp, nor if the
// mark is raised before the handler writes.
func TestTwins(t *testing.T) {
	fencetest.Breaks(t, new(servers).ignores(), fencetest.StaleRefused, fencetest.NotOvertaken)
	fencetest.Breaks(t, new(servers).apart(), fencetest.NotOvertaken)
}
