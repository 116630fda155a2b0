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
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure/store"
)

const (
	// sessionTimeout is what the driver asks for. The client pings after a third of it and
	// gives up a connection that is silent for two thirds.
	sessionTimeout = 4 * time.Second
	// connectTimeout is for one server. It doubles after each attempt at all servers, up to
	// eight times: a busy server may need longer.
	connectTimeout = time.Second
	// pause is the time between attempts. It grows likewise.
	pause = 50 * time.Millisecond
	// silence is the time after which a call that ends without an answer makes the driver
	// choose another server, if no other call was answered meanwhile.
	silence = 300 * time.Millisecond
)

// link is one TCP connection with one ZooKeeper session. The client library would reconnect
// and send queued requests by itself. This driver must look at the ensemble first (see greet),
// so a link that is lost is not used again.
type link struct {
	server  string
	conn    *zk.Conn
	start   func(func()) bool
	turn    chan struct{} // to send
	wrote   chan struct{} // a request was written
	replies atomic.Int64
	epoch   int64
	life    life

	mu   sync.Mutex
	wire net.Conn
	err  error         // why it is lost
	lost chan struct{} // closed after err is set
}

// lose gives up the link.
func (l *link) lose(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.lost)
	}
	return l.err
}

// wire tells when a request was written, so that requests can be sent in order without waiting
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

// run keeps a connection until the driver is closed. Calls have contexts of their own: a
// connection may take longer than the call that waits for it.
func (d *Driver) run() {
	for attempt := 0; d.ctx.Err() == nil; attempt = min(attempt+1, 3) {
		var l *link
		var errs []error
		for range d.cfg.Servers {
			server := d.cfg.Servers[d.next%len(d.cfg.Servers)]
			d.next++
			ctx, cancel := context.WithTimeout(d.ctx, connectTimeout<<attempt)
			found, err := d.open(ctx, server)
			cancel()
			if err == nil {
				l, errs = found, nil
				break
			}
			errs = append(errs, fmt.Errorf("%s: %w", server, err))
		}
		d.mu.Lock()
		d.current, d.failed = l, errors.Join(errs...)
		close(d.changed)
		d.changed = make(chan struct{})
		d.mu.Unlock()
		wait := time.After(pause << attempt)
		if l != nil {
			attempt = -1
			select {
			case <-l.lost:
			case <-d.ctx.Done():
				_ = l.lose(errClosed)
			}
		}
		select {
		case <-wait:
		case <-d.ctx.Done():
		}
	}
}

// link returns the connection. It waits for the next one if it is lost.
func (d *Driver) link(ctx context.Context) (*link, error) {
	for {
		d.mu.Lock()
		l, err, changed := d.current, d.failed, d.changed
		d.mu.Unlock()
		if store.Permanent(err) {
			return nil, err
		}
		if l != nil {
			select {
			case <-l.lost:
			default:
				return l, context.Cause(ctx)
			}
		}
		select {
		case <-changed:
		case <-d.ctx.Done():
			return nil, errClosed
		case <-ctx.Done():
			if err == nil {
				err = errors.New(strings.Join(d.cfg.Servers, ",") + " did not answer yet")
			}
			return nil, fmt.Errorf("no session: %w (%w)", err, context.Cause(ctx))
		}
	}
}

// open connects to a server and opens a session.
func (d *Driver) open(ctx context.Context, server string) (*link, error) {
	l := &link{server: server, start: d.start, turn: make(chan struct{}, 1), wrote: make(chan struct{}, 1), lost: make(chan struct{})}
	ready := make(chan struct{})
	ended := func(err error) error { return l.lose(fmt.Errorf("%w: %s: %w", ErrConnectionLost, server, err)) }
	dialer := net.Dialer{}
	dial := dialer.DialContext
	if d.cfg.TLS != nil {
		dial = (&tls.Dialer{Config: d.cfg.TLS}).DialContext
	}
	conn, _, err := zk.Connect([]string{server}, sessionTimeout, zk.WithLogger(log.New(io.Discard, "", 0)),
		zk.WithDialer(func(string, string, time.Duration) (net.Conn, error) {
			conn, err := dial(ctx, "tcp", server)
			if err != nil {
				return nil, ended(err)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.wire != nil || l.err != nil {
				_ = conn.Close()
				return nil, ErrConnectionLost
			}
			l.wire = conn
			return wire{conn, l.wrote}, nil
		}),
		zk.WithEventCallback(func(e zk.Event) {
			switch {
			case e.Type == zk.EventSession && e.State == zk.StateHasSession:
				close(ready) // once, since there is one connection
			case e.Type == zk.EventSession && e.State == zk.StateDisconnected:
				_ = ended(errors.New("the server closed it or was silent"))
			}
		}))
	if err != nil {
		return nil, err
	}
	l.conn = conn
	d.work.Go(func() {
		<-l.lost
		if !errors.Is(l.err, errClosed) { // else the session is closed first
			_ = l.close()
		}
		conn.Close()
		_ = l.close()
	})
	select {
	case <-ready:
		err = d.login(ctx, l)
	case <-l.lost:
		err = fmt.Errorf("no session (has the ensemble a quorum?): %w", l.err)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = l.lose(err)
	}
	return l, err
}

func (l *link) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wire == nil {
		return nil
	}
	return l.wire.Close()
}

func (d *Driver) login(ctx context.Context, l *link) error {
	if d.cfg.User != "" {
		login := []byte(d.cfg.User + ":" + d.cfg.Password)
		if _, err := send(ctx, l, func(c *zk.Conn) (any, error) { return nil, c.AddAuth("digest", login) })(); err != nil {
			return err
		}
	}
	return d.greet(ctx, l)
}

// send sends one request and returns a function that waits for its answer. ZooKeeper executes
// the requests of a link in the order in which they were sent.
func send[T any](ctx context.Context, l *link, request func(*zk.Conn) (T, error)) (answer func() (T, error)) {
	fail := func(err error) func() (T, error) {
		return func() (none T, _ error) { return none, err }
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-l.lost:
		return fail(l.err)
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
		return fail(errClosed)
	}
	select {
	case <-l.wrote:
	case r := <-replied:
		return r
	case <-l.lost:
	}
	return func() (T, error) {
		select {
		case r := <-replied:
			return r()
		case <-l.lost:
			return fail(l.err)()
		case <-ctx.Done():
			if time.Since(sent) > silence && l.replies.Load() == replies {
				_ = l.lose(fmt.Errorf("%w: %s did not answer", ErrConnectionLost, l.server))
			}
			return fail(context.Cause(ctx))()
		}
	}
}

// explain gives the client library's errors their meaning.
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

// children lists a directory. With watch it also returns what tells of the next change.
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
