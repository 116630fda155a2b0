package grpcfence

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
)

// Term provides the stamp: a *tenure.Term.
type Term = httpfence.Term

// WithTerm returns a context whose calls are made under the term.
func WithTerm(ctx context.Context, t Term) context.Context { return httpfence.WithTerm(ctx, t) }

// WithSeq returns a context whose call is the seq-th write to a strict sink. A retry has the
// seq of the first attempt.
func WithSeq(ctx context.Context, seq uint64) context.Context { return httpfence.WithSeq(ctx, seq) }

// WithStamp returns a context whose calls carry exactly this stamp, unchecked: for a server
// that forwards a stamp. A received stamp is never forwarded automatically.
func WithStamp(ctx context.Context, s fence.Stamp) context.Context {
	return httpfence.WithStamp(ctx, s)
}

// Client stamps calls, and sends none after the term has ended. Its methods are interceptors:
//
//	c := grpcfence.Client{Term: term}
//	grpc.NewClient(target, grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream))
//
// Put them last, so that the check of the term is the last thing before the call.
type Client struct {
	// Term is the term of the calls, unless the context of a call has one. With neither, nothing
	// is sent.
	Term Term
}

// Unary is a grpc.UnaryClientInterceptor.
func (c Client) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, err := c.stamp(ctx)
	if err != nil {
		return err
	}
	return refusal(invoke(ctx, method, req, reply, cc, opts...))
}

// Stream is a grpc.StreamClientInterceptor. The stamp is sent when the stream begins. The
// term is checked before each message, and its end ends the stream.
func (c Client) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, err := c.stamp(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s, err := begin(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		return nil, refusal(err)
	}
	return &clientStream{ClientStream: s, client: c, one: !desc.ServerStreams, cancel: cancel}, nil
}

// stamp puts the stamp into the metadata, in place of an existing one.
func (c Client) stamp(ctx context.Context) (context.Context, error) {
	s, err := httpfence.Stamped(ctx, c.Term)
	if err != nil {
		return nil, notSent(err)
	}
	md, ok := metadata.FromOutgoingContext(ctx) // a copy
	if !ok {
		md = metadata.MD{}
	}
	httpfence.Remove(md.Delete)
	if err := httpfence.Format(s, func(key, value string) { md.Set(key, value) }); err != nil {
		return nil, notSent(err)
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}

func notSent(err error) error { return fmt.Errorf("grpcfence: not sent: %w", err) }

// clientStream checks the term before each message.
type clientStream struct {
	grpc.ClientStream
	client Client
	one    bool // the server sends one message only
	cancel context.CancelFunc
	over   error // a message was not sent
}

// SendMsg must not be called concurrently, as with any stream.
func (s *clientStream) SendMsg(m any) error {
	if s.over == nil {
		if _, err := httpfence.Stamped(s.Context(), s.client.Term); err != nil {
			s.over = notSent(err)
			s.cancel()
		}
	}
	// After a message that was not sent, none may be sent. Cancelling takes a moment, so check
	// here.
	if s.over != nil {
		return s.over
	}
	return s.ClientStream.SendMsg(m)
}

func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil || s.one {
		s.cancel()
	}
	return refusal(err)
}
