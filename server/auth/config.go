package auth

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"
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
	JWT JWT
	// Credentials is the file of hashed bearer credentials.
	Credentials string
	// Policy is the file of permissions. Required with credentials, and refused without.
	Policy string

	Limits Limits
	Audit  AuditFile

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

// JWT says which JWTs are accepted.
type JWT struct {
	// Keys is the file of public keys, a JWK set or PEM. In PEM the key id is the header
	// "Key-Id" of the block, or else the RFC 7638 thumbprint of the key.
	Keys string
	// Issuer and Audience that a token must name.
	Issuer, Audience string
	// Algorithms that are accepted: RS, PS or ES with 256, 384 or 512, and EdDSA. Default
	// ES256 and EdDSA. A key works with one family, or only with the one in its alg.
	Algorithms []string
	// Claim that is the node id. Default sub.
	Claim string
	// Leeway for clocks that differ. Default 30s, at most 5m.
	Leeway time.Duration
	// Lifetime is how far ahead a token's expiry may lie. Default 24h.
	Lifetime time.Duration
}

func (c Config) withDefaults() Config {
	def(&c.TLS.Name, CertDNS)
	def(&c.JWT.Claim, "sub")
	def(&c.JWT.Leeway, 30*time.Second)
	def(&c.JWT.Lifetime, 24*time.Hour)
	def(&c.Poll, 5*time.Second)
	if len(c.JWT.Algorithms) == 0 {
		c.JWT.Algorithms = []string{"ES256", "EdDSA"}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Limits = c.Limits.withDefaults()
	c.Audit = c.Audit.withDefaults()
	return c
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// credentials reports whether any way to show an identity is configured.
func (c Config) credentials() bool { return c.TLS.ClientCAs != "" || c.bearer() }

func (c Config) bearer() bool { return c.JWT.Keys != "" || c.Credentials != "" }

// Validate checks everything that does not need the files. New calls it too.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.Limits.check(), c.Audit.check()}
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
			refuse(!slices.Contains(jwtAlgorithms(), a), "JWT algorithm %q is not one of %s", a, strings.Join(jwtAlgorithms(), ", "))
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
