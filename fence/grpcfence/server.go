package grpcfence

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
)

// Marker is a sink that can be asked for its mark.
type Marker = httpfence.Marker

// FromContext returns the stamp that a Guard has let through, for the handler to
// take to its write.
func FromContext(ctx context.Context) (fence.Stamp, bool) { return httpfence.FromContext(ctx) }

// Guard refuses calls without a stamp that may be believed, hands the stamp to the
// handler, and turns the refusals that handlers return into their status. It is not
// a sink: the handler's write is. The zero Guard takes every stamp at its word. Its
// methods are interceptors:
//
//	g := grpcfence.Guard{Mark: dir}
//	grpc.NewServer(grpc.ChainUnaryInterceptor(g.Unary), grpc.ChainStreamInterceptor(g.Stream))
type Guard struct {
	// Verify says which stamps are believed, as in httpfence.Guard. Nil:
	// fence.Unsigned.
	Verify fence.Verifier
	// Mark, if there is one, refuses early what the sink would refuse anyway.
	Mark Marker
	// Methods says of which methods ("/package.Service/Method") a stamp is asked;
	// reads, health checks and reflection have none. Nil: of all.
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
