package zookeeper

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

const (
	// sessionTimeout is the timeout that the driver requests. The client pings after a third of it
	// and gives up a connection that is silent for two thirds.
	sessionTimeout = 4 * time.Second
	// connectTimeout is for one server. It doubles after each attempt at all servers, up to
	// eight times the value: a busy server may need longer.
	connectTimeout = time.Second
	// pause is the time between attempts. It grows in the same way.
	pause = 50 * time.Millisecond
	// silence: if a call got no answer for this time, and no other call got one meanwhile, the
	// driver chooses another server.
	silence = 300 * time.Millisecond
)

// link is one TCP connection with one ZooKeeper session. The client library would reconnect
// and send queued requests by itself. But the driver must check the ensemble first (see greet),
// so a lost link is not used again.
type link struct {
	*Driver
	ctx         context.Context // ends when the link is lost; its cause says why
	cancel      context.CancelCauseFunc
	server      string
	conn        *zk.Conn
	sending     chan struct{} // a lock: requests are sent one at a time
	wrote       chan struct{} // a request was written
	replies     atomic.Int64
	epoch       int64
	incarnation incarnation
}

// lose gives up the link.
func (l *link) lose(err error) error {
	l.cancel(err)
	return err
}

// wire reports when a request was written, so that requests can be sent in order without waiting
// for answers. The client library writes each request with one call.
type wire struct {
	net.Conn
	wrote chan struct{}
}

func (w wire) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	const opPing = 11
	if len(p) >= 12 && binary.BigEndian.Uint32(p[8:]) != opPing {
		select {
		case w.wrote <- struct{}{}:
		default:
		}
	}
	return n, err
}

// run keeps a connection until the driver is closed. It does not use the contexts of calls,
// because connecting may take longer than a call may wait.
func (d *Driver) run() {
	for attempt := 0; d.ctx.Err() == nil; attempt = min(attempt+1, 3) {
		var l *link
		var errs []error
		for i := 0; i < len(d.cfg.Servers) && l == nil; i++ {
			server := d.cfg.Servers[d.next%len(d.cfg.Servers)]
			d.next++
			var err error
			if l, err = d.open(server, connectTimeout<<attempt); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", server, err))
			}
		}
		again := time.After(pause << attempt)
		d.mu.Lock()
		if d.current, d.failed = l, errors.Join(errs...); l != nil {
			d.failed, attempt = nil, -1
		}
		close(d.changed)
		d.changed = make(chan struct{})
		d.mu.Unlock()
		if l != nil {
			<-l.ctx.Done()
		}
		select {
		case <-again:
		case <-d.ctx.Done():
		}
	}
}

// link returns the current link. If it is lost, link waits for the next one.
func (d *Driver) link(ctx context.Context) (*link, error) {
	for {
		d.mu.Lock()
		l, err, changed := d.current, d.failed, d.changed
		d.mu.Unlock()
		switch {
		case l != nil && l.ctx.Err() == nil:
			return l, context.Cause(ctx)
		case store.Permanent(err):
			return nil, err
		}
		select {
		case <-changed:
		case <-d.ctx.Done():
			return nil, kv.ErrClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: no session: %w", strings.Join(d.cfg.Servers, ","), errors.Join(context.Cause(ctx), err))
		}
	}
}

// open connects to a server and opens a session.
func (d *Driver) open(server string, within time.Duration) (*link, error) {
	ctx, cancel := context.WithTimeout(d.ctx, within)
	defer cancel()
	dial := (&net.Dialer{}).DialContext
	if d.cfg.TLS != nil {
		dial = (&tls.Dialer{Config: d.cfg.TLS}).DialContext
	}
	raw, err := dial(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	l := &link{Driver: d, server: server, sending: make(chan struct{}, 1), wrote: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancelCause(d.ctx)
	ready, dialed := make(chan struct{}), false
	l.conn, _, err = zk.Connect([]string{server}, sessionTimeout, zk.WithLogger(log.New(io.Discard, "", 0)),
		zk.WithDialer(func(string, string, time.Duration) (net.Conn, error) {
			if dialed {
				return nil, ErrConnectionLost
			}
			dialed = true
			return wire{raw, l.wrote}, nil
		}),
		zk.WithEventCallback(func(e zk.Event) {
			switch {
			case e.Type == zk.EventSession && e.State == zk.StateHasSession:
				close(ready) // once, since there is one connection
			case e.Type == zk.EventSession && e.State == zk.StateDisconnected:
				_ = l.lose(fmt.Errorf("%w: %s closed it or was silent", ErrConnectionLost, server))
			}
		}))
	if err != nil {
		_ = raw.Close()
		return nil, l.lose(err)
	}
	d.work.Go(func() {
		<-l.ctx.Done()
		if d.ctx.Err() == nil { // else the session is closed first
			_ = raw.Close()
		}
		l.conn.Close()
		_ = raw.Close()
	})
	select {
	case <-ready:
		err = l.greet(ctx)
	case <-l.ctx.Done():
		err = fmt.Errorf("no session (has the ensemble a quorum?): %w", context.Cause(l.ctx))
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, l.lose(err)
	}
	return l, nil
}

// send sends one request and returns a function that waits for its answer. ZooKeeper executes
// the requests of a link in the order in which they were sent.
func send[T any](ctx context.Context, l *link, request func(*zk.Conn) (T, error)) (answer func() (T, error)) {
	fail := func(err error) func() (T, error) {
		return func() (none T, _ error) { return none, err }
	}
	select {
	case l.sending <- struct{}{}:
		defer func() { <-l.sending }()
	case <-l.ctx.Done():
		return fail(context.Cause(l.ctx))
	case <-ctx.Done():
		return fail(context.Cause(ctx))
	}
	select {
	case <-l.wrote: // of a request that was answered before it was reported as written
	default:
	}
	sent, replies := time.Now(), l.replies.Load()
	replied := make(chan func() (T, error), 1)
	if !l.start(func() {
		v, err := request(l.conn)
		l.replies.Add(1)
		replied <- func() (T, error) { return v, l.explain(err) }
	}) {
		return fail(kv.ErrClosed)
	}
	select {
	case <-l.wrote:
	case r := <-replied:
		return r
	case <-l.ctx.Done():
	}
	return func() (T, error) {
		select {
		case r := <-replied:
			return r()
		case <-l.ctx.Done():
			return fail(context.Cause(l.ctx))()
		case <-ctx.Done():
			if time.Since(sent) > silence && l.replies.Load() == replies {
				_ = l.lose(fmt.Errorf("%w: %s did not answer", ErrConnectionLost, l.server))
			}
			return fail(context.Cause(ctx))()
		}
	}
}

// explain translates the client library's errors.
func (l *link) explain(err error) error {
	var network net.Error
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		return fmt.Errorf("%w: %w: check user and password, and the ACL of the path", store.ErrDenied, err)
	case errors.Is(err, zk.ErrAuthFailed):
		return fmt.Errorf("%w: %w", store.ErrUnauthenticated, err)
	case errors.Is(err, zk.ErrSessionExpired), errors.Is(err, zk.ErrSessionMoved):
		return l.lose(fmt.Errorf("%w: %w", ErrSessionLost, err))
	case errors.Is(err, zk.ErrConnectionClosed), errors.Is(err, zk.ErrClosing), errors.Is(err, zk.ErrNoServer), errors.As(err, &network):
		return l.lose(fmt.Errorf("%w: %s: %w", ErrConnectionLost, l.server, err))
	}
	return err
}

// got is a node as it was read. A missing node has only zeros.
type got struct {
	data []byte
	zk.Stat
}

func (g got) version() uint64 { return uint64(g.Mzxid) }

func (l *link) get(ctx context.Context, path string) func() (got, error) {
	return send(ctx, l, func(c *zk.Conn) (g got, err error) {
		data, stat, err := c.Get(path)
		switch {
		case err == nil:
			g = got{data, *stat}
		case errors.Is(err, zk.ErrNoNode):
			err = nil
		}
		return g, err
	})
}

func (l *link) multi(ctx context.Context, ops ...any) func() ([]zk.MultiResponse, error) {
	return send(ctx, l, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
}

// children lists a directory. With watch it also returns a channel that reports the next change.
func (l *link) children(ctx context.Context, path string, watch bool) func() (children, error) {
	return send(ctx, l, func(c *zk.Conn) (all children, err error) {
		if watch {
			all.names, _, all.changed, err = c.ChildrenW(path)
		} else {
			all.names, _, err = c.Children(path)
		}
		return all, err
	})
}

type children struct {
	names   []string
	changed <-chan zk.Event
}
