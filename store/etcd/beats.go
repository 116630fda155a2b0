package etcd

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// beats keeps idle streams for keep-alives, so that not every keep-alive opens a stream. A
// stream serves one call at a time, so a call that hangs delays no other.
type beats struct {
	mu   sync.Mutex
	idle map[*clientv3.Client][]*beatStream
}

type beatStream struct {
	pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
}

// maxIdle bounds the idle streams of one member.
const maxIdle = 16

// renew sends one keep-alive. The client's KeepAliveOnce is not used: it retries without a
// pause while a member is down.
func (b *beats) renew(ctx context.Context, c *clientv3.Client, id clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	for {
		s := b.take(c)
		kept := s != nil
		if !kept {
			var err error
			if s, err = newBeatStream(ctx, c); err != nil {
				return nil, err
			}
		}
		resp, err := s.renew(ctx, id)
		if err == nil {
			b.put(c, s)
			return resp, nil
		}
		s.cancel()
		if !kept || ctx.Err() != nil {
			return nil, err
		}
		// An idle stream may have ended when the member restarted: try another one.
	}
}

func newBeatStream(ctx context.Context, c *clientv3.Client) (*beatStream, error) {
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	giveUp := context.AfterFunc(ctx, cancel)
	stream, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(streamCtx)
	if !giveUp() {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &beatStream{stream, cancel}, nil
}

func (s *beatStream) renew(ctx context.Context, id clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	defer context.AfterFunc(ctx, s.cancel)()
	// If the stream has ended, Recv says why.
	_ = s.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
	resp, err := s.Recv()
	if err == nil {
		err = ctx.Err() // the stream was cancelled
	}
	return resp, err
}

func (b *beats) take(c *clientv3.Client) *beatStream {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.idle[c]
	if len(all) == 0 {
		return nil
	}
	s := all[len(all)-1]
	b.idle[c] = all[:len(all)-1]
	return s
}

func (b *beats) put(c *clientv3.Client, s *beatStream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.idle[c]) >= maxIdle {
		s.cancel()
		return
	}
	if b.idle == nil {
		b.idle = map[*clientv3.Client][]*beatStream{}
	}
	b.idle[c] = append(b.idle[c], s)
}

// close ends the idle streams.
func (b *beats) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, all := range b.idle {
		for _, s := range all {
			s.cancel()
		}
	}
	b.idle = nil
}
