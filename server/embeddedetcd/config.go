package embeddedetcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/tenurehq/tenure/store"
)

// Config says what to run. The zero Config is one member in a temporary directory that
// listens on no port, so only this user can reach it.
type Config struct {
	// Name of this member among Members, a valid candidate name. Default "engine".
	Name string
	// DataDir holds the log and the database. It is created with mode 0700. Default: a
	// temporary directory that Stop removes, for a member alone.
	DataDir string

	// ClientURL is the URL or host:port to serve clients on; port 0 is a free one. Every
	// process that can reach it can depose any leader, unless ClientTLS has a CA. Default: no
	// port, but a unix socket below DataDir that only this user can reach.
	ClientURL string
	// AdvertiseClientURL is what other members tell clients about this one. Default
	// ClientURL; required if that is every address of the host.
	AdvertiseClientURL string
	// PeerURL is the URL or host:port to listen on for other members. Default: this member's
	// URL in Members; alone it does not listen.
	PeerURL string
	// Members are all members of the cluster, each as "name=peer URL", an odd number.
	// Default: this member alone.
	Members []string

	// Tick is the time between heartbeats of the engine's own leader. Election is how long
	// the others wait for one: at least 5 × Tick, at most 50 s. Both are whole milliseconds.
	// The shortest TTL that is granted is 1.5 × Election, rounded up to seconds. Default 100
	// ms and 1 s.
	Tick, Election time.Duration

	// ClientTLS and PeerTLS are for the two listeners. Beyond loopback they are required.
	ClientTLS, PeerTLS TLS
	// Insecure allows to listen beyond loopback without TLS: every process that can reach the
	// port can then depose any leader.
	Insecure bool

	// SnapshotCount is after how many commits the log is truncated. Default 10,000.
	SnapshotCount uint64
	// Quota is the size of the database in bytes above which writes are refused, from 16 MiB
	// to 8 GiB. Default 2 GiB.
	Quota int64
	// AutoCompaction is how long old versions are kept, at least a minute. Default 1 h.
	AutoCompaction time.Duration

	// ReadyTimeout bounds Start. Default 15 s alone, 60 s in a cluster.
	ReadyTimeout time.Duration
	// StopTimeout bounds Stop. Default 10 s.
	StopTimeout time.Duration

	// Logger receives notices. Default none.
	Logger *slog.Logger
	// Debug also passes etcd's own log to Logger.
	Debug bool
}

// TLS names the files of one listener, in PEM.
type TLS struct {
	Cert, Key string
	// CA signs the certificates that may connect. Peers need it.
	CA string
}

func (t TLS) set() bool { return t != TLS{} }

func (t TLS) info() transport.TLSInfo {
	return transport.TLSInfo{CertFile: t.Cert, KeyFile: t.Key, TrustedCAFile: t.CA, ClientCertAuth: t.CA != ""}
}

// ConfigError is a setting that breaks a rule.
type ConfigError struct {
	Field, Rule string
}

func (e *ConfigError) Error() string { return e.Field + ": " + e.Rule }

const (
	mib = 1 << 20

	minQuota      = 16 * mib
	maxQuota      = 8 << 30
	minCompaction = time.Minute
	maxElection   = 50 * time.Second // etcd's own bound
	manyMembers   = 7
)

// member is one entry of Members.
type member struct {
	name string
	url  *url.URL
}

func (m member) String() string { return m.name + " (" + m.url.String() + ")" }

// plan is a valid Config.
type plan struct {
	Config
	members           []member // with this one
	client, advertise *url.URL // nil: a unix socket, whose path depends on the directory
	peer              *url.URL // to listen on; nil: alone
	notices           []string
}

func (p *plan) alone() bool { return len(p.members) == 1 }

// Validate returns a ConfigError for each broken rule, joined. It does not check the machine.
func (c Config) Validate() error {
	_, err := c.plan()
	return err
}

func (c Config) plan() (*plan, error) {
	c.Name = cmp.Or(c.Name, "engine")
	c.Tick, c.Election = cmp.Or(c.Tick, 100*time.Millisecond), cmp.Or(c.Election, time.Second)
	c.SnapshotCount, c.Quota = cmp.Or(c.SnapshotCount, 10_000), cmp.Or(c.Quota, 2<<30)
	c.AutoCompaction, c.StopTimeout = cmp.Or(c.AutoCompaction, time.Hour), cmp.Or(c.StopTimeout, 10*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))

	p := &plan{Config: c}
	var b broken
	b.rule(store.ValidName(c.Name), "name", "%q must be 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", c.Name)
	p.cluster(&b)
	p.addresses(&b)
	p.times(&b)
	b.rule(c.Quota >= minQuota && c.Quota <= maxQuota, "quota", "%d bytes must be from %d MiB to %d GiB", c.Quota, minQuota/mib, maxQuota>>30)
	p.certificates(&b)
	if len(b) > 0 {
		return nil, errors.Join(b...)
	}
	return p, nil
}

// broken collects broken rules.
type broken []error

func (b *broken) rule(holds bool, field, format string, args ...any) bool {
	if !holds {
		*b = append(*b, &ConfigError{Field: field, Rule: fmt.Sprintf(format, args...)})
	}
	return holds
}

func (p *plan) notice(format string, args ...any) {
	p.notices = append(p.notices, fmt.Sprintf(format, args...))
}

// cluster checks the members.
func (p *plan) cluster(b *broken) {
	if len(p.Members) == 0 {
		p.members = []member{{name: p.Name}} // its URL follows the peer listener
		p.ReadyTimeout = cmp.Or(p.ReadyTimeout, 15*time.Second)
		p.notice("one member alone: while it is down, no leader is elected; three members tolerate the failure of one")
		return
	}
	p.notice("an engine beside the workload shares its failures: an overloaded or crashed host affects both")
	p.ReadyTimeout = cmp.Or(p.ReadyTimeout, time.Minute)
	for _, s := range p.Members {
		name, address, found := strings.Cut(s, "=")
		if !b.rule(found && name != "" && address != "", "members", `%q must be "name=peer URL"`, s) {
			continue
		}
		b.rule(store.ValidName(name), "members", "the name in %q must be 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", s)
		u, err := parseURL(address, p.PeerTLS.set())
		if !b.rule(err == nil, "members", "%q: %v", s, err) {
			continue
		}
		b.rule(u.Port() != "0", "members", "%q: the other members need the port, so it must not be 0", s)
		for _, m := range p.members {
			b.rule(m.name != name, "members", "the name %q appears twice", name)
			b.rule(m.url.Host != u.Host, "members", "the address %s appears twice", u.Host)
		}
		p.members = append(p.members, member{name, u})
	}
	n := len(p.Members)
	b.rule(slices.ContainsFunc(p.members, func(m member) bool { return m.name == p.Name }), "members",
		"%q, this member, is not one of %s", p.Name, strings.Join(p.Members, ","))
	b.rule(n == 1 || p.DataDir != "", "data directory", "a member of a cluster needs one: a member that loses its log could vote twice")
	quorum := n/2 + 1
	b.rule(n != 2, "members", "2 members need both for a quorum, so they tolerate no failure; use 1 or 3")
	b.rule(n == 2 || n%2 == 1, "members", "%d members need %d for a quorum and tolerate %d failures, as %d do; use %d or %d",
		n, quorum, n-quorum, n-1, n-1, n+1)
	if n > manyMembers {
		p.notice("%d members: every write waits for %d of them, so it is slower than with %d, which tolerate %d failures", n, quorum, manyMembers, manyMembers/2)
	}
}

// noPeer is the peer URL of a member alone. etcd needs one; nothing listens on it.
var noPeer = &url.URL{Scheme: "http", Host: "127.0.0.1:0"}

// addresses checks where the member listens, and who can reach it there.
func (p *plan) addresses(b *broken) {
	at := slices.IndexFunc(p.members, func(m member) bool { return m.name == p.Name })
	if p.PeerURL == "" && at >= 0 && p.members[at].url != nil {
		p.PeerURL = p.members[at].url.String()
	}
	if p.PeerURL != "" {
		p.peer = p.listen(b, "peer", p.PeerURL, p.PeerTLS)
	}
	b.rule(!p.PeerTLS.set() || p.PeerTLS.CA != "", "peer TLS", "needs the CA of the members: without it every process could act as one")
	if at >= 0 && p.members[at].url == nil {
		p.members[at].url = p.peer
		if p.peer == nil {
			p.members[at].url = noPeer
		}
	}

	if p.ClientURL == "" {
		b.rule(!p.ClientTLS.set(), "client TLS", "a unix socket has no TLS; set a client URL")
		b.rule(p.AdvertiseClientURL == "", "advertised client URL", "a unix socket cannot be advertised; set a client URL")
		return
	}
	p.client = p.listen(b, "client", p.ClientURL, p.ClientTLS)
	if p.client == nil {
		return
	}
	switch {
	case p.ClientTLS.CA != "":
	case loopback(p.client):
		p.notice("%s does not check client certificates: every process on this host can depose any leader", p.client)
	case p.ClientTLS.set():
		p.notice("%s does not check client certificates: every process that can reach it can depose any leader", p.client)
	}
	p.advertise = p.client
	if p.AdvertiseClientURL != "" {
		u, err := parseURL(p.AdvertiseClientURL, p.ClientTLS.set())
		if b.rule(err == nil, "advertised client URL", "%v", err) {
			b.rule(u.Port() != "0" && !unspecified(u), "advertised client URL", "%s must be one address and port", u)
			p.advertise = u
		}
		return
	}
	b.rule(!unspecified(p.client), "client", "%s listens on every address; set the advertised client URL to the one that clients use", p.client)
}

func (p *plan) listen(b *broken, field, address string, t TLS) *url.URL {
	u, err := parseURL(address, t.set())
	if !b.rule(err == nil, field, "%v", err) {
		return nil
	}
	host := u.Hostname()
	b.rule(host == "localhost" || net.ParseIP(host) != nil, field, "%s must be an IP address of this host, or localhost", u)
	open := b.rule(loopback(u) || t.set() || p.Insecure, field,
		"other hosts can reach %s; set a certificate and key, or insecure", u)
	if open && !loopback(u) && !t.set() {
		p.notice("other hosts can reach %s without TLS: every process that can reach it can depose any leader", u)
	}
	return u
}

func (p *plan) times(b *broken) {
	whole := func(d time.Duration) bool { return d > 0 && d%time.Millisecond == 0 }
	b.rule(whole(p.Tick), "tick", "%v must be a whole number of milliseconds", p.Tick)
	b.rule(whole(p.Election), "election", "%v must be a whole number of milliseconds", p.Election)
	b.rule(p.Election >= 5*p.Tick, "election", "%v must be at least 5 × tick = 5 × %v, or one late heartbeat ends the engine's own leadership", p.Election, p.Tick)
	b.rule(p.Election <= maxElection, "election", "%v must be at most %v", p.Election, maxElection)
	b.rule(p.AutoCompaction >= minCompaction, "auto compaction", "%v must be at least %v, or watches that are slightly late must restart", p.AutoCompaction, minCompaction)
	b.rule(p.ReadyTimeout > 0, "ready timeout", "%v must be positive", p.ReadyTimeout)
	b.rule(p.StopTimeout > 0, "stop timeout", "%v must be positive", p.StopTimeout)
}

// certificates checks them before the start; etcd would fail after it has begun to serve.
func (p *plan) certificates(b *broken) {
	for _, l := range []struct {
		field string
		tls   TLS
	}{{"client TLS", p.ClientTLS}, {"peer TLS", p.PeerTLS}} {
		if !l.tls.set() {
			continue
		}
		if !b.rule(l.tls.Cert != "" && l.tls.Key != "", l.field, "needs a certificate and its key") {
			continue
		}
		_, err := tls.LoadX509KeyPair(l.tls.Cert, l.tls.Key)
		b.rule(err == nil, l.field, "certificate %s with key %s: %v", l.tls.Cert, l.tls.Key, err)
		if l.tls.CA != "" {
			pem, err := os.ReadFile(l.tls.CA)
			if b.rule(err == nil, l.field, "CA: %v", err) {
				b.rule(x509.NewCertPool().AppendCertsFromPEM(pem), l.field, "CA %s contains no certificate", l.tls.CA)
			}
		}
	}
}

// parseURL parses scheme, host and port; the scheme is optional.
func parseURL(s string, secure bool) (*url.URL, error) {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	if !strings.Contains(s, "://") {
		s = scheme + "://" + s
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is not a URL: %w", s, errors.Unwrap(err))
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%q must begin with http:// or https://", s)
	case u.Scheme != scheme && secure:
		return nil, fmt.Errorf("%q must begin with https://, because there is a certificate for it", s)
	case u.Scheme != scheme:
		return nil, fmt.Errorf("%q needs a certificate and key for https", s)
	case u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q must consist of scheme, host and port", s)
	case u.Hostname() == "":
		return nil, fmt.Errorf("%q has no host", s)
	}
	if _, err := strconv.ParseUint(u.Port(), 10, 16); err != nil {
		return nil, fmt.Errorf("%q must have a port from 0 to 65535", s)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

func loopback(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func unspecified(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return ip != nil && ip.IsUnspecified()
}
