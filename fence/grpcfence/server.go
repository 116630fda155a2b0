package grpcfence

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
)

// Marker is a sink that can return its mark.
type Marker = httpfence.Marker

// FromContext returns the stamp that a Guard has accepted. The handler must pass it to the
// write.
func FromContext(ctx context.Context) (fence.Stamp, bool) { return httpfence.FromContext(ctx) }

// Guard refuses calls without an acceptable stamp, passes the stamp to the handler, and
// converts the refusals that handlers return into a status. It is not a sink: the handler's
// write must be. The zero Guard accepts every valid stamp. Its methods are interceptors:
//
//	g := grpcfence.Guard{Mark: dir}
//	grpc.NewServer(grpc.ChainUnaryInterceptor(g.Unary), grpc.ChainStreamInterceptor(g.Stream))
type Guard struct {
	// Verify decides which stamps are accepted, as in httpfence.Guard. Nil: fence.Unsigned.
	Verify fence.Verifier
	// Mark is optional: it refuses early what the sink would refuse anyway.
	Mark Marker
	// Methods reports whether a method ("/package.Service/Method") needs a stamp; reads, health
	// checks and reflection have none. Nil: all do.
	Methods func(fullMethod string) bool
}

// Unary is a grpc.UnaryServerInterceptor.
func (g Guard) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := g.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, asStatus(err)
	}
	reply, err := next(ctx, req)
	return reply, asStatus(err)
}

// Stream is a grpc.StreamServerInterceptor.
func (g Guard) Stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := g.admit(s.Context(), info.FullMethod)
	if err != nil {
		return asStatus(err)
	}
	return asStatus(next(srv, &serverStream{ServerStream: s, ctx: ctx}))
}

func (g Guard) admit(ctx context.Context, method string) (context.Context, error) {
	if g.Methods != nil && !g.Methods(method) {
		return ctx, nil
	}
	s, err := httpfence.Guard{Verify: g.Verify, Mark: g.Mark}.Admit(ctx, func(key string) []string {
		return metadata.ValueFromIncomingContext(ctx, key)
	})
	return httpfence.NewContext(ctx, s), err
}

// serverStream has the stamp in its context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }
