package embeddedetcd

import (
	"context"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// drain ends the streams of clients when the member stops. Without it etcd waits seven
// seconds for watches that do not end by themselves, while it already refuses new calls.
// With it clients get "unavailable" at once and continue at another member.
type drain struct {
	ctx   context.Context
	begin context.CancelFunc
}

func newDrain() *drain {
	ctx, cancel := context.WithCancel(context.Background())
	return &drain{ctx, cancel}
}

func (d *drain) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainStreamInterceptor(d.stream), grpc.ChainUnaryInterceptor(d.unary)}
}

func (d *drain) stream(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	err := handle(srv, drainedStream{s, ctx})
	if d.ctx.Err() != nil {
		return rpctypes.ErrGRPCStopped // "canceled" would mean that the client wanted it
	}
	return err
}

func (d *drain) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if d.ctx.Err() != nil {
		return nil, rpctypes.ErrGRPCStopped
	}
	return handle(ctx, req)
}

type drainedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s drainedStream) Context() context.Context { return s.ctx }
