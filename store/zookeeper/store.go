package zookeeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Config configures a store in ZooKeeper.
type Config struct {
	// Servers are the host:port of all servers of the ensemble. The default port is 2181.
	Servers []string
	// Path of the node that has all other nodes below it. Default "/tenure". It is created if it
	// is missing.
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
	minTTL      = 2 * time.Second
	maxTTL      = 24 * time.Hour
	// lateness of an observed expiry: a beat is read every eighth of the TTL.
	lateness = time.Second
	// maxKeys keeps a transaction far below 1 MB, which is ZooKeeper's limit by default.
	maxKeys = 128
)

var (
	// ErrConnectionLost: the connection broke before the answer came. The outcome of a write is
	// unknown. The driver connects again, and a watch goes on without a gap.
	ErrConnectionLost = errors.New("connection lost")
	// ErrSessionLost: ZooKeeper has ended the session of the connection and refused the call,
	// which had no effect. The driver opens a new session and tries again.
	ErrSessionLost = errors.New("session lost")
)

// Store is a store.Store in ZooKeeper.
type Store = kv.Store

var _ store.Store = (*Store)(nil)

// Open connects to the ensemble and reads the description of the deployment, or writes it at
// first use. It fails within the context's deadline (5 s if it has none). The error has the
// answer of each server.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	s, err := kv.Open(ctx, NewDriver(cfg), kv.Config{Deployment: cfg.Deployment})
	if err != nil {
		return nil, fmt.Errorf("zookeeper: open %s: %w", strings.Join(cfg.Servers, ","), err)
	}
	return s, nil
}

// Caps returns the capabilities of a store with the default configuration.
func Caps() store.Caps { return (&Driver{cfg: Config{}.withDefaults()}).Caps().Store() }

// Parse reads a Config from a URL: zookeeper://user:password@a:2181,b:2181,c:2181/path.
// User, password and path are optional and may be percent-encoded. Errors do not contain the
// password.
func Parse(address string) (Config, error) {
	rest, ok := strings.CutPrefix(address, "zookeeper://")
	at := strings.LastIndex(rest, "@") + 1
	hosts, path, _ := strings.Cut(rest[at:], "/")
	u, err := url.Parse("zookeeper://" + rest[:at] + "host/" + path) // net/url takes one host only
	if !ok || err != nil || u.Host != "host" || u.RawQuery+u.Fragment != "" {
		return Config{}, &store.ArgumentError{Field: "store", Rule: "must be zookeeper://[user:password@]host[:port][,host[:port]...][/path], percent-encoded"}
	}
	c := Config{Servers: strings.Split(hosts, ","), Path: u.Path, User: u.User.Username()}
	c.Password, _ = u.User.Password()
	c = c.withDefaults()
	err = c.validate()
	return c, err
}

func (c Config) withDefaults() Config {
	c.Path = strings.TrimRight(c.Path, "/")
	c.Path, c.MinTTL = cmp.Or(c.Path, defaultPath), cmp.Or(c.MinTTL, minTTL)
	c.Servers = slices.Clone(c.Servers)
	for i, s := range c.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil && s != "" {
			c.Servers[i] = net.JoinHostPort(strings.Trim(s, "[]"), defaultPort)
		}
	}
	return c
}

func (c *Config) validate() error {
	bad := func(field string, value any, rule string) error {
		return &store.ArgumentError{Field: field, Value: value, Rule: rule}
	}
	for _, s := range c.Servers {
		if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "" || strings.ContainsAny(s, "/ @?#") {
			return bad("server", s, "must be host:port, as in zookeeper://host:port,host:port/path")
		}
	}
	odd := func(part string) bool {
		return part == "" || part == "." || part == ".." || strings.ContainsFunc(part, func(r rune) bool { return r < 0x20 || r > 0x7e })
	}
	parts := strings.Split(c.Path, "/")
	switch {
	case len(c.Servers) == 0:
		return bad("servers", nil, "at least one is needed")
	case parts[0] != "" || slices.ContainsFunc(parts[1:], odd):
		return bad("path", c.Path, "must begin with / and have no empty part, no . and .., and only printable ASCII")
	case parts[1] == "zookeeper":
		return bad("path", c.Path, "is ZooKeeper's own; choose another one")
	case (c.User == "") != (c.Password == "") || strings.Contains(c.User, ":"):
		return bad("user and password", nil, "come together, and the user has no colon")
	case c.MinTTL < 100*time.Millisecond:
		return bad("min ttl", c.MinTTL, "at least 100ms")
	}
	return nil
}

// Driver is a kv.Driver for ZooKeeper.
type Driver struct {
	cfg Config
	acl []zk.ACL

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	next int // the next server; only run uses it

	mu          sync.Mutex
	current     *link
	failed      error         // why there is no current link
	changed     chan struct{} // closed and replaced when current or failed changes
	incarnation incarnation
	high        int64 // the highest index seen
	losses      int   // how often this driver has noticed a loss of data
}

// NewDriver returns the driver without a store. It starts to connect.
func NewDriver(cfg Config) *Driver {
	d := &Driver{cfg: cfg.withDefaults(), acl: zk.WorldACL(zk.PermAll), changed: make(chan struct{})}
	if cfg.User != "" {
		d.acl = zk.AuthACL(zk.PermAll)
	}
	d.next = rand.IntN(max(1, len(cfg.Servers))) // clients spread over the servers
	d.ctx, d.cancel = context.WithCancelCause(context.Background())
	d.work.Go(d.run)
	return d
}

// Close closes the connection.
func (d *Driver) Close() {
	d.mu.Lock()
	d.cancel(kv.ErrClosed)
	d.mu.Unlock()
	d.work.Wait()
}

// start runs f in the background, unless the driver is closed.
func (d *Driver) start(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return false
	}
	d.work.Go(f)
	return true
}
