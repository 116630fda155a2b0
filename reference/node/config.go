package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/reference/config"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node/failover"
	"github.com/tenurehq/tenure/server/engines"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// The values of Config.Store that are no URL.
const (
	StoreRaft = "raft"
	// StoreMem is for a single node: its elections die with the process.
	StoreMem = "mem"
)

// Config configures a node. ID, Group, Listen, Store and Ledger are required.
type Config struct {
	// ID names the node in its fleet. Group is what the fleet elects a leader of. Both are
	// names that store.ValidName accepts.
	ID, Group string
	// Listen is host:port for HTTP; port 0 is a free one.
	Listen string
	// Advertise is the URL at which others reach the node. Default http:// and the
	// address that is listened on.
	Advertise string
	// Hosts are names by which callers reach the node, besides localhost, the hosts of
	// Listen and Advertise, and every IP address. Requests to other names are refused.
	Hosts []string
	// Insecure allows addresses that other hosts can reach.
	Insecure bool

	// Store is raft, mem, or the URL of an engine: see package engines.
	Store string
	// Password is that of the user in the URL, TLS is for etcd.
	Password string
	TLS      TLSFiles
	// Peers (id to host:port, this node among them) and DataDir are for raft, TLS too.
	Peers   map[string]string
	DataDir string
	// ElectionTimeout is how long a Raft follower waits for its leader. Default 1s.
	ElectionTimeout time.Duration

	// Ledger is the URL of the ledger; the group is its resource.
	Ledger string
	// Workers are the URLs of the workers. There may be none.
	Workers []string

	// Keeper, if set, ends the session of this process when it dies: a pulse.Client.
	Keeper Keeper

	// Timing is that of the lease. A zero field has its default.
	lease.Timing

	// Tick is the time between the scheduler's ticks. Default 1s.
	Tick time.Duration
	// MisfireGrace is how late a firing may be without being a misfire. Default two
	// ticks, at least 2s.
	MisfireGrace time.Duration
	// RTO is the time that a failover may take. Each phase has a share of it. Default 30s.
	RTO time.Duration
	// SinkPatience is how long the ledger may be unreachable before a leader steps down.
	// Default the TTL (with Raft, 5s).
	SinkPatience time.Duration
	// Batch is the most callers of /next that share a write; 1 commits each call alone.
	// Default 8192.
	Batch int
	// WriteTimeout bounds each write of the leader. Default the TTL, from 1s to 5s.
	WriteTimeout time.Duration
	// StopTimeout is how long a leader that is asked to stop may take to hand over. Then
	// Exit, if set, is called with lease.OverrunExitCode: a process that hangs must not keep
	// the group. Default the TTL (with Raft, 5s).
	StopTimeout time.Duration
	Exit        func(code int)
	// AdminCredentialFile holds the bearer credential with which callers from other hosts can ask
	// for a resignation or a transfer.
	AdminCredentialFile string

	// Hooks are for experiments. Default none.
	Hooks Hooks

	// HTTP are the limits of the server.
	HTTP httpapi.Limits
	// Log, by default slog.Default.
	Log *slog.Logger
}

// Keeper is a lease.Keeper that can say whether it has every session.
type Keeper interface {
	lease.Keeper
	Wait(ctx context.Context) error
}

// TLSFiles are PEM files; all three or none.
type TLSFiles struct{ Cert, Key, CA string }

func (f TLSFiles) load() (*tls.Config, error) {
	switch {
	case f == TLSFiles{}:
		return nil, nil
	case f.CA == "":
		return nil, config.Errorf("ca", "must be given with cert and key: it signs the certificates of the others")
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, config.Errorf("ca", "%v", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, config.Errorf("ca", "%s holds no certificate", f.CA)
	}
	cfg := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if f.Cert != "" || f.Key != "" {
		cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, config.Errorf("cert", "%v", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

// ConfigError: this configuration can never work.
type ConfigError = config.Error

func (c Config) withDefaults() Config {
	c.Tick = cmp.Or(c.Tick, time.Second)
	ttl := c.Timing.Resolve().TTL
	// A lease that is longer than the share of the default needs a larger target.
	c.RTO = cmp.Or(c.RTO, max(30*time.Second, (ttl*30/failover.DetectOf30).Round(time.Second)+time.Second))
	if c.Store == StoreRaft {
		c.ElectionTimeout = cmp.Or(c.ElectionTimeout, time.Second)
		ttl = 5 * time.Second
	}
	c.SinkPatience, c.StopTimeout = cmp.Or(c.SinkPatience, ttl), cmp.Or(c.StopTimeout, ttl)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, min(max(ttl, time.Second), 5*time.Second))
	c.Batch = cmp.Or(c.Batch, 8192)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// ttl is how long the others wait for a silent leader.
func (c Config) ttl() time.Duration {
	if c.Store == StoreRaft {
		return c.ElectionTimeout
	}
	return c.Timing.Resolve().TTL
}

// Validate returns every broken rule, as a ConfigError or as an error of the engine.
func (c Config) Validate() error {
	var all config.Errors
	name := func(field, s string) {
		if !store.ValidName(s) {
			all.Add(field, "%q: 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", s)
		}
	}
	name("id", c.ID)
	name("group", c.Group)
	all.Check(c.local())
	if c.Advertise != "" && !isURL(c.Advertise) {
		all.Add("advertise", "%q is not a URL such as http://10.0.0.1:7401", redacted(c.Advertise))
	}
	switch {
	case c.Ledger == "":
		all.Add("ledger", "the URL of the ledger must be given, such as http://127.0.0.1:7420")
	case !isURL(c.Ledger):
		all.Add("ledger", "%q is not the URL of a ledger, such as http://127.0.0.1:7420", redacted(c.Ledger))
	}
	for _, w := range c.Workers {
		if !isURL(w) {
			all.Add("workers", "%q is not the URL of a worker, such as http://127.0.0.1:7430", redacted(w))
		}
	}
	c.validateStore(&all)
	d := c.withDefaults()
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"tick", d.Tick}, {"rto", d.RTO}, {"sink-patience", d.SinkPatience}, {"write-timeout", d.WriteTimeout}, {"stop-timeout", d.StopTimeout}} {
		if f.d < time.Millisecond {
			all.Add(f.name, "%v must be at least 1ms", f.d)
		}
	}
	if ttl := c.Timing.Resolve().TTL; c.Store != StoreRaft && d.RTO*failover.DetectOf30/30 < ttl {
		all.Add("rto", "%v leaves %v to detect a crash, which takes as long as a lease, %v: raise --rto to %v, or lower --lease-ttl", d.RTO, d.RTO*failover.DetectOf30/30, ttl, (ttl*30/failover.DetectOf30).Round(time.Second)+time.Second)
	}
	if c.Batch < 0 {
		all.Add("batch", "%d must not be negative", c.Batch)
	}
	if c.MisfireGrace < 0 {
		all.Add("misfire-grace", "%v must not be negative", c.MisfireGrace)
	}
	return all.Join()
}

// Backend names the engine.
func (c Config) Backend() string {
	if e, err := engines.Find(c.Store); err == nil {
		return e.Caps.Engine
	}
	return c.Store
}

func (c Config) validateStore(all *config.Errors) {
	if c.Store == StoreRaft {
		if c.Timing != (lease.Timing{}) {
			all.Add("lease-ttl, renew-interval, misses", "Raft has no lease; --election-timeout says how long a crash goes unnoticed")
		}
		all.Check(c.raft("").Validate())
		return
	}
	for field, given := range map[string]bool{"peers": len(c.Peers) > 0, "data-dir": c.DataDir != "", "election-timeout": c.ElectionTimeout != 0} {
		if given {
			all.Add(field, "is for --store=raft, and this is %s", engines.Redact(c.Store))
		}
	}
	if c.Store != StoreMem {
		if err := engines.Check(c.Store, engines.Options{Password: c.Password}); err != nil {
			all.Add("store", "%v, raft, or mem for a single node", err)
		}
	}
	all.Check(c.Timing.Resolve().Validate())
}

// local refuses an address that other hosts can reach, unless Insecure allows it.
func (c Config) local() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return config.Errorf("listen", "%q is not host:port", c.Listen)
	}
	if c.Insecure || host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return config.Errorf("listen", "%s can be reached from other hosts, and a node answers everybody: use a loopback address, or give --insecure", c.Listen)
	}
	return nil
}

// redacted is a URL without its password.
func redacted(s string) string {
	if u, err := url.Parse(s); err == nil {
		return u.Redacted()
	}
	return "…" // it may hold anything
}

// isURL accepts only URLs that can be logged and recorded: without a password, and not too long.
func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && u.User == nil && len(s) <= ledgerapi.MaxName &&
		(u.Scheme == "http" || u.Scheme == "https") && !strings.ContainsAny(s, " \n")
}
