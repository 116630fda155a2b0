package bearer

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/tenurehq/tenure/server/auth/secret"
)

const (
	maxKeys    = 100
	maxKeyID   = 256
	minRSABits = 2048
	maxRSABits = 8192
)

// Algorithms returns those that are supported.
func Algorithms() []string {
	return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
}

// PublicKey is a key and the algorithms that it may be used with. The header of a token never
// decides that.
type PublicKey struct {
	Key        crypto.PublicKey
	Algorithms []string
}

// Keys are the keys by their id.
type Keys map[string]PublicKey

// jwk is a public key of RFC 7517. Other members are ignored, as the RFC requires. Secret ones
// are decoded in order to refuse them.
type jwk struct {
	Kty, Kid, Use, Alg, Crv string
	N, E, X, Y              string
	D, K                    json.RawMessage
}

// ParseKeys decodes a JWK set or PEM blocks.
func ParseKeys(text []byte) (Keys, error) {
	keys := make(Keys)
	read := keys.readPEM
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		read = keys.readJWKS
	}
	if err := read(text); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("the file has no public key; want a JWK set or PEM blocks of type PUBLIC KEY")
	}
	return keys, nil
}

func (ks Keys) add(kid string, key crypto.PublicKey, alg string) error {
	algorithms, err := algorithmsOf(key)
	switch _, twice := ks[kid]; {
	case err != nil:
		return fmt.Errorf("key %q: %w", secret.Glimpse(kid), err)
	case kid == "" || len(kid) > maxKeyID:
		return fmt.Errorf("a key's id is empty or longer than %d bytes", maxKeyID)
	case twice:
		return fmt.Errorf("key id %q occurs twice", secret.Glimpse(kid))
	case len(ks) >= maxKeys:
		return fmt.Errorf("more than %d keys", maxKeys)
	case alg != "" && !slices.Contains(algorithms, alg):
		return fmt.Errorf("key %q: algorithm %q is not one of %v", secret.Glimpse(kid), secret.Glimpse(alg), algorithms)
	case alg != "":
		algorithms = []string{alg}
	}
	ks[kid] = PublicKey{key, algorithms}
	return nil
}

func algorithmsOf(key crypto.PublicKey) ([]string, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits || bits > maxRSABits || k.E < 3 || k.E&1 == 0 {
			return nil, fmt.Errorf("an RSA key of %d bits; want %d to %d", k.N.BitLen(), minRSABits, maxRSABits)
		}
		return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return []string{"ES256"}, nil
		case elliptic.P384():
			return []string{"ES384"}, nil
		case elliptic.P521():
			return []string{"ES512"}, nil
		}
	case ed25519.PublicKey:
		return []string{"EdDSA"}, nil
	}
	return nil, fmt.Errorf("a key of type %T; want RSA, ECDSA on P-256, P-384 or P-521, or Ed25519", key)
}

func (ks Keys) readJWKS(text []byte) error {
	var set struct {
		Keys []jwk `json:"keys"`
	}
	// Unknown members are allowed by the RFC.
	if err := json.Unmarshal(text, &set); err != nil {
		return errors.New("not a JWK set: " + secret.Clip(err.Error()))
	}
	for i, k := range set.Keys {
		switch {
		case k.D != nil || k.K != nil || k.Kty == "oct":
			return fmt.Errorf("key %d is a secret key; only public keys are allowed: revoke it, because it was stored on this disk", i+1)
		case k.Use != "" && k.Use != "sig":
			continue // for encryption
		}
		key, err := k.public()
		if err != nil {
			return fmt.Errorf("key %d (%q): %w", i+1, secret.Glimpse(k.Kid), err)
		}
		if err := ks.add(k.Kid, key, k.Alg); err != nil {
			return err
		}
	}
	return nil
}

func (k jwk) public() (crypto.PublicKey, error) {
	b64 := func(s string) []byte {
		b, _ := base64.RawURLEncoding.DecodeString(s)
		return b
	}
	switch k.Kty {
	case "RSA":
		n, e := b64(k.N), new(big.Int).SetBytes(b64(k.E))
		if len(n) == 0 || len(n) > maxRSABits/8 || !e.IsInt64() || e.Int64() > 1<<31-1 {
			return nil, errors.New("its modulus or exponent is missing or too large")
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(e.Int64())}, nil
	case "EC":
		curve, ok := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[k.Crv]
		if !ok {
			return nil, fmt.Errorf("curve %q is not P-256, P-384 or P-521", secret.Glimpse(k.Crv))
		}
		size := (curve.Params().BitSize + 7) / 8
		x, y := b64(k.X), b64(k.Y)
		if len(x) != size || len(y) != size {
			return nil, fmt.Errorf("its x and y are not %d bytes in base64url", size)
		}
		key, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
		if err != nil {
			return nil, errors.New("its point is not on the curve")
		}
		return key, nil
	case "OKP":
		x := b64(k.X)
		if k.Crv != "Ed25519" || len(x) != ed25519.PublicKeySize {
			return nil, errors.New("want Ed25519 with 32 bytes in base64url")
		}
		return ed25519.PublicKey(x), nil
	}
	return nil, fmt.Errorf("kty %q is not RSA, EC or OKP", secret.Glimpse(k.Kty))
}

func (ks Keys) readPEM(text []byte) error {
	for n := 1; ; n++ {
		block, rest := pem.Decode(text)
		if block == nil {
			if len(bytes.TrimSpace(text)) > 0 {
				return fmt.Errorf("the text after PEM block %d cannot be read", n-1)
			}
			return nil
		}
		text = rest
		if block.Type != "PUBLIC KEY" {
			return fmt.Errorf("PEM block %d is not a PUBLIC KEY; private keys are not allowed", n)
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return fmt.Errorf("PEM block %d: the public key cannot be read", n)
		}
		kid := block.Headers["Key-Id"]
		if kid == "" {
			kid = thumbprint(key)
		}
		if err := ks.add(kid, key, ""); err != nil {
			return err
		}
	}
}

// thumbprint is the thumbprint of RFC 7638; empty for an unsupported type of key.
func thumbprint(key crypto.PublicKey) string {
	b64 := base64.RawURLEncoding.EncodeToString
	var canonical string
	switch k := key.(type) {
	case *rsa.PublicKey:
		canonical = fmt.Sprintf(`{"e":%q,"kty":"RSA","n":%q}`, b64(big.NewInt(int64(k.E)).Bytes()), b64(k.N.Bytes()))
	case *ecdsa.PublicKey:
		point, err := k.Bytes()
		if err != nil {
			return ""
		}
		half := len(point) / 2
		canonical = fmt.Sprintf(`{"crv":%q,"kty":"EC","x":%q,"y":%q}`, k.Params().Name, b64(point[1:1+half]), b64(point[1+half:]))
	case ed25519.PublicKey:
		canonical = fmt.Sprintf(`{"crv":"Ed25519","kty":"OKP","x":%q}`, b64(k))
	default:
		return ""
	}
	sum := sha256.Sum256([]byte(canonical))
	return b64(sum[:])
}
