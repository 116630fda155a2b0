package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Config says where the cluster is.
type Config struct {
	// Endpoints of the members, such as "https://10.0.0.1:2379", or "unix:///path" for a
	// member on this host. Name them all.
	Endpoints []string
	// Prefix of every key. Default "/tenure".
	Prefix string
	// TLS for https endpoints.
	TLS *tls.Config
	// Username and Password of an etcd user with read and write on the prefix.
	Username, Password string
	// MinTTL is the shortest lease that the cluster grants: etcd rounds up to one
	// and a half election timeouts, in whole seconds. Default 2 s, which fits etcd's
	// default configuration.
	MinTTL time.Duration
	// Deployment names a prefix that is used for the first time. Default: random. A store
	// that takes the place of another one needs its name, because sinks know it.
	Deployment string
	// Observed: candidates end silent sessions, instead of etcd's leases. See package kv. It
	// allows a TTL below etcd's minimum, and an etcd leader that was paused cannot end living
	// sessions. Each keep-alive then is a write.
	Observed bool
}

// Format is the version of what is stored.
const Format = kv.Format

const (
	defaultPrefix = "/tenure"
	// maxTTL is far below etcd's own limit.
	maxTTL = 24 * time.Hour
	// lateness: etcd looks for expired leases twice a second.
	lateness = 500 * time.Millisecond
	// maxOps is etcd's default limit for each part of a transaction.
	maxOps = 128
)

// Store is a store.Store in etcd.
type Store = kv.Store

// Driver knows etcd's keys, leases and members.
type Driver struct {
	cfg     Config
	members []*member
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	beats beats

	mu        sync.Mutex
	preferred int
	term      uint64         // Raft term of the last search for the leader
	work      sync.WaitGroup // searches for the leader
}

var _ store.Store = (*Store)(nil)

// Open connects to the cluster and reads the description of the deployment, or writes it at
// first use. It fails within the context's deadline (5 s if it has none). The error has the
// answer of each endpoint.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d := NewDriver(cfg)
	s, err := kv.Open(ctx, d, kv.Config{Deployment: cfg.Deployment})
	if err != nil {
		if !answered(err) && !store.Permanent(err) {
			err = errors.Join(d.diagnose(ctx), err)
		}
		return nil, fmt.Errorf("etcd: opening %s: %w", strings.Join(cfg.Endpoints, ","), err)
	}
	d.work.Wait() // so that a watch begins at the leader
	return s, nil
}

// Caps returns the capabilities of a store with the default configuration.
func Caps() store.Caps { return (&Driver{cfg: Config{}.withDefaults()}).Caps().Store() }

// Parse reads "etcd://user@host:port,host:port/prefix", or "etcds://…" for TLS with the CAs of
// the system.
func Parse(raw string) (Config, error) {
	scheme, rest, _ := strings.Cut(raw, "://")
	var cfg Config
	to := "http://"
	if scheme == "etcds" {
		to, cfg.TLS = "https://", &tls.Config{MinVersion: tls.VersionTLS12}
	}
	hosts, prefix, ok := strings.Cut(rest, "/")
	if ok && prefix != "" {
		cfg.Prefix = "/" + prefix
	}
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		var err [2]error
		user, password, _ := strings.Cut(hosts[:at], ":")
		cfg.Username, err[0] = url.PathUnescape(user)
		cfg.Password, err[1] = url.PathUnescape(password)
		if errors.Join(err[:]...) != nil {
			scheme = ""
		}
		hosts = hosts[at+1:]
	}
	for host := range strings.SplitSeq(hosts, ",") {
		_, port, err := net.SplitHostPort(host)
		if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil {
			scheme = ""
		}
		cfg.Endpoints = append(cfg.Endpoints, to+host)
	}
	if scheme != "etcd" && scheme != "etcds" {
		return Config{}, &store.ArgumentError{Field: "etcd URL", Rule: "it is malformed; use etcd://host:port,host:port/prefix"} // without the URL: it may have a password
	}
	return cfg, nil
}

func (c Config) withDefaults() Config {
	c.Prefix = strings.TrimRight(cmp.Or(c.Prefix, defaultPrefix), "/")
	c.MinTTL = cmp.Or(c.MinTTL, 2*time.Second)
	return c
}

// NewDriver returns the driver without a store. It connects with its first call.
func NewDriver(cfg Config) *Driver {
	d := &Driver{cfg: cfg.withDefaults()}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	for _, e := range cfg.Endpoints {
		d.members = append(d.members, &member{endpoint: e, cfg: &d.cfg})
	}
	return d
}

func (c *Config) validate() error {
	if len(c.Endpoints) == 0 {
		return &store.ArgumentError{Field: "endpoints", Rule: "at least one is needed"}
	}
	for _, e := range c.Endpoints {
		if strings.HasPrefix(e, "unix:///") && c.TLS == nil {
			continue
		}
		host, _ := strings.CutPrefix(e, "http://")
		secure := strings.HasPrefix(e, "https://")
		if secure {
			host = strings.TrimPrefix(e, "https://")
		}
		if host == "" || strings.ContainsAny(host, "/ ") {
			return &store.ArgumentError{Field: "endpoint", Value: e, Rule: "host:port, with http:// or https:// before it, or unix:///path"}
		}
		if !secure && c.TLS != nil {
			return &store.ArgumentError{Field: "endpoint", Value: e, Rule: "must begin with https:// when TLS is set"}
		}
	}
	switch {
	case !strings.HasPrefix(c.Prefix, "/") || strings.Contains(c.Prefix, "//"):
		return &store.ArgumentError{Field: "prefix", Value: c.Prefix, Rule: "must begin with / and have no empty part"}
	case (c.Username == "") != (c.Password == ""):
		return &store.ArgumentError{Field: "username and password", Rule: "come together"}
	case !c.Observed && (c.MinTTL < time.Second || c.MinTTL%time.Second != 0):
		return &store.ArgumentError{Field: "min ttl", Value: c.MinTTL, Rule: "whole seconds, at least one: etcd counts in them"}
	}
	return nil
}

// Close closes the connections.
func (d *Driver) Close() {
	d.mu.Lock()
	d.cancel()
	d.mu.Unlock()
	d.work.Wait()
	d.beats.close()
	for _, m := range d.members {
		m.close()
	}
}
