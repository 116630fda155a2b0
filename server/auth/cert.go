package auth

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/server/auth/secret"
	"github.com/tenurehq/tenure/store"
)

// certName returns the node id in a client certificate.
func certName(leaf *x509.Certificate, from CertName) (string, error) {
	var names []string
	switch {
	case from == CertDNS:
		names = leaf.DNSNames
	case from == CertCN:
		for _, part := range leaf.Subject.Names {
			if part.Type.String() == "2.5.4.3" {
				if s, ok := part.Value.(string); ok {
					names = append(names, s)
				}
			}
		}
	default:
		for _, u := range leaf.URIs {
			if id, ok := strings.CutPrefix(u.String(), strings.TrimPrefix(string(from), string(CertURI))); ok {
				names = append(names, id)
			}
		}
	}
	switch {
	case len(names) != 1:
		return "", fmt.Errorf("the certificate has %d names of the kind %q; want one", len(names), from)
	case !store.ValidName(names[0]):
		return "", fmt.Errorf("the certificate's name of the kind %q is not a node id", from)
	}
	return names[0], nil
}

// authorities are the trusted client CAs.
type authorities struct {
	pool  *x509.CertPool
	certs []*x509.Certificate
}

func parseAuthorities(text []byte) (*authorities, error) {
	a := &authorities{pool: x509.NewCertPool()}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, errors.New("the file has a PEM block that is not a certificate")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("the file has a certificate that cannot be read")
		}
		if !c.IsCA {
			return nil, fmt.Errorf("the certificate of %q is not that of a CA", secret.Clip(c.Subject.String()))
		}
		a.pool.AddCert(c)
		a.certs = append(a.certs, c)
	}
	if len(a.certs) == 0 {
		return nil, errors.New("the file has no certificate")
	}
	return a, nil
}

// holds returns an error if a chain is not valid any more. It was verified when the connection
// was made, but a connection may outlive a certificate or the trust in a CA.
func (a *authorities) holds(chain []*x509.Certificate, now time.Time) error {
	for _, c := range chain {
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			return errors.New("the client certificate or one above it has expired")
		}
	}
	if !slices.ContainsFunc(a.certs, chain[len(chain)-1].Equal) {
		return errors.New("the CA of the client certificate is not trusted any more")
	}
	return nil
}

// parsePair reads the service's own certificate.
func parsePair(cert, key []byte, now time.Time) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, errors.New(secret.Clip(err.Error()))
	}
	if now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("the certificate expired at %s", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return &pair, nil
}

// TLS returns the configuration for the listener; nil if TLS is not configured. Each handshake
// uses the current files. A client certificate is optional in the handshake, so that a caller
// without one gets a helpful error. A certificate that is sent must be valid.
func (g *Gate) TLS() *tls.Config {
	if g.cfg.TLS.Cert == "" {
		return nil
	}
	current := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := &tls.Config{
			MinVersion:   tls.VersionTLS12,
			NextProtos:   []string{"h2", "http/1.1"},
			Certificates: []tls.Certificate{*g.pair.Load()},
		}
		if a := g.cas.Load(); a != nil {
			c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, a.pool
		}
		return c, nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetConfigForClient: current}
}
