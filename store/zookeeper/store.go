package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Config says where the ensemble is.
type Config struct {
	// Servers are the host:port of all servers of the ensemble. The default port is 2181.
	Servers []string
	// Path of the node that everything is below. Default "/tenure". It is created if it is
	// missing.
	Path string
	// User and Password are sent with the digest scheme. Then only this user can read and
	// write the nodes that this package creates. ZooKeeper does not check a password until a
	// node is used.
	User, Password string
	// TLS, if set, is used for every connection.
	TLS *tls.Config
	// MinTTL is the shortest TTL of a session. Default 2 s. A TTL should be longer than the
	// ensemble needs to elect a leader.
	MinTTL time.Duration
	// Deployment names a path that is used for the first time. Default: random. A store that
	// takes the place of another one needs its name, because sinks know it.
	Deployment string
}

const (
	defaultPath = "/tenure"
	defaultPort = "2181"
	maxTTL      = 24 * time.Hour
	// lateness of an observed expiry: a beat is read every eighth of the TTL.
	lateness = time.Second
	// maxKeys keeps a transaction far below 1 MB, which is ZooKeeper's limit by default.
	maxKeys = 128
	// defaultCall bounds calls whose context has no deadline.
	defaultCall = 5 * time.Second
)

var (
	// ErrConnectionLost: the connection broke before the answer came. The outcome of a write is
	// unknown. The driver connects again, and a watch goes on without a gap.
	ErrConnectionLost = errors.New("connection lost")
	// ErrSessionLost: ZooKeeper has ended the session of the connection and refused the call,
	// which had no effect. The driver opens a new session and tries again.
	ErrSessionLost = errors.New("session lost")

	errClosed = errors.New("zookeeper: the store is closed")
)

// Store is a store.Store in ZooKeeper: a kv.Store over a ZooKeeper driver.
type Store struct {
	*kv.Store
	driver *Driver
}

var _ store.Store = (*Store)(nil)

// Open connects to the ensemble and reads, or at first use writes, what belongs to the
// deployment. It fails within the context's deadline (5 s if it has none) with what each
// server said.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	d := NewDriver(cfg)
	s, err := kv.New(ctx, d, kv.Config{Deployment: cfg.Deployment})
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("zookeeper: open %s: %w", strings.Join(cfg.Servers, ","), err)
	}
	return &Store{s, d}, nil
}

// Close closes the connection. Sessions live on until they expire.
func (s *Store) Close() {
	s.Store.Close()
	s.driver.Close()
}

// Parse reads a Config from a URL: zookeeper://user:password@a:2181,b:2181,c:2181/path.
// User, password and path are optional and may be percent-encoded. Errors do not contain the
// password.
func Parse(address string) (Config, error) {
	bad := func(rule string) (Config, error) {
		return Config{}, &store.ArgumentError{Field: "store", Rule: rule + "; want zookeeper://[user:password@]host[:port][,host[:port]...][/path]"}
	}
	rest, ok := strings.CutPrefix(address, "zookeeper://")
	if !ok {
		return bad("the URL does not begin with zookeeper://")
	}
	// net/url refuses a list of hosts with ports.
	if strings.ContainsAny(rest, "?#") {
		return bad("the URL has a query or a fragment")
	}
	var c Config
	login := ""
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		login, rest = rest[:at], rest[at+1:]
		user, password, both := strings.Cut(login, ":")
		var err1, err2 error
		c.User, err1 = url.PathUnescape(user)
		c.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil || !both || strings.Contains(login, "/") {
			return bad("the user or the password is not percent-encoded, or one is missing")
		}
	}
	hosts, path, _ := strings.Cut(rest, "/")
	path, err := url.PathUnescape(path)
	if err != nil {
		return bad("the path is not percent-encoded")
	}
	if path != "" {
		c.Path = "/" + path
	}
	c.Servers = strings.Split(hosts, ",")
	c = c.withDefaults()
	return c, c.validate()
}

func (c Config) withDefaults() Config {
	c.Path = strings.TrimRight(c.Path, "/")
	if c.Path == "" {
		c.Path = defaultPath
	}
	if c.MinTTL == 0 {
		c.MinTTL = 2 * time.Second
	}
	servers := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil && s != "" {
			s = net.JoinHostPort(strings.Trim(s, "[]"), defaultPort)
		}
		servers[i] = s
	}
	c.Servers = servers
	return c
}

func (c *Config) validate() error {
	if len(c.Servers) == 0 {
		return &store.ArgumentError{Field: "servers", Rule: "at least one is needed"}
	}
	for _, s := range c.Servers {
		if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "" || strings.ContainsAny(s, "/ @") {
			return &store.ArgumentError{Field: "server", Value: s, Rule: "must be host:port"}
		}
	}
	if !strings.HasPrefix(c.Path, "/") || c.Path == "/zookeeper" || strings.HasPrefix(c.Path, "/zookeeper/") {
		return &store.ArgumentError{Field: "path", Value: c.Path, Rule: "must begin with / and not be ZooKeeper's own"}
	}
	for part := range strings.SplitSeq(c.Path[1:], "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
			return &store.ArgumentError{Field: "path", Value: c.Path, Rule: "must have no empty part, no . and .., and only printable ASCII"}
		}
	}
	switch {
	case (c.User == "") != (c.Password == ""):
		return &store.ArgumentError{Field: "user and password", Rule: "come together"}
	case strings.Contains(c.User, ":"):
		return &store.ArgumentError{Field: "user", Rule: "must not contain a colon"}
	case c.MinTTL < 100*time.Millisecond:
		return &store.ArgumentError{Field: "min ttl", Value: c.MinTTL, Rule: "at least 100ms"}
	}
	return nil
}

// Driver knows ZooKeeper's nodes, transactions and connections.
type Driver struct {
	cfg Config
	acl []zk.ACL

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	next int // server; only run uses it

	mu      sync.Mutex
	current *link
	failed  error         // why there is none
	changed chan struct{} // closed and replaced when these two change
	life    life
	high    int64 // the highest index seen
	losses  int   // of data, as seen by this driver
}

// NewDriver returns the driver alone. It connects by itself.
func NewDriver(cfg Config) *Driver {
	d := &Driver{cfg: cfg.withDefaults(), acl: zk.WorldACL(zk.PermAll), changed: make(chan struct{})}
	if cfg.User != "" {
		d.acl = zk.AuthACL(zk.PermAll)
	}
	d.next = rand.IntN(max(1, len(cfg.Servers))) // clients spread over the servers
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.work.Go(d.run)
	return d
}

// Close closes the connection.
func (d *Driver) Close() {
	d.mu.Lock()
	d.cancel()
	d.mu.Unlock()
	d.work.Wait()
}

// start runs f beside everything else, unless the driver is closed.
func (d *Driver) start(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return false
	}
	d.work.Go(f)
	return true
}

// bounded gives a context a deadline if it has none.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, defaultCall)
}
