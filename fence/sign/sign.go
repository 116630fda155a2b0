package sign

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/tenurehq/tenure/fence"
)

// Claims are what is signed.
type Claims struct {
	Deployment string      `json:"iss"`
	Candidate  string      `json:"sub"`
	Group      string      `json:"group"`
	Token      fence.Token `json:"token"`
	Session    string      `json:"session"` // as in fence.Stamp
	// Thumbprint of the leader's TLS certificate (RFC 8705), if it has one.
	Confirm *Confirm `json:"cnf,omitempty"`
}

// Confirm binds a signature to a TLS certificate.
type Confirm struct {
	Thumbprint string `json:"x5t#S256"`
}

// Thumbprint is the thumbprint of a certificate.
func Thumbprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return encode(sum[:])
}

// MaxSignature bounds a signature, in bytes.
const MaxSignature = fence.MaxSignature

type header struct {
	Algorithm string `json:"alg"`
	Key       string `json:"kid"`
	Type      string `json:"typ"`
}

// typ distinguishes signatures of stamps from other tokens that a key may sign.
const typ = "tenure-fence+jws"

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Signer signs grants with one key.
type Signer struct {
	key    ed25519.PrivateKey
	header string
	Key    Key // the public key, for sinks
}

// NewSigner returns a signer.
func NewSigner(private ed25519.PrivateKey) (*Signer, error) {
	if len(private) != ed25519.PrivateKeySize {
		return nil, errors.New("sign: not an Ed25519 private key")
	}
	k := publicKey(private.Public().(ed25519.PublicKey))
	h, err := json.Marshal(header{Algorithm: "EdDSA", Key: k.ID, Type: typ})
	if err != nil {
		return nil, err
	}
	return &Signer{key: private, header: encode(h), Key: k}, nil
}

// LoadSigner reads a private key: PEM, PKCS #8, as `openssl genpkey -algorithm ed25519` writes it.
func LoadSigner(path string) (*Signer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("sign: %s has no PEM block", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("sign: %s: not a PKCS #8 private key", path)
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("sign: %s: the key is %T, not Ed25519", path, key.(crypto.Signer).Public())
	}
	return NewSigner(private)
}

// Sign signs a grant. The caller must have read it from the engine.
func (s *Signer) Sign(c Claims) (string, error) {
	stamp := fence.Stamp{Deployment: c.Deployment, Group: c.Group, Token: c.Token, Session: c.Session}
	if err := stamp.Validate(); err != nil {
		return "", err
	}
	body, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	text := s.header + "." + encode(body)
	signature := text + "." + encode(ed25519.Sign(s.key, []byte(text)))
	if len(signature) > MaxSignature {
		return "", &fence.InvalidError{Field: "signature", Value: fmt.Sprintf("%d bytes", len(signature)), Rule: fmt.Sprintf("at most %d", MaxSignature)}
	}
	return signature, nil
}

// Verifier checks signatures. It caches those that it has checked, so a leader's second write needs
// no cryptography.
type Verifier struct {
	keys *KeySet

	mu      sync.RWMutex
	checked map[string]Claims // by signature, of keys in the version below
	version uint64            // of the keys
}

// NewVerifier returns a verifier.
func NewVerifier(keys *KeySet) *Verifier {
	return &Verifier{keys: keys, checked: map[string]Claims{}}
}

// maxChecked bounds the cache of a verifier.
const maxChecked = 4096

// Verify is a fence.Verifier: it takes a JSON stamp, and returns it if its signature is good. A
// signature that is bound to a TLS certificate is good only where WithCertificate has put that
// certificate into ctx.
func (v *Verifier) Verify(ctx context.Context, raw []byte) (fence.Stamp, error) {
	s, err := fence.Unsigned(ctx, raw)
	if err != nil {
		return fence.Stamp{}, err
	}
	c, err := v.Check(s)
	if err != nil {
		return fence.Stamp{}, err
	}
	if c.Confirm != nil {
		if peer, ok := ctx.Value(certificateKey{}).(*x509.Certificate); !ok || Thumbprint(peer) != c.Confirm.Thumbprint {
			return fence.Stamp{}, refused("it is bound to a TLS certificate that the caller has not shown")
		}
	}
	return s, nil
}

type certificateKey struct{}

// WithCertificate says which TLS certificate the caller has proved to have: the first one of
// tls.ConnectionState.PeerCertificates.
func WithCertificate(ctx context.Context, c *x509.Certificate) context.Context {
	if c == nil {
		return ctx
	}
	return context.WithValue(ctx, certificateKey{}, c)
}

// WithPeer calls WithCertificate for each request. Put it around a guard.
func WithPeer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			r = r.WithContext(WithCertificate(r.Context(), r.TLS.PeerCertificates[0]))
		}
		next.ServeHTTP(w, r)
	})
}

// Check returns what was signed if the stamp has a good signature for exactly its deployment, group,
// token and session. Otherwise the error is a fence.InvalidError, and nothing may be written. The
// caller must compare Claims.Confirm, if there is one, with the certificate of the sender.
func (v *Verifier) Check(s fence.Stamp) (Claims, error) {
	c, err := v.claims(s.Signature)
	switch {
	case err != nil:
		return Claims{}, err
	case c.Deployment != s.Deployment || c.Group != s.Group || c.Token != s.Token || c.Session != s.Session:
		return Claims{}, refused("it was made for another grant")
	}
	return c, nil
}

func refused(why string) error { return &fence.InvalidError{Field: "signature", Rule: why} }

// claims checks the signature itself.
func (v *Verifier) claims(signature string) (Claims, error) {
	if signature == "" {
		return Claims{}, refused("this sink requires one")
	}
	version := v.keys.version.Load()
	v.mu.RLock()
	c, ok := v.checked[signature]
	ok = ok && v.version == version
	v.mu.RUnlock()
	if ok {
		return c, nil
	}
	c, err := v.open(signature)
	if err != nil {
		return Claims{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.version != version || len(v.checked) >= maxChecked {
		v.checked, v.version = map[string]Claims{}, version
	}
	v.checked[strings.Clone(signature)] = c
	return c, nil
}

func (v *Verifier) open(signature string) (Claims, error) {
	if len(signature) > MaxSignature {
		return Claims{}, refused(fmt.Sprintf("at most %d bytes", MaxSignature))
	}
	parts := strings.Split(signature, ".")
	if len(parts) != 3 {
		return Claims{}, refused("it is not a JWS in compact form")
	}
	var h header
	if !read(parts[0], &h) || h.Algorithm != "EdDSA" || h.Type != typ {
		return Claims{}, refused("its header is not that of a stamp")
	}
	key, ok := v.keys.find(h.Key)
	if !ok {
		return Claims{}, refused("its key is not one that this sink trusts")
	}
	mac, err := strict.DecodeString(parts[2])
	if err != nil || !ed25519.Verify(key, []byte(parts[0]+"."+parts[1]), mac) {
		return Claims{}, refused("it is not good")
	}
	var c Claims
	if !read(parts[1], &c) {
		return Claims{}, refused("its claims cannot be read")
	}
	return c, nil
}

// strict refuses a second encoding of the same bytes.
var strict = base64.RawURLEncoding.Strict()

func read(part string, into any) bool {
	b, err := strict.DecodeString(part)
	return err == nil && json.Unmarshal(b, into) == nil
}
