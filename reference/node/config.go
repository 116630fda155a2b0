package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lease"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// The backends.
const (
	BackendEtcd = "etcd"
	BackendRaft = "raft"
	// BackendMem is for a single node: its elections die with the process.
	BackendMem = "mem"
)

// Config is what a node is told. ID, Group, Listen, Backend and Ledger are required.
type Config struct {
	// ID names the node in its fleet, Group what the fleet elects a leader of. Both are
	// names as lease.ValidName wants them.
	ID, Group string
	// Listen is host:port for HTTP; port 0 is a free one.
	Listen string
	// Advertise is the URL at which others reach the node. Default http:// and the
	// address that is listened on.
	Advertise string
	// Hosts are names by which callers reach the node, besides localhost, the hosts of
	// Listen and Advertise, and every IP address. Requests to other names are refused.
	Hosts []string
	// Insecure allows to listen beyond loopback.
	Insecure bool

	// Backend is etcd, raft or mem.
	Backend string
	// Endpoints, Prefix, Username, Password and TLS are for etcd.
	Endpoints          []string
	Prefix             string
	Username, Password string
	TLS                TLSFiles
	// Peers (id to host:port, this node among them) and DataDir are for raft, TLS too.
	Peers   map[string]string
	DataDir string
	// ElectionTimeout is a Raft follower's patience. Default 1s.
	ElectionTimeout time.Duration

	// Ledger is the URL of the ledger; the group is its resource.
	Ledger string
	// Workers are the URLs of the workers. There may be none.
	Workers []string

	// Timing is that of the lease; the zero value of a field is its default.
	lease.Timing

	// Tick is the time between the scheduler's ticks. Default 1s.
	Tick time.Duration
	// MisfireGrace is how late a firing may be without being a misfire. Default two
	// ticks, at least 2s.
	MisfireGrace time.Duration
	// RTO is the time that a failover may take, of which each phase has a share.
	// Default 30s.
	RTO time.Duration
	// SinkPatience is how long the ledger may be out of reach before a leader steps
	// down. Default the TTL (of Raft, 5s).
	SinkPatience time.Duration
	// Batch is how many callers of /next share a write at most; 1 commits each call
	// alone. Default 8192.
	Batch int
	// WriteTimeout bounds each write of the leader. Default the TTL, from 1s to 5s.
	WriteTimeout time.Duration
	// StopTimeout is how long a leader that is asked to end may take to hand over; then
	// Exit, if it is set, is called with lease.OverrunExitCode: a process that hangs must
	// not keep the group. Default the TTL (of Raft, 5s).
	StopTimeout time.Duration
	Exit        func(code int)
	// AdminTokenFile holds the bearer credential that lets callers from other hosts ask
	// for a resignation or a transfer.
	AdminTokenFile string

	// Hooks are for experiments. Default none.
	Hooks Hooks

	// HTTP are the limits of the server.
	HTTP httpapi.Limits
	// Log, by default slog.Default.
	Log *slog.Logger
}

// TLSFiles are PEM files; all three or none.
type TLSFiles struct{ Cert, Key, CA string }

func (f TLSFiles) load() (*tls.Config, error) {
	switch {
	case f == TLSFiles{}:
		return nil, nil
	case f.CA == "":
		return nil, &ConfigError{"ca", "must be given with cert and key: who signs the certificates of the others"}
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, &ConfigError{"ca", err.Error()}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, &ConfigError{"ca", f.CA + " holds no certificate"}
	}
	cfg := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if f.Cert != "" || f.Key != "" {
		cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, &ConfigError{"cert", err.Error()}
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

// ConfigError: this configuration cannot be run, whatever the others say.
type ConfigError struct {
	Field string
	Rule  string
}

func (e *ConfigError) Error() string { return e.Field + ": " + e.Rule }

func (c Config) withDefaults() Config {
	or := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	or(&c.Tick, time.Second)
	if c.Backend == BackendRaft {
		or(&c.ElectionTimeout, time.Second)
		or(&c.SinkPatience, 5*time.Second)
		or(&c.WriteTimeout, 5*time.Second)
		or(&c.StopTimeout, 5*time.Second)
	}
	ttl := c.Timing.Resolve().TTL
	// A lease that outlasts the share of the default needs a larger target.
	or(&c.RTO, max(30*time.Second, (ttl*30/detectOf30).Round(time.Second)+time.Second))
	or(&c.SinkPatience, ttl)
	or(&c.StopTimeout, ttl)
	or(&c.WriteTimeout, min(max(ttl, time.Second), 5*time.Second))
	if c.Batch == 0 {
		c.Batch = 8192
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// ttl is how long a leader that has fallen silent is waited for.
func (c Config) ttl() time.Duration {
	if c.Backend == BackendRaft {
		return c.ElectionTimeout
	}
	return c.Timing.Resolve().TTL
}

// Validate says which rules are broken, each as a ConfigError or in the words of the
// backend.
func (c Config) Validate() error {
	var all []error
	bad := func(field, format string, args ...any) {
		all = append(all, &ConfigError{Field: field, Rule: fmt.Sprintf(format, args...)})
	}
	name := func(field, s string) {
		if !lease.ValidName(s) {
			bad(field, "%q: 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", s)
		}
	}
	name("id", c.ID)
	name("group", c.Group)
	if err := c.local(); err != nil {
		all = append(all, err)
	}
	if c.Advertise != "" && !isURL(c.Advertise) {
		bad("advertise", "%q is not a URL such as http://10.0.0.1:7401", redacted(c.Advertise))
	}
	switch {
	case c.Ledger == "":
		bad("ledger", "the URL of the ledger must be given, such as http://127.0.0.1:7420")
	case !isURL(c.Ledger):
		bad("ledger", "%q is not the URL of a ledger, such as http://127.0.0.1:7420", redacted(c.Ledger))
	}
	for _, w := range c.Workers {
		if !isURL(w) {
			bad("workers", "%q is not the URL of a worker, such as http://127.0.0.1:7430", redacted(w))
		}
	}
	all = append(all, c.validateBackend(bad)...)
	d := c.withDefaults()
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"tick", d.Tick}, {"rto", d.RTO}, {"sink-patience", d.SinkPatience}, {"write-timeout", d.WriteTimeout}, {"stop-timeout", d.StopTimeout}} {
		if f.d < time.Millisecond {
			bad(f.name, "%v must be at least 1ms", f.d)
		}
	}
	if ttl := c.Timing.Resolve().TTL; c.Backend != BackendRaft && d.RTO*detectOf30/30 < ttl {
		bad("rto", "%v leaves %v to detect a crash, which takes as long as a lease, %v: raise -rto to %v, or lower -lease-ttl", d.RTO, d.RTO*detectOf30/30, ttl, (ttl*30/detectOf30).Round(time.Second)+time.Second)
	}
	if c.Batch < 0 {
		bad("batch", "%d must not be negative", c.Batch)
	}
	if c.MisfireGrace < 0 {
		bad("misfire-grace", "%v must not be negative", c.MisfireGrace)
	}
	return errors.Join(all...)
}

func (c Config) validateBackend(bad func(field, format string, args ...any)) []error {
	only := func(field string, given bool, backends string) {
		if given {
			bad(field, "belongs to -backend=%s, and this is %s", backends, c.Backend)
		}
	}
	switch c.Backend {
	case BackendEtcd, BackendMem:
		only("peers", len(c.Peers) > 0, BackendRaft)
		only("data-dir", c.DataDir != "", BackendRaft)
		only("election-timeout", c.ElectionTimeout != 0, BackendRaft)
		if c.Backend == BackendEtcd && len(c.Endpoints) == 0 {
			bad("endpoints", "where etcd is must be given, such as http://127.0.0.1:2379")
		}
		if c.Backend == BackendMem {
			only("endpoints", len(c.Endpoints) > 0, BackendEtcd)
		}
		return []error{c.Timing.Resolve().Validate()}
	case BackendRaft:
		only("endpoints", len(c.Endpoints) > 0, BackendEtcd)
		if c.Timing != (lease.Timing{}) {
			bad("lease-ttl, renew-interval, misses", "Raft has no lease: -election-timeout says how long a crash goes unnoticed")
		}
		return []error{c.raft("").Validate()}
	case "":
		bad("backend", "must be given: etcd, raft or mem")
	default:
		bad("backend", "%q is not known: etcd, raft or mem", c.Backend)
	}
	return nil
}

// local refuses an address that others can reach, unless that was asked for.
func (c Config) local() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return &ConfigError{"listen", fmt.Sprintf("%q is not host:port", c.Listen)}
	}
	if c.Insecure || host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return &ConfigError{"listen", c.Listen + " can be reached from other hosts, and a node answers everybody: use a loopback address, or say -insecure"}
	}
	return nil
}

// redacted is a URL without what must not be printed.
func redacted(s string) string {
	if u, err := url.Parse(s); err == nil {
		return u.Redacted()
	}
	return "…" // it may hold anything
}

// isURL: what is logged and written down carries no password, and has room there.
func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && u.User == nil && len(s) <= ledgerapi.MaxName &&
		(u.Scheme == "http" || u.Scheme == "https") && !strings.ContainsAny(s, " \n")
}
