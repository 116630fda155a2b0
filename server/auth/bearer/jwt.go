package bearer

import (
	"cmp"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tenurehq/tenure/store"
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

// WithDefaults fills in the defaults.
func (j JWT) WithDefaults() JWT {
	j.Claim, j.Leeway, j.Lifetime = cmp.Or(j.Claim, "sub"), cmp.Or(j.Leeway, 30*time.Second), cmp.Or(j.Lifetime, 24*time.Hour)
	if len(j.Algorithms) == 0 {
		j.Algorithms = []string{"ES256", "EdDSA"}
	}
	return j
}

// Verified is a JWT that was verified.
type Verified struct {
	Name  string
	kid   string
	key   crypto.PublicKey
	Until time.Time
}

// Verifier verifies JWTs. It caches valid ones by hash, so that a known caller costs no
// signature check and the failures of strangers cannot lock it out.
type Verifier struct {
	cfg    JWT
	now    func() time.Time
	parser *jwt.Parser

	mu    sync.Mutex
	keys  Keys
	turn  int // how often the keys were replaced
	known map[Digest]Verified
}

const maxKnown = 10_000

// NewVerifier returns a verifier without keys.
func NewVerifier(cfg JWT, now func() time.Time) *Verifier {
	return &Verifier{
		cfg: cfg, now: now, known: make(map[Digest]Verified),
		parser: jwt.NewParser(
			jwt.WithValidMethods(cfg.Algorithms),
			jwt.WithIssuer(cfg.Issuer),
			jwt.WithAudience(cfg.Audience),
			jwt.WithExpirationRequired(),
			jwt.WithIssuedAt(),
			jwt.WithLeeway(cfg.Leeway),
			jwt.WithStrictDecoding(),
			jwt.WithTimeFunc(now),
		),
	}
}

// Use replaces the keys. All tokens are verified again.
func (j *Verifier) Use(keys Keys) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.keys = keys
	j.turn++
	clear(j.known)
}

// Recall returns a token from the cache if it is still valid.
func (j *Verifier) Recall(d Digest) (Verified, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s, ok := j.known[d]
	return s, ok && j.now().Before(s.Until)
}

// Verify verifies a token and caches it.
func (j *Verifier) Verify(token string, d Digest) (Verified, error) {
	j.mu.Lock()
	keys, turn := j.keys, j.turn
	j.mu.Unlock()
	s, err := j.check(token, keys)
	if err != nil {
		return Verified{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	// If the keys were replaced meanwhile, they have not verified this token.
	if turn != j.turn {
		return s, nil
	}
	if len(j.known) >= maxKnown {
		for old := range j.known {
			delete(j.known, old)
			break
		}
	}
	j.known[d] = s
	return s, nil
}

// Holds returns an error if the key that verified s is not in force any more.
func (j *Verifier) Holds(s Verified) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	now, ok := j.keys[s.kid].Key.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !now.Equal(s.key) {
		return errors.New("the key of the JWT was removed")
	}
	return nil
}

func (j *Verifier) check(token string, keys Keys) (Verified, error) {
	var s Verified
	claims := jwt.MapClaims{}
	_, err := j.parser.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		// crit lists extensions that must be understood. None is.
		if _, ok := t.Header["crit"]; ok {
			return nil, errors.New("crit")
		}
		s.kid, _ = t.Header["kid"].(string)
		k, ok := keys[s.kid]
		if !ok {
			return nil, errUnknownKey
		}
		if !slices.Contains(k.Algorithms, t.Method.Alg()) {
			return nil, errKeyAlgorithm
		}
		s.key = k.Key
		return k.Key, nil
	})
	if err != nil {
		return Verified{}, explainJWT(err)
	}
	exp, err := claims.GetExpirationTime()
	if err != nil || exp == nil {
		return Verified{}, errors.New("the JWT has no expiry")
	}
	if ahead := exp.Sub(j.now()); ahead > j.cfg.Lifetime+j.cfg.Leeway {
		return Verified{}, fmt.Errorf("the JWT is valid for longer than the %v that are allowed here", j.cfg.Lifetime)
	}
	s.Until = exp.Add(j.cfg.Leeway)
	s.Name, _ = claims[j.cfg.Claim].(string)
	if !store.ValidName(s.Name) {
		return Verified{}, fmt.Errorf("the JWT's %s is not a node id", j.cfg.Claim)
	}
	return s, nil
}

var (
	errUnknownKey   = errors.New("the JWT's key id is not known here")
	errKeyAlgorithm = errors.New("the JWT's algorithm is not that of its key")
)

// explainJWT replaces errors of the library, which can quote the token.
func explainJWT(err error) error {
	for _, known := range []struct{ is, say error }{
		{errUnknownKey, errUnknownKey},
		{errKeyAlgorithm, errKeyAlgorithm},
		{jwt.ErrTokenMalformed, errors.New("the credential is neither a JWT nor a credential of this service")},
		{jwt.ErrTokenUnverifiable, errors.New("the JWT's header has an unsupported algorithm or extension")},
		{jwt.ErrTokenSignatureInvalid, errors.New("the JWT's signature or algorithm is not valid")},
		{jwt.ErrTokenExpired, errors.New("the JWT has expired")},
		{jwt.ErrTokenNotValidYet, errors.New("the JWT is not valid yet")},
		{jwt.ErrTokenUsedBeforeIssued, errors.New("the JWT was issued in the future")},
		{jwt.ErrTokenInvalidAudience, errors.New("the JWT is for another audience")},
		{jwt.ErrTokenInvalidIssuer, errors.New("the JWT is from another issuer")},
		{jwt.ErrTokenRequiredClaimMissing, errors.New("the JWT lacks an expiry, issuer or audience")},
	} {
		if errors.Is(err, known.is) {
			return known.say
		}
	}
	return errors.New("the JWT is not valid")
}
