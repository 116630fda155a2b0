package consul

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Config says where Consul is.
type Config struct {
	// Addresses of the HTTP API, such as "http://127.0.0.1:8500" or "https://10.0.0.1:8501".
	// Usually that of the agent on this host alone. Without a local agent name all servers:
	// a call moves on to the next one when one fails.
	Addresses []string
	// Prefix of every key. Default "tenure".
	Prefix string
	// Token is the ACL token. See the package comment for the rights that it needs.
	Token string
	// TLS for https addresses.
	TLS *tls.Config
	// Datacenter whose servers keep the data. Default: that of the agent.
	Datacenter string
	// Checks are health checks of the agent's node, such as "serfHealth" or "service:billing".
	// When one of them becomes critical, Consul ends the sessions that this store has opened,
	// at once. A check tells that a process is probably dead, so its leader may still work:
	// use this only if all work is fenced. Default: none.
	Checks []string
	// Deployment names a prefix that is used for the first time. Default: random. A store
	// that takes the place of another one needs its name, because sinks know it.
	Deployment string
}

const (
	defaultPrefix = "tenure"
	minTTL        = time.Second
	maxTTL        = 24 * time.Hour
	// lateness: candidates look at a beat eight times in its TTL.
	lateness = time.Second
	// maxOps is what Consul takes in one transaction.
	maxOps = 128
	// defaultCall bounds calls whose context has no deadline.
	defaultCall = 5 * time.Second
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

// Driver knows Consul's HTTP API.
type Driver struct {
	cfg    Config
	client *http.Client
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	bound binding

	mu        sync.Mutex
	preferred int // address to ask first
}

var _ store.Store = (*Store)(nil)

// Parse reads a URL:
//
//	consul://127.0.0.1:8500/tenure
//	consuls://:TOKEN@10.0.0.1:8501,10.0.0.2:8501/tenure?ca=/etc/consul/ca.pem   (TLS)
//
// The path is the prefix. The parameters are dc, check (which may be repeated), deployment,
// token-file, and for TLS ca, cert and key, the names of files. An error has no token.
func Parse(text string) (Config, error) {
	bad := func(rule string) (Config, error) {
		return Config{}, &store.ArgumentError{Field: "store URL", Rule: rule}
	}
	const form = "must be consul://[:token@]host:port[,host:port][/prefix], or consuls:// for TLS"
	scheme, rest, _ := strings.Cut(text, "://")
	rest, parameters, _ := strings.Cut(rest, "?")
	hosts, prefix, _ := strings.Cut(rest, "/")
	c := Config{Prefix: strings.Trim(prefix, "/")}
	if at := strings.LastIndex(hosts, "@"); at >= 0 {
		_, token, ok := strings.Cut(hosts[:at], ":")
		token, err := url.PathUnescape(token)
		if err != nil || !ok {
			return bad(form + "; encode special characters of the token with %")
		}
		c.Token, hosts = token, hosts[at+1:]
	}
	web := map[string]string{"consul": "http://", "consuls": "https://"}[scheme]
	if web == "" || hosts == "" {
		return bad(form)
	}
	for host := range strings.SplitSeq(hosts, ",") {
		c.Addresses = append(c.Addresses, web+host)
	}
	query, err := url.ParseQuery(parameters)
	if err != nil {
		return bad("the parameters after ? cannot be read")
	}
	var ca, cert, key, tokenFile string
	for name, values := range query {
		field := map[string]*string{
			"dc": &c.Datacenter, "deployment": &c.Deployment, "token-file": &tokenFile, "ca": &ca, "cert": &cert, "key": &key,
		}[name]
		switch {
		case name == "check":
			c.Checks = values
		case field == nil:
			return bad(fmt.Sprintf("parameter %q: must be dc, check, deployment, token-file, ca, cert or key", name))
		default:
			*field = values[0]
		}
	}
	if tokenFile != "" {
		token, err := os.ReadFile(tokenFile)
		if err != nil {
			return bad("token-file: " + err.Error())
		}
		c.Token = strings.TrimSpace(string(token))
	}
	if scheme == "consuls" {
		if c.TLS, err = readTLS(ca, cert, key); err != nil {
			return bad(err.Error())
		}
	} else if ca+cert+key != "" {
		return bad("ca, cert and key need consuls://")
	}
	return c, c.withDefaults().validate()
}

func readTLS(ca, cert, key string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca: %s has no PEM certificate", ca)
		}
	}
	if cert+key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Open reads, or at first use writes, what belongs to the deployment. It fails within the
// context's deadline (5 s if it has none) with what each address said.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d := NewDriver(cfg)
	s, err := kv.New(ctx, d, kv.Config{Deployment: cfg.Deployment})
	if err != nil {
		d.Close()
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
	if p := "/" + c.Prefix + "/"; strings.Contains(p, "//") || strings.Contains(p, "/./") || strings.Contains(p, "/../") || strings.ContainsAny(p, " ?#%") {
		return &store.ArgumentError{Field: "prefix", Value: c.Prefix, Rule: "must be a path without an empty part, without . and .., and must not begin or end with /"}
	}
	return nil
}

// NewDriver returns the driver alone. It connects with its first call.
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
		// Consul does not redirect. Whoever does must not get the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return d
}

// Close closes the connections. Sessions live on until they expire.
func (s *Store) Close() {
	s.Store.Close()
	s.driver.Close()
}

// Close closes the connections.
func (d *Driver) Close() {
	d.cancel()
	d.client.CloseIdleConnections()
}

var errClosed = errors.New("consul: the store is closed")
