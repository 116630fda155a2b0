package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/grpcfence"
	"github.com/tenurehq/tenure/fence/httpfence"
)

func at(token fence.Token, seq uint64) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: token, Seq: seq}
}

// healthy is a service whose answers the test sets.
type healthy struct {
	*health.Server
	check func(ctx context.Context) error
}

func (h healthy) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{}, h.check(ctx)
}

// serve serves on loopback, behind a guard.
func serve(t *testing.T, g grpcfence.Guard, check func(ctx context.Context) error) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(g.Unary), grpc.ChainStreamInterceptor(g.Stream))
	grpc_health_v1.RegisterHealthServer(server, healthy{Server: health.NewServer(), check: check})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return l.Addr().String()
}

func connect(t *testing.T, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func interceptors(c grpcfence.Client) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream)}
}

func checkHealth(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// marked is a sink with a mark that the guard can read.
type marked struct {
	mark fence.Mark
	err  error
}

func (m marked) Mark(context.Context) (fence.Mark, error) { return m.mark, m.err }

// The metadata is a valid stamp, or the call is refused with a short answer and the handler
// is not called. After a token of ten megabytes the next valid call is served.
func TestWire(t *testing.T) {
	var handed atomic.Value
	conn := connect(t, serve(t, grpcfence.Guard{}, func(ctx context.Context) error {
		s, ok := grpcfence.FromContext(ctx)
		if !ok {
			return errors.New("the handler has no stamp")
		}
		handed.Store(s)
		return nil
	}))
	good := func() metadata.MD {
		return metadata.Pairs("fencing-deployment", "prod", "fencing-group", "billing", "fencing-token", "42", "fencing-seq", "7")
	}
	for _, tt := range []struct {
		name   string
		change metadata.MD
		code   codes.Code
		reason string
	}{
		{"good", nil, codes.OK, ""},
		{"no stamp", metadata.MD{"fencing-deployment": nil, "fencing-group": nil, "fencing-token": nil, "fencing-seq": nil}, codes.InvalidArgument, "MISSING"},
		{"no token", metadata.MD{"fencing-token": nil}, codes.InvalidArgument, "INVALID"},
		{"empty", metadata.MD{"fencing-token": {""}}, codes.InvalidArgument, "INVALID"},
		{"zero", metadata.MD{"fencing-token": {"0"}}, codes.InvalidArgument, "INVALID"},
		{"negative", metadata.MD{"fencing-token": {"-1"}}, codes.InvalidArgument, "INVALID"},
		{"fraction", metadata.MD{"fencing-token": {"1.5"}}, codes.InvalidArgument, "INVALID"},
		{"2^53+1", metadata.MD{"fencing-token": {"9007199254740993"}}, codes.InvalidArgument, "INVALID"},
		{"largest int", metadata.MD{"fencing-token": {"9223372036854775807"}}, codes.InvalidArgument, "INVALID"},
		{"twice", metadata.MD{"fencing-token": {"42", "42"}}, codes.InvalidArgument, "INVALID"},
		{"two groups", metadata.MD{"fencing-group": {"billing", "mail"}}, codes.InvalidArgument, "INVALID"},
		{"seq negative", metadata.MD{"fencing-seq": {"-1"}}, codes.InvalidArgument, "INVALID"},
		{"seq 2^53", metadata.MD{"fencing-seq": {"9007199254740992"}}, codes.InvalidArgument, "INVALID"},
		{"long", metadata.MD{"fencing-token": {strings.Repeat("9", 4000)}}, codes.InvalidArgument, "INVALID"},
		{"good again", nil, codes.OK, ""},
	} {
		handed.Store(fence.Stamp{})
		md := good()
		for key, values := range tt.change {
			md[key] = values
		}
		err := checkHealth(metadata.NewOutgoingContext(t.Context(), md), conn)
		st := status.Convert(err)
		if st.Code() != tt.code || reasonOf(st) != tt.reason || len(st.Message()) > 1000 {
			t.Errorf("%s: %v", tt.name, err)
		}
		want := fence.Stamp{}
		if tt.code == codes.OK {
			want = at(42, 7)
		}
		if handed.Load() != want {
			t.Errorf("%s: the handler got %v", tt.name, handed.Load())
		}
	}

	md := good()
	md.Set("fencing-token", strings.Repeat("9", 10<<20))
	if err := checkHealth(metadata.NewOutgoingContext(t.Context(), md), conn); err == nil || len(err.Error()) > 1000 {
		t.Errorf("ten megabytes: %.200v", err)
	}
	if err := checkHealth(metadata.NewOutgoingContext(t.Context(), good()), conn); err != nil {
		t.Errorf("after ten megabytes: %v", err)
	}
}

func info(st *status.Status) *errdetails.ErrorInfo {
	for _, d := range st.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok && i.GetDomain() == "tenure" {
			return i
		}
	}
	return nil
}

func reasonOf(st *status.Status) string { return info(st).GetReason() }

// A guard with a mark refuses early. If it cannot read the mark, it refuses the call and does
// not tell the client why.
func TestGuardMark(t *testing.T) {
	m := fence.Mark{Deployment: "prod", Group: "billing", Token: 42}
	for _, tt := range []struct {
		name   string
		mark   marked
		stamp  fence.Stamp
		code   codes.Code
		reason string
	}{
		{"same", marked{mark: m}, at(42, 0), codes.OK, ""},
		{"newer", marked{mark: m}, at(43, 0), codes.OK, ""},
		{"stale", marked{mark: m}, at(41, 0), codes.FailedPrecondition, "STALE"},
		{"slip", marked{mark: m}, at(43+fence.MaxJump, 0), codes.FailedPrecondition, "SLIP"},
		{"unreadable", marked{err: errors.New("secret")}, at(42, 0), codes.Unavailable, "UNAVAILABLE"},
	} {
		called := false
		conn := connect(t, serve(t, grpcfence.Guard{Mark: tt.mark}, func(context.Context) error { called = true; return nil }), interceptors(grpcfence.Client{})...)
		err := checkHealth(grpcfence.WithStamp(t.Context(), tt.stamp), conn)
		st := status.Convert(err)
		if st.Code() != tt.code || reasonOf(st) != tt.reason || called != (err == nil) || strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%s: %v, handler called: %v", tt.name, err, called)
		}
		if tt.reason == "STALE" {
			if md := info(st).GetMetadata(); md["token"] != "41" || md["current_token"] != "42" {
				t.Errorf("%s: %v", tt.name, md)
			}
		}
	}
}

// same compares errors with all their fields.
func same(a, b any) bool { return reflect.DeepEqual(a, b) }

// A refusal that a handler returns is the same error at the client, and a status. Other
// errors pass unchanged.
func TestRefusal(t *testing.T) {
	m := fence.Mark{Deployment: "prod", Group: "billing", Token: 42, Seq: 3, Digest: "d"}
	bare := m
	bare.Digest = ""
	for _, want := range []error{
		&fence.StaleError{Stamp: at(41, 0), Mark: bare}, &fence.StaleError{Stamp: at(42, 2), Mark: bare},
		&fence.SlipError{Stamp: at(fence.MaxToken, 0), Mark: bare},
		&fence.ForeignError{Stamp: fence.Stamp{Deployment: "x", Group: "y", Token: 1}, Mark: bare},
		&fence.CloneError{Stamp: at(42, 3), Digest: "e", Mark: m},
		&fence.InvalidError{Field: "seq", Value: "0", Rule: "strict writes count from 1"},
		&httpfence.MissingError{},
	} {
		conn := connect(t, serve(t, grpcfence.Guard{}, func(context.Context) error { return fmt.Errorf("sink: %w", want) }), interceptors(grpcfence.Client{Term: fixed(at(42, 0))})...)
		err := checkHealth(t.Context(), conn)
		if !errors.Is(err, fence.ErrRefused) || !same(errors.Unwrap(err), want) || status.Code(err) == codes.Unknown {
			t.Errorf("%#v came back as %v: %#v", want, status.Code(err), errors.Unwrap(err))
		}
	}
	clone := &fence.CloneError{Stamp: at(42, 3), Digest: "\xff\xfe", Mark: m}
	if st := grpcfence.StatusOf(clone); info(st) == nil || st.Code() != codes.FailedPrecondition {
		t.Errorf("a digest that is no text: %v", st)
	}
	for _, other := range []error{status.Error(codes.NotFound, "nobody"), errors.New("disk")} {
		conn := connect(t, serve(t, grpcfence.Guard{}, func(context.Context) error { return other }), interceptors(grpcfence.Client{Term: fixed(at(42, 0))})...)
		if err := checkHealth(t.Context(), conn); errors.Is(err, fence.ErrRefused) || status.Code(err) != status.Code(other) {
			t.Errorf("%v came back as %v", other, err)
		}
		if grpcfence.StatusOf(other) != nil {
			t.Errorf("%v is taken for a refusal", other)
		}
	}
}

// ending is a term that can be ended.
type ending struct {
	fixed
	over atomic.Bool
}

var errOver = errors.New("the term is over")

func (e *ending) Check() error {
	if e.over.Load() {
		return errOver
	}
	return nil
}

// counted is a term that numbers its writes.
type counted fence.Token

func (counted) Check() error         { return nil }
func (c counted) Stamp() fence.Stamp { return at(fence.Token(c), 0) }

// The stamp is that of the call's term, else of the client's, in place of an existing one.
// Without a term, or after its end, nothing is sent.
func TestClient(t *testing.T) {
	var got []fence.Stamp
	addr := serve(t, grpcfence.Guard{}, func(ctx context.Context) error {
		s, _ := grpcfence.FromContext(ctx)
		got = append(got, s)
		return nil
	})
	over := &ending{}
	over.over.Store(true)
	for _, tt := range []struct {
		name string
		term grpcfence.Term
		ctx  func(context.Context) context.Context
		want fence.Stamp
		err  error
	}{
		{name: "of the client", term: fixed(at(42, 7)), want: at(42, 7)},
		{name: "of the call", term: fixed(at(42, 7)), ctx: func(ctx context.Context) context.Context { return grpcfence.WithTerm(ctx, fixed(at(43, 0))) }, want: at(43, 0)},
		{name: "passed on", term: over, ctx: func(ctx context.Context) context.Context { return grpcfence.WithStamp(ctx, at(40, 1)) }, want: at(40, 1)},
		{name: "seq", term: counted(44), ctx: func(ctx context.Context) context.Context { return grpcfence.WithSeq(ctx, 9) }, want: at(44, 9)},
		{name: "in place of another", term: fixed(at(42, 0)), ctx: func(ctx context.Context) context.Context {
			return metadata.AppendToOutgoingContext(ctx, "fencing-token", "1", "Fencing-Token", "2", "fencing-seq", "3")
		}, want: at(42, 0)},
		{name: "none"},
		{name: "over", term: over, err: errOver},
		{name: "no stamp", term: fixed{}, err: fence.ErrRefused},
	} {
		got = nil
		ctx := t.Context()
		if tt.ctx != nil {
			ctx = tt.ctx(ctx)
		}
		err := checkHealth(ctx, connect(t, addr, interceptors(grpcfence.Client{Term: tt.term})...))
		switch {
		case tt.want.Token == 0:
			if err == nil || len(got) != 0 || tt.err != nil && !errors.Is(err, tt.err) {
				t.Errorf("%s: %v, sent %v", tt.name, err, got)
			}
		case err != nil || len(got) != 1 || got[0] != tt.want:
			t.Errorf("%s: %v, sent %v", tt.name, err, got)
		}
	}
}

// Methods that the guard excludes need no stamp.
func TestMethods(t *testing.T) {
	g := grpcfence.Guard{Methods: func(m string) bool { return m != grpc_health_v1.Health_Check_FullMethodName }}
	conn := connect(t, serve(t, g, func(ctx context.Context) error {
		if s, ok := grpcfence.FromContext(ctx); ok {
			return fmt.Errorf("a stamp out of nowhere: %v", s)
		}
		return nil
	}))
	if err := checkHealth(t.Context(), conn); err != nil {
		t.Errorf("a method that needs none: %v", err)
	}
	stream, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.InvalidArgument || reasonOf(status.Convert(err)) != "MISSING" {
		t.Errorf("a stream that needs one: %v", err)
	}
}

// A stream passes its stamp to every write: the sink refuses in the middle of the stream once
// a newer leader has written, and the client sends nothing after its term.
func TestStream(t *testing.T) {
	addr := new(servers).create(t)
	c, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.close() }()
	begin := func(term grpcfence.Term) grpc.ClientStream {
		t.Helper()
		s, err := c.conn.NewStream(grpcfence.WithTerm(t.Context(), term), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, service+"Writes")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	write := func(s grpc.ClientStream, body string) error {
		if err := s.SendMsg(&text{Value: body}); err != nil {
			return err
		}
		return s.RecvMsg(new(text))
	}

	old := begin(fixed(at(41, 0)))
	if err := write(old, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.call(t.Context(), "Write", at(42, 0), "b", ""); err != nil {
		t.Fatal(err)
	}
	var stale *fence.StaleError
	if err := write(old, "c"); !errors.As(err, &stale) || stale.Mark.Token != 42 || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a stream that was overtaken: %v", err)
	}
	if err := write(begin(fixed(at(41, 0))), "d"); !errors.As(err, &stale) {
		t.Errorf("a stream that begins stale: %v", err)
	}

	term := &ending{fixed: fixed(at(42, 0))}
	mine := begin(term)
	if err := write(mine, "e"); err != nil {
		t.Fatal(err)
	}
	term.over.Store(true)
	if err := write(mine, "f"); !errors.Is(err, errOver) {
		t.Errorf("a message after the term: %v", err)
	}
	term.over.Store(false)
	if err := write(mine, "g"); !errors.Is(err, errOver) {
		t.Error("the stream goes on after a message was left out")
	}

	whole := begin(fixed(at(42, 0)))
	if err := write(whole, "h"); err != nil {
		t.Fatal(err)
	}
	if err := whole.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := whole.RecvMsg(new(text)); !errors.Is(err, io.EOF) {
		t.Errorf("the end of a stream: %v", err)
	}
	state, err := c.state(t.Context())
	if got := strings.Join(state.Effects, ""); err != nil || got != "abeh" {
		t.Errorf("the effects are %q, %v", got, err)
	}
}
