package auth

import (
	"crypto/sha256"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/auth/limit"
	"github.com/tenurehq/tenure/server/auth/secret"
	"github.com/tenurehq/tenure/server/httpapi"
)

// maxBearer is the most bytes of a bearer credential.
const maxBearer = 8 << 10

// identify returns the caller. On an error the identity may have what is known, for the audit.
func (g *Gate) identify(r *http.Request) (Identity, error) {
	if err := noTokenInQuery(r); err != nil {
		return Identity{}, err
	}
	if !g.cfg.credentials() {
		return g.anonymous(r)
	}
	// A browser sends a client certificate with the requests of every page.
	if g.origins.Check(r) != nil {
		return Identity{}, refuse("this service refuses requests from web pages of other origins")
	}
	cert, err := g.byCert(r)
	if err != nil {
		return Identity{}, unauthenticated(err.Error())
	}
	token, err := g.byBearer(r)
	var p *httpapi.Problem
	switch {
	case errors.As(err, &p):
		return Identity{}, p
	case err != nil:
		return Identity{}, unauthenticated(err.Error())
	case cert.Name != "" && token.Name != "" && cert.Name != token.Name:
		return Identity{}, unauthenticated("the certificate and the credential name two different callers")
	}
	id := token
	if cert.Name != "" {
		id = cert
		if !token.Until.IsZero() && token.Until.Before(id.Until) {
			id.Until = token.Until
		}
		if token.valid != nil {
			id.valid = func() error { return errors.Join(cert.valid(), token.valid()) }
		}
	}
	if id.Name == "" {
		return Identity{}, unauthenticated("the request carries no credentials: " + g.wanted())
	}
	id.key = id.Name
	rules := g.policy.Load()
	if rules.refused[id.Name] {
		return id, refuse("the policy of this service refuses %s", id.Name)
	}
	id.Roles = rules.rolesOf(id.Name)
	return id, nil
}

func (g *Gate) wanted() string {
	switch {
	case !g.cfg.bearer():
		return "show a client certificate"
	case g.cfg.TLS.ClientCAs == "":
		return "send Authorization: Bearer with a credential"
	}
	return "show a client certificate, or send Authorization: Bearer with a credential"
}

func unauthenticated(why string) *httpapi.Problem {
	return httpapi.Refuse(http.StatusUnauthorized, "unauthenticated", "%s", why)
}

// anonymous accepts callers without credentials. On loopback the request must also address
// loopback: a web page can make its own name resolve to 127.0.0.1, or post there.
func (g *Gate) anonymous(r *http.Request) (Identity, error) {
	if !onLoopback(g.cfg.Listen) {
		return Identity{How: Insecure, key: host(r.RemoteAddr)}, nil
	}
	switch {
	case !loopbackHost(host(r.RemoteAddr)):
		return Identity{}, refuse("without credentials this service answers callers on its own machine only")
	case !loopbackHost(host(r.Host)):
		return Identity{}, refuse("without credentials this service must be addressed as localhost or 127.0.0.1")
	case g.origins.Check(r) != nil:
		return Identity{}, refuse("without credentials this service refuses requests from web pages of other origins")
	}
	return Identity{How: Loopback, key: string(Loopback)}, nil
}

func host(addr string) string {
	h, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return h
}

// noTokenInQuery refuses a credential in the query string, where proxies log it. It does so even if
// the credential is not needed, so that its owner learns that the credential is exposed.
func noTokenInQuery(r *http.Request) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	for name, value := range httpapi.Query(r.URL) {
		switch strings.ToLower(name) {
		case "access_token", "id_token", "bearer", "bearer_token", "authorization", "jwt":
		default:
			if !secret.In(value) {
				continue
			}
		}
		return unauthenticated("a credential in a query string ends up in logs: replace that credential, and send the new one in the Authorization header")
	}
	return nil
}

func (g *Gate) byCert(r *http.Request) (Identity, error) {
	cas := g.cas.Load()
	if cas == nil || r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return Identity{}, nil
	}
	var err error
	// One valid chain is enough: CAs may be cross-signed while they are replaced.
	for _, chain := range r.TLS.VerifiedChains {
		if err = cas.holds(chain, g.cfg.Now()); err != nil {
			continue
		}
		name, err := certName(chain[0], g.cfg.TLS.Name)
		if err != nil {
			return Identity{}, err
		}
		until := chain[0].NotAfter
		for _, c := range chain {
			if c.NotAfter.Before(until) {
				until = c.NotAfter
			}
		}
		valid := func() error { return g.cas.Load().holds(chain, g.cfg.Now()) }
		return Identity{Name: name, How: ByCert, Until: until, valid: valid}, nil
	}
	return Identity{}, err
}

func (g *Gate) byBearer(r *http.Request) (Identity, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		return Identity{}, nil
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	switch {
	case len(headers) > 1:
		return Identity{}, errors.New("the request has several Authorization headers")
	case !strings.EqualFold(scheme, "Bearer") || token == "":
		return Identity{}, errors.New("the Authorization header is not Bearer and a credential")
	case !g.cfg.bearer():
		return Identity{}, errors.New("this service accepts no bearer credentials: " + g.wanted())
	case len(token) > maxBearer:
		return Identity{}, errors.New("the credential is too long")
	}
	d := sha256.Sum256([]byte(token))
	if strings.HasPrefix(token, bearer.Prefix) || g.cfg.JWT.Keys == "" {
		return g.byToken(token, d)
	}
	s, ok := g.jwt.Recall(d)
	if !ok {
		leave, err := g.patience(r)
		if err != nil {
			return Identity{}, err
		}
		s, err = g.jwt.Verify(token, d)
		leave()
		if err != nil {
			g.failed(r)
			return Identity{}, err
		}
	}
	return Identity{Name: s.Name, How: ByJWT, Until: s.Until, valid: func() error { return g.jwt.Holds(s) }}, nil
}

// patience lets only a few JWTs at a time be verified for an address that sent too many invalid
// ones: verifying costs more than sending, and valid callers may share the address. Known
// JWTs do not pass here.
func (g *Gate) patience(r *http.Request) (leave func(), err error) {
	now, suspect := g.cfg.Now(), false
	g.strangers.With(host(r.RemoteAddr), now, func(c *limit.Caller) {
		suspect = c.Failures.TokensAt(now) < 1
	})
	if !suspect {
		return func() {}, nil
	}
	if !g.suspects.Enter(r.Context()) {
		return nil, tooMany("too_many_failures", time.Second, "this address sends too many invalid credentials")
	}
	return g.suspects.Leave, nil
}

func (g *Gate) failed(r *http.Request) {
	now := g.cfg.Now()
	g.strangers.With(host(r.RemoteAddr), now, func(c *limit.Caller) { c.Failures.Take(now) })
}

func (g *Gate) byToken(token string, d bearer.Digest) (Identity, error) {
	if err := bearer.Check(token); err != nil {
		return Identity{}, errors.New("the credential is not one of this service: " + err.Error())
	}
	find := func() (h bearer.Holder, err error) {
		if all := g.credentials.Load(); all != nil {
			return all.Find(d, g.cfg.Now())
		}
		return bearer.Credentials(nil).Find(d, g.cfg.Now())
	}
	h, err := find()
	if err != nil {
		return Identity{}, err
	}
	valid := func() error {
		_, err := find()
		return err
	}
	return Identity{Name: h.Name, How: ByCredential, Until: h.Expires, valid: valid}, nil
}
