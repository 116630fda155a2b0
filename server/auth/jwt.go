package auth

import (
	"crypto"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tenurehq/tenure/store"
)

const maxBearer = 8 << 10

// seal is the result of verifying a JWT.
type seal struct {
	name  string
	kid   string
	key   crypto.PublicKey
	until time.Time
}

// jwtReader verifies JWTs. It caches valid ones by hash, so that a known caller costs no
// signature check and the failures of strangers cannot lock it out.
type jwtReader struct {
	cfg    JWT
	now    func() time.Time
	parser *jwt.Parser

	mu    sync.Mutex
	keys  keySet
	turn  int // how often the keys were replaced
	known map[digest]seal
}

const maxKnown = 10_000

func newJWTReader(cfg JWT, now func() time.Time) *jwtReader {
	return &jwtReader{
		cfg: cfg, now: now, known: make(map[digest]seal),
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

// use replaces the keys. All tokens are verified again.
func (j *jwtReader) use(keys keySet) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.keys = keys
	j.turn++
	clear(j.known)
}

// recall returns a token from the cache if it is still valid.
func (j *jwtReader) recall(d digest) (seal, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s, ok := j.known[d]
	return s, ok && j.now().Before(s.until)
}

// read verifies a token and caches it.
func (j *jwtReader) read(token string, d digest) (seal, error) {
	j.mu.Lock()
	keys, turn := j.keys, j.turn
	j.mu.Unlock()
	s, err := j.verify(token, keys)
	if err != nil {
		return seal{}, err
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

// holds returns an error if the key that verified s is not in force any more.
func (j *jwtReader) holds(s seal) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	now, ok := j.keys[s.kid].key.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !now.Equal(s.key) {
		return errors.New("the key of the JWT was removed")
	}
	return nil
}

func (j *jwtReader) verify(token string, keys keySet) (seal, error) {
	var s seal
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
		if !slices.Contains(k.algorithms, t.Method.Alg()) {
			return nil, errKeyAlgorithm
		}
		s.key = k.key
		return k.key, nil
	})
	if err != nil {
		return seal{}, explainJWT(err)
	}
	exp, err := claims.GetExpirationTime()
	if err != nil || exp == nil {
		return seal{}, errors.New("the JWT has no expiry")
	}
	if ahead := exp.Sub(j.now()); ahead > j.cfg.Lifetime+j.cfg.Leeway {
		return seal{}, fmt.Errorf("the JWT is valid for longer than the %v that are allowed here", j.cfg.Lifetime)
	}
	s.until = exp.Add(j.cfg.Leeway)
	s.name, _ = claims[j.cfg.Claim].(string)
	if !store.ValidName(s.name) {
		return seal{}, fmt.Errorf("the JWT's %s is not a node id", j.cfg.Claim)
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
