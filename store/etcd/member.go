package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// member is one etcd server. Each has its own client, because a client for all
// servers does not say which one it waits for.
type member struct {
	endpoint string
	cfg      *Config

	mu     sync.Mutex
	client *clientv3.Client
	dialed chan struct{} // closed when the current attempt has ended
	err    error         // of the last attempt
	closed bool
	work   sync.WaitGroup

	// revision is the revision in the last answer to a call, and answered when that arrived.
	revision int64
	answered time.Time
}

const (
	// dial bounds the creation of a client. A call waits for it only until its own
	// deadline.
	dial = 2 * time.Second
	// redial bounds the pause between two attempts to connect to a member.
	redial = time.Second
	// search bounds the search for the leader or for any connected member.
	search = time.Second / 2
)

// connect returns the client. The first call creates it; with a password this takes
// a round trip to a member that may be down.
func (m *member) connect(ctx context.Context) (*clientv3.Client, error) {
	m.mu.Lock()
	switch {
	case m.closed:
		m.mu.Unlock()
		return nil, kv.ErrClosed
	case m.client != nil:
		defer m.mu.Unlock()
		return m.client, nil
	case m.dialed == nil:
		m.dialed = make(chan struct{})
		m.work.Go(m.dial)
	}
	dialed := m.dialed
	m.mu.Unlock()
	select {
	case <-dialed:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.client, m.err
}

func (m *member) dial() {
	wait := backoff.DefaultConfig
	wait.BaseDelay, wait.MaxDelay = 50*time.Millisecond, redial
	c, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{m.endpoint},
		TLS:                  m.cfg.TLS,
		Username:             m.cfg.Username,
		Password:             m.cfg.Password,
		DialTimeout:          dial,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		// This package tries the next member itself.
		MaxUnaryRetries: 1,
		Logger:          zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: wait, MinConnectTimeout: dial}),
		},
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && m.closed {
		_ = c.Close()
		c, err = nil, kv.ErrClosed
	}
	m.client, m.err = c, err
	close(m.dialed)
	m.dialed = nil
}

func (m *member) close() {
	m.mu.Lock()
	m.closed = true
	if m.client != nil {
		_ = m.client.Close()
	}
	m.mu.Unlock()
	m.work.Wait()
}

// heardFrom notes an answer: the member is alive, and if the Raft term is new, the driver looks
// for the new leader.
func (d *Driver) heardFrom(c *clientv3.Client, h *pb.ResponseHeader) {
	for _, m := range d.members {
		m.mu.Lock()
		if m.client == c {
			m.revision, m.answered = h.Revision, time.Now()
		}
		m.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if h.RaftTerm > d.term && len(d.members) > 1 && d.ctx.Err() == nil {
		d.term = h.RaftTerm
		d.work.Go(d.preferLeader)
	}
}

// missedNothing returns when the member last answered a call, if its revision was then the given
// one: a watch at this revision has missed nothing.
func (d *Driver) missedNothing(c *clientv3.Client, revision int64) (at time.Time) {
	for _, m := range d.members {
		m.mu.Lock()
		if m.client == c && m.revision == revision {
			at = m.answered
		}
		m.mu.Unlock()
	}
	return at
}

// preferLeader makes later calls start with the leader of the cluster. It applies a commit before
// the others, and they forward keep-alives and linearizable reads to it.
func (d *Driver) preferLeader() {
	ctx, cancel := context.WithTimeout(d.ctx, search)
	defer cancel()
	var all sync.WaitGroup
	for i, m := range d.members {
		all.Go(func() {
			c, err := m.connect(ctx)
			if err != nil {
				return
			}
			r, err := pb.NewMaintenanceClient(c.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
			if err == nil && r.Leader == r.Header.MemberId {
				d.mu.Lock()
				d.preferred = i
				d.mu.Unlock()
				cancel()
			}
		})
	}
	all.Wait()
}

// reconnect dials all members now. It returns the first one that is connected, or -1 if none is
// in time.
func (d *Driver) reconnect(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, search)
	defer cancel()
	connected := make(chan int, len(d.members))
	var all sync.WaitGroup
	for i, m := range d.members {
		all.Go(func() {
			c, err := m.connect(ctx)
			if err != nil {
				return
			}
			conn := c.ActiveConnection()
			conn.ResetConnectBackoff()
			for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
				conn.Connect()
				if !conn.WaitForStateChange(ctx, state) {
					return
				}
			}
			connected <- i
			cancel()
		})
	}
	all.Wait()
	select {
	case i := <-connected:
		return i
	default:
		return -1
	}
}

// each tries a call at one member after the other until one answers. The remaining
// time is divided among the members that were not tried yet. If none answers, the
// outcome is unknown, as after every error of a store.Store.
func (d *Driver) each(ctx context.Context, what string, f func(context.Context, *clientv3.Client) error) error {
	if d.ctx.Err() != nil {
		return kv.ErrClosed
	}
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	d.mu.Lock()
	first := d.preferred
	d.mu.Unlock()
	var errs []error
	for i := range len(d.members) + 1 {
		if ctx.Err() != nil {
			break
		}
		at, left := (first+i)%len(d.members), len(d.members)-i
		if left == 0 {
			// None of the connections worked. After an outage the members may be back, but the
			// connections still wait before they dial again.
			if at, left = d.reconnect(ctx), 1; at < 0 {
				break
			}
		}
		err := d.members[at].try(ctx, left, f)
		if refused := permanent(err); refused != nil {
			return fmt.Errorf("etcd: %s: %s: %s: %w", what, d.members[at].endpoint, explain(err), refused)
		}
		if err == nil || answered(err) {
			if i > 0 && err == nil {
				d.mu.Lock()
				d.preferred = at
				d.mu.Unlock()
			}
			return err
		}
		errs = append(errs, fmt.Errorf("%s: %s", d.members[at].endpoint, explain(err)))
	}
	if len(errs) == 0 {
		return fmt.Errorf("etcd: %s: %w", what, context.Cause(ctx))
	}
	return fmt.Errorf("etcd: %s: no member answered: %w", what, errors.Join(errs...))
}

func (m *member) try(ctx context.Context, left int, f func(context.Context, *clientv3.Client) error) error {
	if deadline, _ := ctx.Deadline(); left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	c, err := m.connect(ctx)
	if err != nil {
		return err
	}
	return f(ctx, c)
}

// answered reports whether every member would give this answer. The error of a
// learner, of a member without a leader or of a busy one is not such an answer.
func answered(err error) bool {
	if err == nil || errors.Is(err, kv.ErrClosed) {
		return true
	}
	switch codeOf(err) {
	case codes.NotFound, codes.InvalidArgument, codes.PermissionDenied, codes.OutOfRange:
		return true
	default:
		return false
	}
}

// permanent returns the store's error for a permanent authentication error of etcd, and
// nil for every other error. An expired token is not permanent: the client gets a new
// one.
func permanent(err error) error {
	err = rpctypes.Error(err)
	switch {
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrUserNotFound):
		return fmt.Errorf("%w: check the user and the password of etcd", store.ErrUnauthenticated)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("%w: check the roles of the user of etcd", store.ErrDenied)
	}
	return nil
}

func codeOf(err error) codes.Code {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return codes.DeadlineExceeded
	}
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

// explain describes an error that is only a code.
func explain(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded), codeOf(err) == codes.DeadlineExceeded:
		return "no answer in time (stopped, cut off, or without a quorum)"
	case errors.Is(err, rpctypes.ErrNoLeader):
		return "the cluster has no leader (quorum lost?)"
	default:
		if st, ok := status.FromError(err); ok {
			return st.Message()
		}
		return err.Error()
	}
}
