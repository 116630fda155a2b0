package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Config configures a store in Redis.
type Config struct {
	// Addrs is the host:port of the server. With Master it lists the sentinels: name them all.
	Addrs []string
	// Master is the name under which the sentinels know the master. Default: no sentinels.
	Master string
	// DB is the number of the database. Default 0.
	DB int
	// Username and Password of a Redis user. A password alone is that of the default user.
	Username, Password string
	// SentinelUsername and SentinelPassword are those of the sentinels.
	SentinelUsername, SentinelPassword string
	// TLS for the server and the sentinels. Default: no TLS.
	TLS *tls.Config
	// Prefix of every key. Default "tenure".
	Prefix string
	// Deployment names a prefix that is used for the first time. Default: random. A store
	// that takes the place of another one needs its name, because sinks know it.
	Deployment string
}

const (
	minTTL = time.Second
	maxTTL = 24 * time.Hour
	// lateness: candidates read a beat eight times in its TTL.
	lateness = time.Second
	// maxOps bounds a script, during which Redis serves nobody else.
	maxOps      = 512
	readTimeout = 5 * time.Second
	dialTimeout = 2 * time.Second
	// minVersion is the first with users.
	minVersion = 6
)

// loses is shown to users: see store.Caps.
const loses = "Redis replicates asynchronously: a failover, or a restart without appendfsync always, can lose grants that it acknowledged, " +
	"and then two leaders can have the same token; use it only for work that writes to fenced sinks"

// Store is a store.Store in Redis.
type Store = kv.Store

// Driver is a kv.Driver for Redis.
type Driver struct {
	client  goredis.UniversalClient
	keys    []string // items, order, state
	channel string
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu          sync.Mutex
	work        sync.WaitGroup // calls
	incarnation string         // of the last answer
	seen        time.Time      // when it arrived
}

var _ store.Store = (*Store)(nil)

// Caps returns the capabilities of a store with the default configuration.
func Caps() store.Caps { return (&Driver{keys: []string{""}}).Caps().Store() }

// Parse reads a URL:
//
//	redis://user:password@host:6379/0?prefix=tenure
//	rediss://host:6379                                  (TLS)
//	redis://sentinel-1:26379,sentinel-2:26379/0?master=mymaster
//
// The path is the number of the database. The parameters are prefix, deployment, master,
// sentinel_username and sentinel_password. Errors do not contain the password.
func Parse(text string) (Config, error) {
	bad := func(rule string) error { return &store.ArgumentError{Field: "store URL", Rule: rule} }
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Host == "" || u.Opaque != "" {
		return Config{}, bad("must be redis://[user:password@]host:port[/db] or rediss:// for TLS; encode special characters of the password with %")
	}
	c := Config{Username: u.User.Username()}
	c.Password, _ = u.User.Password()
	if u.Scheme == "rediss" {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		if c.DB, err = strconv.Atoi(db); err != nil {
			return Config{}, bad(fmt.Sprintf("path %q: must be the number of a database", u.Path))
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Config{}, bad("the parameters after ? cannot be read")
	}
	for name, values := range query {
		field := map[string]*string{
			"prefix": &c.Prefix, "deployment": &c.Deployment, "master": &c.Master,
			"sentinel_username": &c.SentinelUsername, "sentinel_password": &c.SentinelPassword,
		}[name]
		if field == nil {
			return Config{}, bad(fmt.Sprintf("parameter %q: must be prefix, deployment, master, sentinel_username or sentinel_password", name))
		}
		*field = values[0]
	}
	port := "6379"
	if c.Master != "" {
		port = "26379"
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if !strings.Contains(strings.TrimPrefix(host, "["), ":") || strings.HasSuffix(host, "]") {
			host = net.JoinHostPort(strings.Trim(host, "[]"), port)
		}
		c.Addrs = append(c.Addrs, host)
	}
	return c, c.validate()
}

// Open connects to Redis and reads the description of the deployment, or writes it at first use.
// Each call to Redis has 5 s if the context has no deadline.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d := NewDriver(cfg)
	err := d.checkServer(ctx)
	if err != nil {
		d.Close()
	} else {
		var s *Store
		if s, err = kv.Open(ctx, d, kv.Config{Deployment: cfg.Deployment}); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("open the store in %s: %w", cfg.where(), err)
}

func (c Config) where() string {
	if c.Master != "" {
		return fmt.Sprintf("Redis master %q of the sentinels at %s", c.Master, strings.Join(c.Addrs, ","))
	}
	return fmt.Sprintf("Redis at %s, database %d", c.Addrs[0], c.DB)
}

func (c Config) validate() error {
	for _, a := range c.Addrs {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" || strings.ContainsAny(a, "/ ") {
			return &store.ArgumentError{Field: "address", Value: a, Rule: "must be host:port"}
		}
	}
	switch {
	case len(c.Addrs) == 0:
		return &store.ArgumentError{Field: "addresses", Rule: "at least one is needed"}
	case len(c.Addrs) > 1 && c.Master == "":
		return &store.ArgumentError{Field: "addresses", Value: strings.Join(c.Addrs, ","), Rule: "several are sentinels: name the master; Redis Cluster is not supported"}
	case c.DB < 0:
		return &store.ArgumentError{Field: "database", Value: c.DB, Rule: "must not be negative"}
	case c.Username != "" && c.Password == "":
		return &store.ArgumentError{Field: "password", Rule: "the user needs one"}
	case strings.ContainsAny(c.Prefix, "{} \n"):
		return &store.ArgumentError{Field: "prefix", Value: c.Prefix, Rule: "must have no braces, spaces or line ends"}
	}
	return nil
}

// NewDriver returns the driver without a store. It connects with its first call.
func NewDriver(cfg Config) *Driver {
	at := "{" + cmp.Or(cfg.Prefix, "tenure") + "}:" // one hash tag for all keys
	d := &Driver{keys: []string{at + "items", at + "order", at + "state"}, channel: at + "changes"}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	// The client must not retry a commit whose reply was lost: it would find its own effect and
	// report that a condition failed.
	const noRetries = -1
	d.client = goredis.NewUniversalClient(&goredis.UniversalOptions{
		Addrs: cfg.Addrs, MasterName: cfg.Master, SentinelUsername: cfg.SentinelUsername, SentinelPassword: cfg.SentinelPassword,
		Protocol: 2, Username: cfg.Username, Password: cfg.Password, DB: cfg.DB, TLSConfig: cfg.TLS,
		MaxRetries: noRetries, DialTimeout: dialTimeout, DialerRetries: 1, ReadTimeout: readTimeout, ContextTimeoutEnabled: true,
		DisableIdentity: true, PipelinePoolSize: -1,
	})
	return d
}

// Close closes the connections.
func (d *Driver) Close() {
	d.mu.Lock()
	d.cancel()
	d.mu.Unlock()
	_ = d.client.Close()
	d.work.Wait()
}

// noteIncarnation notes the incarnation that answered.
func (d *Driver) noteIncarnation(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.incarnation, d.seen = id, time.Now()
}

func (d *Driver) lastSeen() (incarnation string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.incarnation, d.seen
}

// run runs a script.
func (d *Driver) run(ctx context.Context, what string, s *goredis.Script, args []any) ([]any, error) {
	var reply []any
	err := d.call(ctx, what, func(ctx context.Context) (err error) {
		reply, err = s.Run(ctx, d.client, d.keys, args...).Slice()
		return err
	})
	if err != nil {
		return nil, err // the call may still write to reply
	}
	return reply, nil
}

// call runs f with a timeout and returns when ctx ends. The Redis client obeys the deadline of a
// context, but not its cancellation.
func (d *Driver) call(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return fmt.Errorf("redis: %s: %w", what, context.Cause(ctx))
	}
	d.mu.Lock()
	if d.ctx.Err() != nil {
		d.mu.Unlock()
		return kv.ErrClosed
	}
	done := make(chan error, 1)
	d.work.Go(func() { done <- f(ctx) })
	d.mu.Unlock()
	select {
	case err := <-done:
		return explain(what, err)
	case <-ctx.Done():
		return fmt.Errorf("redis: %s: %w", what, context.Cause(ctx))
	}
}

// explain marks permanent errors, and adds the remedy.
func explain(what string, err error) error {
	says := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return goredis.HasErrorPrefix(err, p) })
	}
	switch {
	case err == nil:
		return nil
	case says("NOAUTH", "WRONGPASS", "AUTH", "invalid password"):
		return fmt.Errorf("redis: %s: %w: %w: check the user and the password", what, err, store.ErrUnauthenticated)
	case says("NOPERM") || strings.Contains(err.Error(), "ACL failure in script"):
		return fmt.Errorf("redis: %s: %w: %w: see the package comment for the rights", what, err, store.ErrDenied)
	case says("READONLY"):
		return fmt.Errorf("redis: %s: the server is a replica; connect to the master, or name the sentinels: %w", what, err)
	}
	return fmt.Errorf("redis: %s: %w", what, err)
}

// checkServer refuses a server that cannot keep the data.
func (d *Driver) checkServer(ctx context.Context) error {
	var info string
	err := d.call(ctx, "read the version", func(ctx context.Context) (err error) {
		info, err = d.client.Info(ctx).Result()
		return err
	})
	if err != nil {
		return err
	}
	field := func(name string) string {
		_, rest, _ := strings.Cut("\n"+info, "\n"+name+":")
		value, _, _ := strings.Cut(rest, "\r")
		return value
	}
	major, _, _ := strings.Cut(field("redis_version"), ".")
	if n, err := strconv.Atoi(major); err == nil && n < minVersion {
		return &store.ArgumentError{Field: "redis version", Value: field("redis_version"), Rule: fmt.Sprintf("must be at least %d", minVersion)}
	}
	if field("redis_mode") == "cluster" {
		return &store.ArgumentError{Field: "redis mode", Value: "cluster", Rule: "Redis Cluster is not supported: use one server or sentinels"}
	}
	if policy := field("maxmemory_policy"); strings.HasPrefix(policy, "allkeys-") {
		return &store.ArgumentError{Field: "maxmemory-policy", Value: policy, Rule: "Redis would delete records when its memory is full: set noeviction or a volatile policy"}
	}
	missing, err := d.run(ctx, "check the rights", rightsScript, []any{d.channel})
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("redis: the user may not run %s: %w: see the package comment for the rights", missing[0], store.ErrDenied)
	}
	return err
}
