package embeddedetcd

import (
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

	"github.com/tenurehq/tenure/lease"
)

// Config says what to run. The zero value is complete: one member in a temporary
// directory, which listens on no port. Only this user can reach it.
type Config struct {
	// Name is this member's among Members: the names of candidates follow the
	// same rule. Default "engine".
	Name string
	// DataDir holds the log and the database; it is created with mode 0700.
	// Without one a temporary directory is used and removed by Stop, which only a
	// member alone may have.
	DataDir string

	// ClientURL is where clients are served: a URL, or host:port. Port 0 is a free
	// one. Every process that can reach the port can depose any leader, unless
	// ClientTLS has a CA. Default: no port, but a unix socket in a directory below
	// DataDir that only this user can enter.
	ClientURL string
	// AdvertiseClientURL is what other members tell clients about this one.
	// Default ClientURL; needed when that is every address of the host.
	AdvertiseClientURL string
	// PeerURL is where this member listens for the others. Default its own URL in
	// Members; alone it listens for nobody.
	PeerURL string
	// Members are all members of the cluster, this one included, each as
	// "name=peer URL". Empty: this member is alone. An odd number.
	Members []string

	// Tick is the time between heartbeats of the engine's own leader, Election how
	// long the others wait for one before they elect another: at least 5 × Tick, at
	// most 50 s, both in whole milliseconds. The shortest TTL that is granted is
	// 1.5 × Election in whole seconds, rounded up. Default 100 ms and 1 s.
	Tick, Election time.Duration

	// ClientTLS and PeerTLS are used by the client and the peer listener. What
	// listens beyond loopback needs them.
	ClientTLS, PeerTLS TLS
	// Insecure allows listening beyond loopback without TLS: whoever can reach the
	// port can then depose any leader.
	Insecure bool

	// SnapshotCount is after how many commits the log is cut. Default 10,000.
	SnapshotCount uint64
	// Quota bounds the database in bytes: above it writes are refused. At least 16
	// MiB, at most 8 GiB. Default 2 GiB.
	Quota int64
	// AutoCompaction is how long old versions are kept; without compaction the
	// database grows to its quota and then nothing is granted any more. At least a
	// minute. Default 1 h.
	AutoCompaction time.Duration

	// ReadyTimeout bounds Start. Default 15 s alone and 60 s in a cluster, whose
	// members are started one after the other.
	ReadyTimeout time.Duration
	// StopTimeout bounds Stop. Default 10 s.
	StopTimeout time.Duration

	// Logger receives what Start has to say. Default none.
	Logger *slog.Logger
	// Debug passes etcd's own log to Logger as well.
	Debug bool
}

// TLS names the files of one listener, in PEM.
type TLS struct {
	Cert, Key string
	// CA signs those who may connect: with it, others are refused. Peers need it.
	CA string
}

func (t TLS) set() bool { return t != TLS{} }

func (t TLS) info() transport.TLSInfo {
	return transport.TLSInfo{CertFile: t.Cert, KeyFile: t.Key, TrustedCAFile: t.CA, ClientCertAuth: t.CA != ""}
}

// ConfigError names the setting and the rule that it breaks.
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

// plan is a Config that was found to be sound.
type plan struct {
	Config
	members           []member // this one alone is one
	client, advertise *url.URL // nil: a unix socket, whose path is known when the directory is
	peer              *url.URL // to listen on; nil: alone, so nowhere
	notices           []string
}

func (p *plan) alone() bool { return len(p.members) == 1 }

// Validate returns a ConfigError for each rule that is broken, joined. It looks
// at the settings alone, not at the machine.
func (c Config) Validate() error {
	_, err := c.plan()
	return err
}

func (c Config) plan() (*plan, error) {
	fill(&c.Name, "engine")
	fill(&c.Tick, 100*time.Millisecond)
	fill(&c.Election, time.Second)
	fill(&c.SnapshotCount, 10_000)
	fill(&c.Quota, 2<<30)
	fill(&c.AutoCompaction, time.Hour)
	fill(&c.StopTimeout, 10*time.Second)
	fill(&c.Logger, slog.New(slog.DiscardHandler))

	p := &plan{Config: c}
	p.say("an engine beside the workload shares its fate: an overloaded or crashed host takes both at once")
	var b broken
	b.rule(lease.ValidName(c.Name), "name", "%q must be 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", c.Name)
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

func fill[T comparable](field *T, otherwise T) {
	var zero T
	if *field == zero {
		*field = otherwise
	}
}

// broken collects the rules that do not hold.
type broken []error

func (b *broken) rule(holds bool, field, format string, args ...any) bool {
	if !holds {
		*b = append(*b, &ConfigError{Field: field, Rule: fmt.Sprintf(format, args...)})
	}
	return holds
}

func (p *plan) say(format string, args ...any) {
	p.notices = append(p.notices, fmt.Sprintf(format, args...))
}

// cluster checks who the members are and how many.
func (p *plan) cluster(b *broken) {
	if len(p.Members) == 0 {
		p.members = []member{{name: p.Name}} // its URL follows the peer listener
		fill(&p.ReadyTimeout, 15*time.Second)
		p.say("one member alone: while it is down nobody can be elected; three members survive the loss of one")
		return
	}
	fill(&p.ReadyTimeout, time.Minute)
	for _, s := range p.Members {
		name, address, found := strings.Cut(s, "=")
		if !b.rule(found && name != "" && address != "", "members", `%q must be "name=peer URL"`, s) {
			continue
		}
		b.rule(lease.ValidName(name), "members", "the name in %q must be 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", s)
		u, err := parseURL(address, p.PeerTLS.set())
		if !b.rule(err == nil, "members", "%q: %v", s, err) {
			continue
		}
		b.rule(u.Port() != "0", "members", "%q: port 0 cannot be known to the others", s)
		for _, m := range p.members {
			b.rule(m.name != name, "members", "the name %q is there twice", name)
			b.rule(m.url.Host != u.Host, "members", "the address %s is there twice", u.Host)
		}
		p.members = append(p.members, member{name, u})
	}
	n := len(p.Members)
	b.rule(slices.ContainsFunc(p.members, func(m member) bool { return m.name == p.Name }), "members",
		"this member, %q, must be one of them: %s", p.Name, strings.Join(p.Members, ","))
	b.rule(n == 1 || p.DataDir != "", "data directory", "a member of a cluster must be given one: if it forgot its log on a restart it could vote twice")
	quorum := n/2 + 1
	b.rule(n != 2, "members", "2 members need both for a quorum, so they tolerate no loss, and fail twice as often as 1: use 1 or 3")
	b.rule(n == 2 || n%2 == 1, "members", "%d members need %d for a quorum and tolerate the loss of %d, as %d do with less work: use %d or %d",
		n, quorum, n-quorum, n-1, n-1, n+1)
	if n > manyMembers {
		p.say("%d members: every write waits for %d of them, so it is slower than with %d, which tolerate the loss of %d", n, quorum, manyMembers, manyMembers/2)
	}
}

// nowhere is the peer URL of a member alone. etcd wants one; nothing listens on it and
// nobody can dial it.
var nowhere = &url.URL{Scheme: "http", Host: "127.0.0.1:0"}

// addresses checks where the member listens, and who could reach it there.
func (p *plan) addresses(b *broken) {
	at := slices.IndexFunc(p.members, func(m member) bool { return m.name == p.Name })
	if p.PeerURL == "" && at >= 0 && p.members[at].url != nil {
		p.PeerURL = p.members[at].url.String()
	}
	if p.PeerURL != "" {
		p.peer = p.listen(b, "peer", p.PeerURL, p.PeerTLS)
	}
	b.rule(!p.PeerTLS.set() || p.PeerTLS.CA != "", "peer TLS", "needs the CA that signs the members: without it anybody could speak as one")
	if at >= 0 && p.members[at].url == nil {
		p.members[at].url = p.peer
		if p.peer == nil {
			p.members[at].url = nowhere
		}
	}

	if p.ClientURL == "" {
		b.rule(!p.ClientTLS.set(), "client TLS", "a unix socket has no TLS: give a client URL")
		b.rule(p.AdvertiseClientURL == "", "advertised client URL", "a unix socket cannot be advertised: give a client URL")
		return
	}
	p.client = p.listen(b, "client", p.ClientURL, p.ClientTLS)
	if p.client == nil {
		return
	}
	switch {
	case p.ClientTLS.CA != "":
	case loopback(p.client):
		p.say("%s asks clients for no certificate: every process on this host can depose any leader", p.client)
	case p.ClientTLS.set():
		p.say("%s asks clients for no certificate: whoever can reach it can depose any leader", p.client)
	}
	p.advertise = p.client
	if p.AdvertiseClientURL != "" {
		u, err := parseURL(p.AdvertiseClientURL, p.ClientTLS.set())
		if b.rule(err == nil, "advertised client URL", "%v", err) {
			b.rule(u.Port() != "0" && !everywhere(u), "advertised client URL", "%s must be one address and port", u)
			p.advertise = u
		}
		return
	}
	b.rule(!everywhere(p.client), "client", "%s listens on every address: give the one that clients use, as the advertised client URL", p.client)
}

func (p *plan) listen(b *broken, field, address string, t TLS) *url.URL {
	u, err := parseURL(address, t.set())
	if !b.rule(err == nil, field, "%v", err) {
		return nil
	}
	host := u.Hostname()
	b.rule(host == "localhost" || net.ParseIP(host) != nil, field, "%s: to listen, give an IP address of this host, or localhost", u)
	open := b.rule(loopback(u) || t.set() || p.Insecure, field,
		"%s can be reached from other hosts: give a certificate and key, or say that insecure is meant", u)
	if open && !loopback(u) && !t.set() {
		p.say("%s can be reached from other hosts without TLS: whoever can reach it can depose any leader", u)
	}
	return u
}

func (p *plan) times(b *broken) {
	whole := func(d time.Duration) bool { return d > 0 && d%time.Millisecond == 0 }
	b.rule(whole(p.Tick), "tick", "%v must be a whole number of milliseconds", p.Tick)
	b.rule(whole(p.Election), "election", "%v must be a whole number of milliseconds", p.Election)
	b.rule(p.Election >= 5*p.Tick, "election", "%v must be at least 5 × tick = 5 × %v: one late heartbeat would cost the engine its leader", p.Election, p.Tick)
	b.rule(p.Election <= maxElection, "election", "%v must be at most %v", p.Election, maxElection)
	b.rule(p.AutoCompaction >= minCompaction, "auto compaction", "%v must be at least %v: watches that are a little late would have to start again", p.AutoCompaction, minCompaction)
	b.rule(p.ReadyTimeout > 0, "ready timeout", "%v must be positive", p.ReadyTimeout)
	b.rule(p.StopTimeout > 0, "stop timeout", "%v must be positive", p.StopTimeout)
}

// certificates reads them here because etcd would find out after it has begun to
// serve.
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
				b.rule(x509.NewCertPool().AppendCertsFromPEM(pem), l.field, "CA %s holds no certificate", l.tls.CA)
			}
		}
	}
}

// parseURL accepts host:port as well, and nothing but scheme, host and port.
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
		return nil, fmt.Errorf("%q is no URL: %w", s, errors.Unwrap(err))
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%q must begin with http:// or https://", s)
	case u.Scheme != scheme && secure:
		return nil, fmt.Errorf("%q must begin with https://: there is a certificate for it, which http would ignore", s)
	case u.Scheme != scheme:
		return nil, fmt.Errorf("%q needs a certificate and key for https", s)
	case u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q must be scheme, host and port, and nothing else", s)
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

func everywhere(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return ip != nil && ip.IsUnspecified()
}
