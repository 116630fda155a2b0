package zookeeper

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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
	// maxConnect: a busy server may need longer.
	connectTimeout = time.Second
	maxConnect     = 8 * time.Second
	// pause is the time between attempts.
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
	turn    chan struct{} // to send
	wrote   chan struct{} // a request was written
	replies atomic.Int64
	start   func(func()) bool

	once sync.Once
	lost chan struct{}
	err  error // why it is lost; read it after lost is closed

	mu   sync.Mutex
	wire net.Conn

	epoch int64
	life  life
}

// lose gives up the link.
func (l *link) lose(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.lost)
	})
}

// wire tells when a request was written, so that requests can be sent in order without waiting
// for answers. The client library writes each request with one call.
type wire struct {
	net.Conn
	l *link
}

func (w wire) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	const opPing = 11
	if len(p) >= 12 && binary.BigEndian.Uint32(p[8:]) != opPing {
		select {
		case w.l.wrote <- struct{}{}:
		default:
		}
	}
	return n, err
}

// oneServer is a zk.HostProvider.
type oneServer struct {
	server string
	tried  bool
}

func (*oneServer) Init([]string) error { return nil }
func (*oneServer) Len() int            { return 1 }
func (*oneServer) Connected()          {}
func (o *oneServer) Next() (string, bool) {
	again := o.tried
	o.tried = true
	return o.server, again
}

type noLog struct{}

func (noLog) Printf(string, ...any) {}

// open connects to a server and opens a session.
func (d *Driver) open(ctx context.Context, server string) (*link, error) {
	l := &link{server: server, turn: make(chan struct{}, 1), wrote: make(chan struct{}, 1), lost: make(chan struct{}), start: d.start}
	ready := make(chan struct{})
	var once sync.Once
	conn, _, err := zk.Connect([]string{server}, sessionTimeout,
		zk.WithHostProvider(&oneServer{server: server}), zk.WithLogger(noLog{}), zk.WithLogInfo(false),
		zk.WithDialer(func(network, address string, _ time.Duration) (net.Conn, error) {
			return l.dial(ctx, d.cfg.TLS, network, address)
		}),
		zk.WithEventCallback(func(e zk.Event) {
			switch {
			case e.Type != zk.EventSession:
			case e.State == zk.StateHasSession:
				once.Do(func() { close(ready) })
			case e.State == zk.StateDisconnected || e.State == zk.StateExpired:
				l.lose(fmt.Errorf("%s closed the connection: %w", server, ErrConnectionLost))
			}
		}))
	if err != nil {
		return nil, err
	}
	l.conn = conn
	d.work.Go(func() {
		<-l.lost
		if !errors.Is(l.err, errClosed) {
			l.closeWire() // else the session is closed first
		}
		conn.Close()
		l.closeWire()
	})
	select {
	case <-ready:
		err = d.login(ctx, l)
	case <-l.lost:
		err = fmt.Errorf("it gave no session (has the ensemble a quorum?): %w", l.err)
	case <-ctx.Done():
		err = fmt.Errorf("it gave no session: %w", context.Cause(ctx))
	}
	if err != nil {
		l.lose(err)
		return nil, err
	}
	return l, nil
}

// dial connects once.
func (l *link) dial(ctx context.Context, secure *tls.Config, network, address string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wire != nil {
		return nil, ErrConnectionLost
	}
	var dialer interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	} = &net.Dialer{}
	if secure != nil {
		dialer = &tls.Dialer{Config: secure}
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		l.lose(fmt.Errorf("%w: %w", ErrConnectionLost, err))
		return nil, err
	}
	l.wire = conn
	return wire{conn, l}, nil
}

func (l *link) closeWire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wire != nil {
		_ = l.wire.Close()
	}
}

func (d *Driver) login(ctx context.Context, l *link) error {
	if d.cfg.User != "" {
		_, err := send(ctx, l, func(c *zk.Conn) (any, error) {
			return nil, c.AddAuth("digest", []byte(d.cfg.User+":"+d.cfg.Password))
		})()
		if err != nil {
			return err
		}
	}
	return d.greet(ctx, l)
}

type reply[T any] struct {
	value T
	err   error
}

// send sends one request and returns a function that waits for its answer. ZooKeeper executes
// the requests of a link in the order in which they were sent.
func send[T any](ctx context.Context, l *link, request func(*zk.Conn) (T, error)) (answer func() (T, error)) {
	fail := func(err error) func() (T, error) {
		return func() (none T, _ error) { return none, err }
	}
	select {
	case <-l.lost:
		return fail(l.err)
	case <-ctx.Done():
		return fail(context.Cause(ctx))
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	}
	select {
	case <-l.wrote: // of a request that was answered before it was reported as written
	default:
	}
	sent, replies := time.Now(), l.replies.Load()
	replied := make(chan reply[T], 1)
	if !l.start(func() {
		v, err := request(l.conn)
		l.replies.Add(1)
		replied <- reply[T]{v, err}
	}) {
		return fail(errClosed)
	}
	select {
	case <-l.wrote:
	case r := <-replied:
		replied <- r
	case <-l.lost:
	}
	return func() (T, error) {
		select {
		case r := <-replied:
			return r.value, l.explain(r.err)
		case <-l.lost:
			return fail(l.err)()
		case <-ctx.Done():
			if time.Since(sent) > silence && l.replies.Load() == replies {
				l.lose(fmt.Errorf("%s did not answer: %w", l.server, ErrConnectionLost))
			}
			return fail(context.Cause(ctx))()
		}
	}
}

// got is a node as it was read. A missing node has only zeros.
type got struct {
	data []byte
	zk.Stat
}

func (g got) version() uint64 { return uint64(g.Mzxid) }

func (l *link) get(ctx context.Context, path string) func() (got, error) {
	return send(ctx, l, func(c *zk.Conn) (got, error) {
		data, stat, err := c.Get(path)
		if err != nil {
			if errors.Is(err, zk.ErrNoNode) {
				err = nil
			}
			return got{}, err
		}
		return got{data, *stat}, nil
	})
}

func (l *link) multi(ctx context.Context, ops ...any) func() ([]zk.MultiResponse, error) {
	return send(ctx, l, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
}

func (l *link) children(ctx context.Context, path string) func() ([]string, error) {
	return send(ctx, l, func(c *zk.Conn) ([]string, error) {
		names, _, err := c.Children(path)
		return names, err
	})
}

// own explains an error about a node of the driver itself. A new link creates them again.
func (l *link) own(err error) error {
	if errors.Is(err, zk.ErrNoNode) {
		err = errDeleted
		l.lose(err)
	}
	return err
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
		err = fmt.Errorf("%w: %w", ErrSessionLost, err)
	case errors.Is(err, zk.ErrConnectionClosed), errors.Is(err, zk.ErrClosing), errors.Is(err, zk.ErrNoServer), errors.As(err, &network):
		err = fmt.Errorf("%w: %s: %w", ErrConnectionLost, l.server, err)
	default:
		return err
	}
	l.lose(err)
	return err
}

// link returns the connection, or the next one if it is lost.
func (d *Driver) link(ctx context.Context) (*link, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		d.mu.Lock()
		if d.ctx.Err() != nil {
			d.mu.Unlock()
			return nil, errClosed
		}
		if l := d.current; l != nil {
			select {
			case <-l.lost:
			default:
				d.mu.Unlock()
				return l, nil
			}
		}
		if d.connecting == nil {
			d.connecting = make(chan struct{})
			d.work.Go(d.connect)
		}
		connecting := d.connecting
		d.mu.Unlock()
		var done bool
		select {
		case <-connecting:
			done = true
		case <-ctx.Done():
		}
		d.mu.Lock()
		err := d.failed
		d.mu.Unlock()
		switch {
		case !done && err != nil:
			return nil, fmt.Errorf("no server gave a session: %w (%w)", err, context.Cause(ctx))
		case !done:
			return nil, fmt.Errorf("no server of %s gave a session: %w", strings.Join(d.cfg.Servers, ","), context.Cause(ctx))
		case store.Permanent(err):
			return nil, err
		}
	}
}

// connect tries each server once. It does not depend on the context of a call: a connection
// may take longer than the call that needed it first.
func (d *Driver) connect() {
	d.mu.Lock()
	attempt, next := d.attempts, d.next
	d.mu.Unlock()
	var found *link
	var errs []error
	for i := range d.cfg.Servers {
		server := d.cfg.Servers[(next+i)%len(d.cfg.Servers)]
		ctx, cancel := context.WithTimeout(d.ctx, min(connectTimeout<<min(attempt, 8), maxConnect))
		l, err := d.open(ctx, server)
		cancel()
		if err == nil {
			found, errs, next = l, nil, next+i
			break
		}
		errs = append(errs, fmt.Errorf("%s: %w", server, err))
		if store.Permanent(err) {
			break
		}
	}
	if found == nil {
		select {
		case <-time.After(min(pause<<min(attempt, 8), connectTimeout)):
		case <-d.ctx.Done():
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attempts++
	if d.failed = errors.Join(errs...); found != nil {
		d.current, d.attempts = found, 0
		d.next = next + 1 // when this one is lost
		if d.ctx.Err() != nil {
			found.lose(errClosed)
		}
	}
	close(d.connecting)
	d.connecting = nil
}

// life is one continuous life of the ensemble's data.
type life struct {
	ID    string `json:"id"`
	Began int64  `json:"began"` // the index before it
}

// The driver's own nodes.
const (
	indexNode   = "/.index"   // written by every transaction: its mzxid is the index
	changesNode = "/.changes" // its children tell what changed
	lifeNode    = "/.life"
)

func epochOf(zxid int64) int64 { return zxid >> 32 }

// greet is the first thing that happens on a link. It notices an ensemble that lost data.
//
// ZooKeeper numbers transactions by the epoch of its leader and a counter. So the index of an
// ensemble that was restored from a backup does not go back: its next leader has a larger
// epoch. But every epoch closes all connections, every connection begins here, and a life is
// written only if nobody has written the index since it was read. So the life says which
// index was the last one before the first write of the epoch.
func (d *Driver) greet(ctx context.Context, l *link) error {
	at := d.cfg.Path
	for range 10 {
		did, err := l.multi(ctx, &zk.SetDataRequest{Path: at + changesNode, Version: -1})()
		if errors.Is(err, zk.ErrNoNode) {
			if err = d.create(ctx, l); err == nil || errors.Is(err, zk.ErrNodeExists) {
				continue
			}
		}
		if err != nil {
			return err
		}
		l.epoch = epochOf(did[0].Stat.Mzxid)
		// Behind a write of the same link, reads are linearizable.
		index, err1 := l.get(ctx, at+indexNode)()
		life, err2 := l.get(ctx, at+lifeNode)()
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := json.Unmarshal(life.data, &l.life); err != nil {
			return &store.ArgumentError{Field: "path", Value: at, Rule: "node " + lifeNode + " does not hold what this program writes"}
		}
		if d.continues(l, life.Mzxid, index.Mzxid) {
			return nil
		}
		_, err = l.multi(ctx,
			&zk.CheckVersionRequest{Path: at + indexNode, Version: index.Version},
			&zk.SetDataRequest{Path: at + lifeNode, Data: newLife(l.epoch, index.Mzxid), Version: life.Version})()
		if err != nil && !errors.Is(err, zk.ErrBadVersion) {
			return err
		}
	}
	return fmt.Errorf("node %s%s keeps changing", at, lifeNode)
}

// continues reports whether the link belongs to the life that is written down.
func (d *Driver) continues(l *link, written, index int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if epochOf(written) != l.epoch || index < d.high && l.life.ID == d.life.ID {
		return false
	}
	if d.life.ID != "" && l.life.ID != d.life.ID && l.life.Began < d.high {
		d.losses++
		d.high = index
	}
	d.life = l.life
	return true
}

func newLife(epoch, began int64) []byte {
	data, err := json.Marshal(life{ID: fmt.Sprintf("epoch %d %s", epoch, rand.Text()[:8]), Began: began})
	if err != nil {
		panic("zookeeper: " + err.Error()) // a string and a number
	}
	return data
}

// create creates the path and the driver's own nodes in one transaction, so that nothing is
// left behind if a right is missing.
func (d *Driver) create(ctx context.Context, l *link) error {
	var ops []any
	for i, c := range d.cfg.Path + "/" {
		if c != '/' || i == 0 {
			continue
		}
		path := d.cfg.Path[:i]
		exists, err := send(ctx, l, func(c *zk.Conn) (bool, error) {
			ok, _, err := c.Exists(path)
			return ok, err
		})()
		if err != nil {
			return err
		}
		if !exists {
			ops = append(ops, &zk.CreateRequest{Path: path, Acl: d.acl})
		}
	}
	for node, data := range map[string][]byte{indexNode: nil, changesNode: nil, lifeNode: newLife(0, 0)} {
		ops = append(ops, &zk.CreateRequest{Path: d.cfg.Path + node, Data: data, Acl: d.acl})
	}
	_, err := l.multi(ctx, ops...)()
	return err
}
