package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/lease"
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
	// and a half election timeouts, in whole seconds. Default 2 s, which is right
	// for etcd's own defaults.
	MinTTL time.Duration
}

const (
	defaultPrefix = "/tenure"
	// maxTTL is far below what etcd takes, and above what anybody means.
	maxTTL = 24 * time.Hour
	// batch keeps a transaction inside etcd's default of 128 operations, with two
	// puts and a delete for each record.
	batch = 40
	// defaultCall bounds calls whose context has no deadline.
	defaultCall = 5 * time.Second
)

// Store is a lease.Store in etcd.
type Store struct {
	cfg     Config
	members []*member
	ctx     context.Context // ends with Shutdown
	cancel  context.CancelFunc

	mu        sync.Mutex
	preferred int
	meta      *meta
	known     memory
	revoking  int
	work      sync.WaitGroup

	// What a session says of itself never changes, and its id is never used again.
	sessions memo[lease.SessionID, lease.Session]
	// Leases of Opens whose outcome is unknown.
	openings memo[openingKey, opening]
}

var _ lease.Store = (*Store)(nil)

// Open connects to the cluster and reads, or at first use writes, what belongs to
// the deployment. It fails within the context's deadline (5 s if it has none)
// with what each endpoint said.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = defaultPrefix
	}
	cfg.Prefix = strings.TrimRight(cfg.Prefix, "/")
	if cfg.MinTTL == 0 {
		cfg.MinTTL = 2 * time.Second
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, e := range cfg.Endpoints {
		s.members = append(s.members, &member{endpoint: e, cfg: &s.cfg})
	}
	if _, err := s.loadMeta(ctx); err != nil {
		if !answered(err) && !lease.Permanent(err) {
			err = errors.Join(s.diagnose(ctx), err)
		}
		s.Shutdown()
		return nil, fmt.Errorf("etcd: opening %s: %w", strings.Join(cfg.Endpoints, ","), err)
	}
	return s, nil
}

func (c *Config) validate() error {
	if len(c.Endpoints) == 0 {
		return &lease.ArgumentError{Field: "endpoints", Rule: "at least one is needed"}
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
			return &lease.ArgumentError{Field: "endpoint", Value: e, Rule: "host:port, with http:// or https:// before it, or unix:///path"}
		}
		if !secure && c.TLS != nil {
			return &lease.ArgumentError{Field: "endpoint", Value: e, Rule: "must begin with https:// when TLS is set"}
		}
	}
	switch {
	case !strings.HasPrefix(c.Prefix, "/") || strings.Contains(c.Prefix, "//"):
		return &lease.ArgumentError{Field: "prefix", Value: c.Prefix, Rule: "must begin with / and have no empty part"}
	case (c.Username == "") != (c.Password == ""):
		return &lease.ArgumentError{Field: "username and password", Rule: "come together"}
	case c.MinTTL < time.Second || c.MinTTL%time.Second != 0:
		return &lease.ArgumentError{Field: "min ttl", Value: c.MinTTL, Rule: "whole seconds, at least one: etcd counts in them"}
	}
	return nil
}

// Shutdown closes the connections. Sessions live on until they expire.
func (s *Store) Shutdown() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	for _, m := range s.members {
		m.close()
	}
	s.work.Wait()
}

// Limits implements lease.Store.
func (s *Store) Limits() lease.Limits {
	return lease.Limits{MinTTL: s.cfg.MinTTL, MaxTTL: maxTTL, Batch: batch}
}

var errShutdown = errors.New("etcd: the store was shut down")
