package consul

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Config configures a store in Consul.
type Config struct {
	// Addresses of the HTTP API, such as "http://127.0.0.1:8500" or "https://10.0.0.1:8501".
	// Usually only the agent on this host. Without a local agent name all servers: if one fails,
	// a call tries the next one.
	Addresses []string
	// Prefix of every key. Default "tenure".
	Prefix string
	// Token is the ACL token. See the package comment for the rights that it needs.
	Token string
	// TLS for https addresses.
	TLS *tls.Config
	// Checks are health checks of the agent's node, such as "serfHealth" or "service:billing".
	// When one of them becomes critical, Consul ends the sessions that this store has opened at
	// once. The process may still be alive and do its work, so use this only if all work is
	// fenced. Default: none.
	Checks []string
	// Deployment names a prefix that is used for the first time. Default: random. A store
	// that takes the place of another one needs its name, because sinks know it.
	Deployment string
}

const (
	defaultPrefix = "tenure"
	// maxOps is Consul's limit for one transaction.
	maxOps      = 128
	dialTimeout = 2 * time.Second
	// maxConns bounds the connections to one address. An agent allows 200 for each host.
	maxConns = 16
	// maxBody bounds an answer. A listing of 10,000 groups takes about 10 MB.
	maxBody = 256 << 20
)

// Store is a store.Store in Consul: a kv.Store over a Consul driver.
type Store struct {
	*kv.Store
	driver *Driver
}

// Driver is a kv.Driver for Consul's HTTP API.
type Driver struct {
	cfg    Config
	client *http.Client
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	first atomic.Uint32 // the address to try first, modulo their number
	bound binding
}

var _ store.Store = (*Store)(nil)

// Caps returns the capabilities of a store with the default configuration.
func Caps() store.Caps { return (&Driver{cfg: Config{}.withDefaults()}).Caps().Store() }

// Parse reads a URL:
//
//	consul://127.0.0.1:8500/tenure
//	consuls://:TOKEN@10.0.0.1:8501,10.0.0.2:8501/tenure?ca=/etc/consul/ca.pem   (TLS)
//
// The path is the prefix. The parameters are deployment, check, which may be repeated, and for
// TLS ca, a file with the certificates to trust. Errors do not contain the token.
func Parse(text string) (Config, error) {
	bad := func(rule string) error { return &store.ArgumentError{Field: "store URL", Rule: rule} }
	scheme, rest, _ := strings.Cut(text, "://")
	rest, parameters, _ := strings.Cut(rest, "?")
	hosts, prefix, _ := strings.Cut(rest, "/")
	at := strings.LastIndex(hosts, "@")
	_, token, _ := strings.Cut(hosts[:max(at, 0)], ":")
	hosts = hosts[at+1:]
	token, err := url.PathUnescape(token)
	web := map[string]string{"consul": "http://", "consuls": "https://"}[scheme]
	const form = "must be consul://[:token@]host:port[,host:port][/prefix], or consuls:// for TLS; encode special characters of the token with %"
	if err != nil || web == "" || hosts == "" {
		return Config{}, bad(form)
	}
	c := Config{Token: token, Prefix: strings.Trim(prefix, "/")}
	for host := range strings.SplitSeq(hosts, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			return Config{}, bad(form)
		}
		c.Addresses = append(c.Addresses, web+host)
	}
	if scheme == "consuls" {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	query, err := url.ParseQuery(parameters)
	if err != nil {
		return Config{}, bad("the parameters after ? cannot be read")
	}
	for name, values := range query {
		switch {
		case name == "check":
			c.Checks = values
		case name == "deployment":
			c.Deployment = values[0]
		case name == "ca" && c.TLS != nil:
			certificates, err := os.ReadFile(values[0])
			if c.TLS.RootCAs = x509.NewCertPool(); err != nil || !c.TLS.RootCAs.AppendCertsFromPEM(certificates) {
				return Config{}, bad(fmt.Sprintf("ca: cannot read certificates from %q: %v", values[0], err))
			}
		default:
			return Config{}, bad(fmt.Sprintf("parameter %q: must be check, deployment, or ca with consuls://", name))
		}
	}
	return c, c.withDefaults().validate()
}

// Open reads the description of the deployment, or writes it at first use. It fails within the
// context's deadline (5 s if it has none). The error has the answer of each address.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d := NewDriver(cfg)
	s, err := kv.Open(ctx, d, kv.Config{Deployment: cfg.Deployment})
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return &Store{s, d}, nil
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	return c
}

func (c Config) validate() error {
	if len(c.Addresses) == 0 {
		return &store.ArgumentError{Field: "addresses", Rule: "at least one is needed"}
	}
	for _, a := range c.Addresses {
		u, err := url.Parse(a)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" || u.User != nil {
			return &store.ArgumentError{Field: "address", Rule: "must be http://host:port or https://host:port"}
		}
		if u.Scheme == "http" && c.TLS != nil {
			return &store.ArgumentError{Field: "address", Value: a, Rule: "must begin with https:// when TLS is set"}
		}
	}
	if path.Clean("/"+c.Prefix) != "/"+c.Prefix || strings.ContainsAny(c.Prefix, " ?#%") {
		return &store.ArgumentError{Field: "prefix", Value: c.Prefix, Rule: "must be a path without an empty part, without . and .., and must not begin or end with /"}
	}
	return nil
}

// NewDriver returns the driver without a store. It connects with its first call.
func NewDriver(cfg Config) *Driver {
	d := &Driver{cfg: cfg.withDefaults()}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.client = &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSClientConfig:     cfg.TLS,
			TLSHandshakeTimeout: dialTimeout,
			MaxConnsPerHost:     maxConns,
			MaxIdleConnsPerHost: maxConns,
			IdleConnTimeout:     time.Minute,
		},
		// Consul does not redirect. Do not follow a redirect, which could leak the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return d
}

// Close closes the connections.
func (d *Driver) Close() {
	d.cancel()
	d.client.CloseIdleConnections()
}
