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

// Config says who is believed, and where the files are. The zero Config on a loopback
// address is open to everybody on the machine.
type Config struct {
	// Listen is the address the service listens on, host:port.
	Listen string
	// Insecure allows off loopback what is refused otherwise: no credentials at all, or
	// tokens over plain HTTP (as behind a proxy that ends TLS). Credentials that are
	// configured are checked all the same.
	Insecure bool

	TLS TLS
	JWT JWT
	// Tokens is the file of hashed static tokens.
	Tokens string
	// Policy is the file that says who may do what. Required with credentials, and
	// refused without: there would be nobody to apply it to.
	Policy string

	Limits Limits
	Audit  AuditFile

	// Poll is how often the files are looked at. Default 5s, at least 10ms.
	Poll time.Duration
	// Log hears of reloads, of files that are broken and of audit entries that are lost.
	// Default: nobody.
	Log *slog.Logger
	// Now is the time by which credentials expire and rates are counted. Default time.Now.
	Now func() time.Time
}

// TLS are the files of the service's own certificate and of the CAs whose client
// certificates are believed. All are PEM.
type TLS struct {
	Cert, Key string
	// ClientCAs is optional: without it certificates are no credentials.
	ClientCAs string
	// Name is where in a client certificate the node id stands. Default CertDNS.
	Name CertName
}

// CertName is the place of the node id in a client certificate: CertDNS, CertCN, or
// "uri:" and the prefix of the URI that is followed by the id.
type CertName string

// The places. A certificate with none or several of what is wanted is refused.
const (
	CertDNS CertName = "dns"  // the one DNS name among the alternative names
	CertCN  CertName = "cn"   // the subject's common name
	CertURI CertName = "uri:" // with a prefix: uri:spiffe://example.org/node/
)

// JWT says which tokens are believed.
type JWT struct {
	// Keys is the file of public keys, a JWK set or PEM. In PEM the key id is a header
	// "Key-Id" of the block, or the key's RFC 7638 thumbprint.
	Keys string
	// Issuer and Audience that a token must name.
	Issuer, Audience string
	// Algorithms that are taken, of RS, PS and ES with 256, 384, 512, and EdDSA.
	// Default ES256 and EdDSA. A key works with one family of them, or with the one that
	// its alg says.
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

func (c Config) bearer() bool { return c.JWT.Keys != "" || c.Tokens != "" }

// Validate checks what can be checked without the files; New does it too.
func (c Config) Validate() error {
	c = c.withDefaults()
	return errors.Join(c.checkExposure(), c.TLS.check(), c.JWT.check(), c.Limits.check(), c.Audit.check(), c.checkRest())
}

func (c Config) checkExposure() error {
	if c.Listen == "" {
		return errors.New("access: Listen is empty: say which address is served, such as 127.0.0.1:7600")
	}
	if c.Insecure || onLoopback(c.Listen) {
		return nil
	}
	switch {
	case !c.credentials():
		return fmt.Errorf("access: %s is reachable from other machines and no credentials are configured: "+
			"give client CAs, JWT keys or a token file, listen on 127.0.0.1, or say insecure if everybody there may do everything", c.Listen)
	case c.TLS.Cert == "":
		return fmt.Errorf("access: %s is reachable from other machines and tokens would travel in the clear: "+
			"give a TLS certificate, or say insecure if something in front of it ends TLS", c.Listen)
	}
	return nil
}

func (c Config) checkRest() error {
	switch {
	case c.credentials() && c.Policy == "":
		return errors.New("access: credentials without a policy let nobody do anything: give a policy file")
	case !c.credentials() && c.Policy != "":
		return errors.New("access: a policy without credentials applies to nobody: give client CAs, JWT keys or a token file")
	case c.Poll < 10*time.Millisecond:
		return fmt.Errorf("access: Poll is %v, at least 10ms is wanted", c.Poll)
	}
	return nil
}

func (t TLS) check() error {
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return errors.New("access: a TLS certificate needs its key, and the key its certificate")
	case t.ClientCAs != "" && t.Cert == "":
		return errors.New("access: client certificates need TLS: give the service's own certificate and key")
	case t.Name != CertDNS && t.Name != CertCN && !strings.HasPrefix(string(t.Name), string(CertURI)):
		return fmt.Errorf("access: the name in a certificate is %q, wanted dns, cn or uri:PREFIX", t.Name)
	case t.Name == CertURI:
		return errors.New("access: uri: needs the prefix before the node id, such as uri:spiffe://example.org/node/")
	}
	return nil
}

func (j JWT) check() error {
	if j.Keys == "" {
		if j.Issuer != "" || j.Audience != "" {
			return errors.New("access: a JWT issuer or audience without a key file believes nobody: give the keys")
		}
		return nil
	}
	for _, a := range j.Algorithms {
		if !slices.Contains(jwtAlgorithms(), a) {
			return fmt.Errorf("access: JWT algorithm %q is not one of %s", a, strings.Join(jwtAlgorithms(), ", "))
		}
	}
	switch {
	case j.Issuer == "" || j.Audience == "":
		return errors.New("access: JWT keys need the issuer and the audience that tokens must name")
	case j.Leeway < 0 || j.Leeway > 5*time.Minute:
		return fmt.Errorf("access: JWT leeway is %v, wanted 0 to 5m", j.Leeway)
	case j.Lifetime < time.Second:
		return fmt.Errorf("access: JWT lifetime is %v, at least 1s is wanted", j.Lifetime)
	}
	return nil
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
