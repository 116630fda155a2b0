package auth

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/auth/limit"
)

// Config configures how callers are authenticated, and the files. The zero Config on a
// loopback address allows everybody on the machine everything.
type Config struct {
	// Listen is the address the service listens on, host:port.
	Listen string
	// Insecure allows on other addresses than loopback what New refuses otherwise: no
	// credentials, or tokens over plain HTTP (behind a proxy that ends TLS). Configured
	// credentials are still checked.
	Insecure bool

	TLS TLS
	JWT bearer.JWT
	// Credentials is the file of hashed bearer credentials.
	Credentials string
	// Policy is the file of permissions. Required with credentials, and refused without.
	Policy string

	Limits limit.Config
	Audit  audit.File

	// Poll is how often the files are checked for changes. Default 5s, at least 10ms.
	Poll time.Duration
	// Log gets reloads, broken files and lost audit entries. Default: discarded.
	Log *slog.Logger
	// Now is the clock for expiry and rates. Default time.Now.
	Now func() time.Time
}

// TLS names the PEM files of the certificate of the service and of the trusted client CAs.
type TLS struct {
	Cert, Key string
	// ClientCAs is optional: without it client certificates are not credentials.
	ClientCAs string
	// Name says which part of a client certificate is the node id. Default CertDNS.
	Name CertName
}

// CertName is the part of a client certificate that is the node id: CertDNS, CertCN, or
// "uri:" and the prefix of the URI before the id.
type CertName string

// The parts. A certificate must have exactly one of the configured part.
const (
	CertDNS CertName = "dns"  // the DNS name among the subject alternative names
	CertCN  CertName = "cn"   // the subject's common name
	CertURI CertName = "uri:" // with a prefix: uri:spiffe://example.org/node/
)

func (c Config) withDefaults() Config {
	c.TLS.Name, c.Poll = cmp.Or(c.TLS.Name, CertDNS), cmp.Or(c.Poll, 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	c.JWT, c.Limits, c.Audit = c.JWT.WithDefaults(), c.Limits.WithDefaults(), c.Audit.WithDefaults()
	return c
}

// credentials reports whether any way to show an identity is configured.
func (c Config) credentials() bool { return c.TLS.ClientCAs != "" || c.bearer() }

func (c Config) bearer() bool { return c.JWT.Keys != "" || c.Credentials != "" }

// Validate checks everything that does not need the files. New calls it too.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.Limits.Check(), c.Audit.Check()}
	refuse := func(broken bool, format string, args ...any) {
		if broken {
			errs = append(errs, fmt.Errorf("auth: "+format, args...))
		}
	}
	_, _, bad := net.SplitHostPort(c.Listen)
	reachable, credentials := c.Listen != "" && bad == nil && !c.Insecure && !onLoopback(c.Listen), c.credentials()
	refuse(bad != nil, "Listen: %q is not host:port, such as 127.0.0.1:7400", c.Listen)
	refuse(reachable && !credentials, "other hosts can reach %s, and no credentials are configured: "+
		"use --client-ca, --jwt-keys or --credentials, listen on 127.0.0.1, or allow everybody everything with --insecure", c.Listen)
	refuse(reachable && credentials && c.TLS.Cert == "", "other hosts can reach %s, and would send credentials unencrypted: "+
		"use --cert and --key, or --insecure if a proxy in front of it ends TLS", c.Listen)
	refuse(credentials && c.Policy == "", "credentials without a policy allow nobody anything: use --policy")
	refuse(!credentials && c.Policy != "", "a policy without credentials applies to nobody: use --client-ca, --jwt-keys or --credentials")
	refuse(c.Poll < 10*time.Millisecond, "Poll is %v; want at least 10ms", c.Poll)

	t, j := c.TLS, c.JWT
	refuse((t.Cert == "") != (t.Key == ""), "a TLS certificate needs its key: use both --cert and --key")
	refuse(t.ClientCAs != "" && t.Cert == "", "client certificates need TLS: use --cert and --key too")
	refuse(t.Name != CertDNS && t.Name != CertCN && !strings.HasPrefix(string(t.Name), string(CertURI)), "certificate name %q: want dns, cn or uri:PREFIX", t.Name)
	refuse(t.Name == CertURI, "certificate name uri: needs the prefix before the node id, such as uri:spiffe://example.org/node/")
	refuse(j.Keys == "" && (j.Issuer != "" || j.Audience != ""), "a JWT issuer or audience needs --jwt-keys")
	if j.Keys != "" {
		for _, a := range j.Algorithms {
			refuse(!slices.Contains(bearer.Algorithms(), a), "JWT algorithm %q is not one of %s", a, strings.Join(bearer.Algorithms(), ", "))
		}
		refuse(j.Issuer == "" || j.Audience == "", "JWT keys need the issuer and the audience that JWTs must name: use --jwt-issuer and --jwt-audience")
		refuse(j.Leeway < 0 || j.Leeway > 5*time.Minute, "JWT leeway is %v; want 0 to 5m", j.Leeway)
		refuse(j.Lifetime < time.Second, "JWT lifetime is %v; want at least 1s", j.Lifetime)
	}
	return errors.Join(errs...)
}

func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && loopbackHost(host)
}

func loopbackHost(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}
