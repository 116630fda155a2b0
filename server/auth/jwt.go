package auth

import (
	"crypto"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tenurehq/tenure/lease"
)

const maxBearer = 8 << 10

// seal is what a JWT was found to say.
type seal struct {
	name  string
	kid   string
	key   crypto.PublicKey
	until time.Time
}

// jwtReader checks tokens. What was found good is remembered by hash, so that a caller
// who is known costs no signature and cannot be locked out by strangers' failures.
type jwtReader struct {
	cfg    JWT
	now    func() time.Time
	parser *jwt.Parser

	mu    sync.Mutex
	keys  keySet
	turn  int // how often keys were put into force
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

// use puts keys into force. Tokens are judged anew by them.
func (j *jwtReader) use(keys keySet) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.keys = keys
	j.turn++
	clear(j.known)
}

// recall returns what a token said that was found good before and still is.
func (j *jwtReader) recall(d digest) (seal, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s, ok := j.known[d]
	return s, ok && j.now().Before(s.until)
}

// read checks a token and remembers it.
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
	// Keys that came meanwhile have not judged this token.
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

// holds reports whether the key that vouched for s is still one of ours.
func (j *jwtReader) holds(s seal) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	now, ok := j.keys[s.kid].key.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !now.Equal(s.key) {
		return errors.New("the key of the token is not known any more")
	}
	return nil
}

func (j *jwtReader) verify(token string, keys keySet) (seal, error) {
	var s seal
	claims := jwt.MapClaims{}
	_, err := j.parser.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		// Extensions that must be understood, and none is.
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
		return seal{}, errors.New("the token has no expiry")
	}
	if ahead := exp.Sub(j.now()); ahead > j.cfg.Lifetime+j.cfg.Leeway {
		return seal{}, fmt.Errorf("the token is valid for longer than the %v that are allowed here", j.cfg.Lifetime)
	}
	s.until = exp.Add(j.cfg.Leeway)
	s.name, _ = claims[j.cfg.Claim].(string)
	if !lease.ValidName(s.name) {
		return seal{}, fmt.Errorf("the token's %s is not a node id", j.cfg.Claim)
	}
	return s, nil
}

var (
	errUnknownKey   = errors.New("the token's key id is not known here")
	errKeyAlgorithm = errors.New("the token's algorithm is not that of its key")
)

// explainJWT says what is wrong with a token in our words: the library's errors can
// quote it.
func explainJWT(err error) error {
	for _, known := range []struct{ is, say error }{
		{errUnknownKey, errUnknownKey},
		{errKeyAlgorithm, errKeyAlgorithm},
		{jwt.ErrTokenMalformed, errors.New("it is neither a JWT nor a token of this service")},
		{jwt.ErrTokenUnverifiable, errors.New("the token's header asks for what is not taken here")},
		{jwt.ErrTokenSignatureInvalid, errors.New("the token's signature or algorithm is not valid")},
		{jwt.ErrTokenExpired, errors.New("the token has expired")},
		{jwt.ErrTokenNotValidYet, errors.New("the token is not valid yet")},
		{jwt.ErrTokenUsedBeforeIssued, errors.New("the token was issued in the future")},
		{jwt.ErrTokenInvalidAudience, errors.New("the token is for another audience")},
		{jwt.ErrTokenInvalidIssuer, errors.New("the token is from another issuer")},
		{jwt.ErrTokenRequiredClaimMissing, errors.New("the token lacks an expiry, issuer or audience")},
	} {
		if errors.Is(err, known.is) {
			return known.say
		}
	}
	return errors.New("the token is not valid")
}
