// Package wire is the network port of a node, for the connections of Raft and for calls.
package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

var (
	// ErrTLS: the certificates are missing or not valid for this use.
	ErrTLS = errors.New("TLS")
	// ErrClosed: the port was closed.
	ErrClosed = errors.New("the port is closed")
)

// Config configures a port.
type Config struct {
	ID        string
	Life      string // a random text, new at each start of the process
	Group     string
	Listen    string
	Advertise string
	TLS       *tls.Config
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
	Heartbeat time.Duration
	Call      time.Duration // timeout of a greeting
	Log       *slog.Logger
}

// Port carries Raft's connections and our calls. The first message on a connection, hello,
// says which it is. Port is an hraft.StreamLayer whose addresses have the form id@host:port,
// so that another node at the same address is refused.
type Port struct {
	cfg      Config
	listener net.Listener
	server   *tls.Config
	client   *tls.Config
	founded  string              // see Start
	serve    func(conn net.Conn) // answers calls
	raft     chan net.Conn       // accepted, for Raft
	done     chan struct{}

	mu       sync.Mutex
	closed   bool
	open     map[net.Conn]bool // true: accepted
	accepted int
	lives    map[string]life // of the peers, by id
	running  sync.WaitGroup
}

// life is the process that last sent something under an id.
type life struct {
	id, former string
	since      time.Time
	reported   bool
}

// hello is the first message on a connection.
type hello struct {
	Version   int           `json:"version"`
	For       string        `json:"for"` // "raft" or "call"
	Group     string        `json:"group"`
	From      string        `json:"from"`
	To        string        `json:"to"`
	Heartbeat time.Duration `json:"heartbeat"`
	Founded   string        `json:"founded"`
	Life      string        `json:"life,omitzero"`
}

// welcome is the answer to hello.
type welcome struct {
	Refused string `json:"refused,omitzero"`
}

const (
	version = 1

	// What a connection can be for.
	forRaft = "raft"
	forCall = "call"

	maxHello    = 4 << 10
	maxAccepted = 512
	writeBound  = 10 * time.Second
)

// Listen opens the port. Connections wait until Start.
func Listen(cfg Config) (*Port, error) {
	p, err := Dialer(cfg)
	if err != nil {
		return nil, err
	}
	if p.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", cfg.Listen, err)
	}
	return p, nil
}

// Dialer returns a port that accepts nothing, for Callers only.
func Dialer(cfg Config) (*Port, error) {
	p := &Port{
		cfg:  cfg,
		raft: make(chan net.Conn), done: make(chan struct{}), open: map[net.Conn]bool{}, lives: map[string]life{},
	}
	if cfg.TLS != nil {
		if err := checkTLS(cfg.TLS); err != nil {
			return nil, err
		}
		p.client = cfg.TLS.Clone()
		p.client.MinVersion = max(p.client.MinVersion, tls.VersionTLS12)
		p.server = p.client.Clone()
		p.server.ClientAuth = tls.RequireAndVerifyClientCert
		if p.server.ClientCAs == nil {
			p.server.ClientCAs = p.server.RootCAs
		}
	}
	return p, nil
}

// checkTLS finds mistakes at the start that would otherwise fail a handshake on another machine.
func checkTLS(c *tls.Config) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrTLS}, args...)...)
	}
	if c.RootCAs == nil {
		return bad("RootCAs must be given: with the system's authorities everybody with a web site could take part")
	}
	if c.InsecureSkipVerify {
		return bad("InsecureSkipVerify: peers that are not verified are nobody's peers")
	}
	if len(c.Certificates) == 0 {
		if c.GetCertificate == nil || c.GetClientCertificate == nil {
			return bad("a certificate must be given: peers know each other by it")
		}
		return nil
	}
	for _, cert := range c.Certificates {
		leaf, err := x509.ParseCertificate(first(cert.Certificate))
		if err != nil {
			return bad("the certificate is unreadable: %v", err)
		}
		chain := x509.NewCertPool()
		for _, raw := range cert.Certificate[1:] {
			if c, err := x509.ParseCertificate(raw); err == nil {
				chain.AddCert(c)
			}
		}
		for use, name := range map[x509.ExtKeyUsage]string{x509.ExtKeyUsageServerAuth: "server", x509.ExtKeyUsageClientAuth: "client"} {
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: c.RootCAs, Intermediates: chain, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				return bad("peers would refuse the certificate of %q as a %s: %v", leaf.Subject.CommonName, name, err)
			}
		}
	}
	return nil
}

func first(raw [][]byte) []byte {
	if len(raw) == 0 {
		return nil
	}
	return raw[0]
}

// Start accepts connections: serve answers those for calls, Accept returns those
// for Raft. Founded is the same in all founders of one cluster, and "" in one who
// joined.
func (p *Port) Start(founded string, serve func(net.Conn)) {
	p.founded, p.serve = founded, serve
	p.running.Go(p.accept)
}

func (p *Port) accept() {
	const least, most = 5 * time.Millisecond, time.Second
	pause := least
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			select {
			case <-p.done:
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, most)
			p.cfg.Log.Warn("raft: cannot accept connections", "address", p.cfg.Listen, "error", err)
			continue
		}
		pause = least
		if p.server != nil {
			conn = tls.Server(conn, p.server)
		}
		s := &served{Conn: conn, port: p}
		if p.keep(s, true) {
			go p.greet(s)
		} else {
			_ = s.Close()
		}
	}
}

// greet reads the hello, answers it and passes the connection on.
func (p *Port) greet(conn *served) {
	_ = conn.SetDeadline(time.Now().Add(p.cfg.Call))
	var h hello
	err := ReadFrame(conn, &h, maxHello)
	if err == nil {
		err = p.check(h)
		var w welcome
		if err != nil {
			w.Refused = err.Error()
		}
		err = errors.Join(err, WriteFrame(conn, w))
	}
	if err != nil {
		if !errors.Is(err, io.EOF) {
			p.cfg.Log.Info("raft: connection refused", "from", h.From, "address", conn.RemoteAddr().String(), "error", err)
		}
		_ = conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	conn.from, conn.life = h.From, h.Life
	p.heard(conn)
	if h.For == forCall {
		p.serve(conn)
		_ = conn.Close()
		return
	}
	select {
	case p.raft <- conn:
	case <-p.done:
		_ = conn.Close()
	}
}

// heard records which process uses an id. It reports two processes with one id: the older one
// sends something again after the newer one did. After a restart the old process never does.
func (p *Port) heard(c *served) {
	if c.life == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch l := p.lives[c.from]; {
	case l.id == c.life:
	case l.id == "":
		p.lives[c.from] = life{id: c.life, since: now}
	case l.former != c.life && !c.known:
		p.lives[c.from] = life{id: c.life, former: l.id, since: now}
	case !l.reported && now.Sub(l.since) > p.cfg.Heartbeat: // by then everything that a dead process sent has been read
		l.reported = true
		p.lives[c.from] = l
		p.cfg.Log.Error("raft: two processes run under one node id: its data directory was copied, and both vote with it; stop one of them and let it join under a new id with an empty directory",
			"id", c.from, "address", c.RemoteAddr().String())
	}
	c.known = true
}

// Life returns the life of the process that last sent something under an id.
func (p *Port) Life(id string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lives[id].id
}

func (p *Port) check(h hello) error {
	self := p.cfg.ID
	switch {
	case h.Version != version:
		return fmt.Errorf("%s speaks version %d of the protocol, %s version %d", h.From, h.Version, self, version)
	case h.Group != p.cfg.Group:
		return fmt.Errorf("%s belongs to group %q, %s to group %q", h.From, h.Group, self, p.cfg.Group)
	case h.To != self:
		return fmt.Errorf("at this address is %s, not %s", self, h.To)
	case h.Founded != "" && p.founded != "" && h.Founded != p.founded:
		return fmt.Errorf("%s and %s were first started with different peers, so they are two clusters", h.From, self)
	case h.For != forRaft && h.For != forCall:
		return fmt.Errorf("%s wants %q", h.From, h.For)
	case h.For == forRaft && h.Heartbeat > p.cfg.Heartbeat:
		return fmt.Errorf("the heartbeat of %s is %v, longer than that of %s, %v: it would trust longer than %s is patient", h.From, h.Heartbeat, self, p.cfg.Heartbeat, self)
	}
	return nil
}

// connect opens a connection to the node.
func (p *Port) connect(ctx context.Context, id, address, use string) (net.Conn, error) {
	conn, err := p.dial(ctx, id, address, use)
	if err != nil {
		return nil, fmt.Errorf("%s at %s: %w", id, address, err)
	}
	return conn, nil
}

func (p *Port) dial(ctx context.Context, id, address, use string) (net.Conn, error) {
	conn, err := p.cfg.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if p.client != nil {
		c := p.client
		if c.ServerName == "" {
			c = c.Clone()
			c.ServerName, _, _ = net.SplitHostPort(address)
		}
		conn = tls.Client(conn, c)
	}
	if !p.keep(conn, false) {
		_ = conn.Close()
		return nil, ErrClosed
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	var w welcome
	err = WriteFrame(conn, hello{version, use, p.cfg.Group, p.cfg.ID, id, p.cfg.Heartbeat, p.founded, p.cfg.Life})
	if err == nil {
		err = ReadFrame(conn, &w, maxHello)
	}
	if err == nil && w.Refused != "" {
		err = errors.New("refused: " + w.Refused)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		p.drop(conn)
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return &dialled{Conn: conn, port: p}, nil
}

func (p *Port) keep(conn net.Conn, accepted bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || accepted && p.accepted == maxAccepted {
		return false
	}
	p.open[conn] = accepted
	if accepted {
		p.accepted++
		p.running.Add(1)
	}
	return true
}

func (p *Port) drop(conn net.Conn) {
	_ = conn.Close()
	p.forget(conn)
}

func (p *Port) forget(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	accepted, ok := p.open[conn]
	if !ok {
		return
	}
	delete(p.open, conn)
	if accepted {
		p.accepted--
		p.running.Done()
	}
}

// served is an accepted connection. Its handler closes it, and Wait waits for that.
type served struct {
	net.Conn
	port       *Port
	from, life string // after the greeting
	known      bool   // heard was called for it; under the port's mu
}

func (c *served) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.port.heard(c)
	}
	return n, err
}

func (c *served) Close() error {
	defer c.port.forget(c)
	return c.Conn.Close()
}

// Write times out if the peer does not read.
func (c *served) Write(p []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(writeBound))
	return c.Conn.Write(p)
}

// dialled is a connection that this node opened.
type dialled struct {
	net.Conn
	port *Port
}

func (c *dialled) Close() error {
	c.port.drop(c.Conn)
	return nil
}

// Accept, Close, Addr and Dial implement hraft.StreamLayer.

// Accept returns the next connection for Raft.
func (p *Port) Accept() (net.Conn, error) {
	select {
	case conn := <-p.raft:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Addr returns the address at which the others reach this node.
func (p *Port) Addr() net.Addr { return address(p.cfg.Advertise) }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// Dial opens a connection for Raft to id@host:port.
func (p *Port) Dial(to hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	id, address, _ := strings.Cut(string(to), "@")
	return p.connect(ctx, id, address, forRaft)
}

// Close ends every connection. It does not wait for their handlers.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	close(p.done)
	err := p.listener.Close()
	for conn := range p.open {
		// The handler of an accepted connection notices and calls served.Close.
		if s, ok := conn.(*served); ok {
			conn = s.Conn
		}
		// Without TLS's close_notify, which could wait for a peer that is gone.
		if t, ok := conn.(*tls.Conn); ok {
			conn = t.NetConn()
		}
		_ = conn.Close()
	}
	return err
}

// Wait returns when everything that Start began has ended.
func (p *Port) Wait() { p.running.Wait() }
