package sign

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
)

// Key is a public key as a JWK (RFC 8037).
type Key struct {
	Type  string `json:"kty"`
	Curve string `json:"crv"`
	X     string `json:"x"`
	ID    string `json:"kid"`
	Use   string `json:"use,omitempty"`
}

func publicKey(public ed25519.PublicKey) Key {
	k := Key{Type: "OKP", Curve: "Ed25519", X: encode(public), Use: "sig"}
	// The thumbprint of RFC 7638: the required members in the order of their names.
	sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":%q,"kty":%q,"x":%q}`, k.Curve, k.Type, k.X))
	k.ID = encode(sum[:])
	return k
}

// KeySet is the public keys that a sink trusts. Its methods may be called concurrently.
type KeySet struct {
	version atomic.Uint64

	mu   sync.RWMutex
	keys map[string]ed25519.PublicKey
}

type keysJSON struct {
	Keys []Key `json:"keys"`
}

// maxKeys bounds a set.
const maxKeys = 64

// NewKeySet returns a set of keys.
func NewKeySet(keys ...Key) (*KeySet, error) {
	s := &KeySet{}
	err := s.Replace(keys...)
	return s, err
}

// Replace sets the keys. What was signed with a key that is no longer there is refused from now on. On
// an error the set is as before.
func (s *KeySet) Replace(keys ...Key) error {
	if len(keys) > maxKeys {
		return fmt.Errorf("sign: %d keys: at most %d", len(keys), maxKeys)
	}
	next := map[string]ed25519.PublicKey{}
	for _, k := range keys {
		if k.Type != "OKP" || k.Curve != "Ed25519" {
			return fmt.Errorf("sign: key %q is not an Ed25519 key", k.ID)
		}
		x, err := strict.DecodeString(k.X)
		if err != nil || len(x) != ed25519.PublicKeySize {
			return fmt.Errorf("sign: key %q has no valid x", k.ID)
		}
		if own := publicKey(x).ID; k.ID != "" && k.ID != own {
			return fmt.Errorf("sign: key %q: its kid must be its thumbprint, %q", k.ID, own)
		} else {
			next[own] = x
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = next
	s.version.Add(1)
	return nil
}

func (s *KeySet) find(id string) (ed25519.PublicKey, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	k, ok := s.keys[id]
	return k, ok
}

// Parse reads a JWK set. A set without a key is refused: it would refuse every write.
func Parse(text []byte) ([]Key, error) {
	var j keysJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return nil, fmt.Errorf("sign: not a JWK set: %w", err)
	}
	if len(j.Keys) == 0 {
		return nil, errors.New("sign: the JWK set has no key")
	}
	return j.Keys, nil
}

// Marshal is the reverse of Parse.
func Marshal(keys ...Key) ([]byte, error) { return json.Marshal(keysJSON{keys}) }

// Load reads a key set from a file.
func Load(path string) (*KeySet, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	keys, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return NewKeySet(keys...)
}

// Fetch reads the keys that a service publishes, from its GET /v1/keys. Call KeySet.Replace with them
// from time to time: a sink must know a new key before the service signs with it.
func Fetch(ctx context.Context, client *http.Client, url string) ([]Key, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	const most = 64 << 10
	text, err := io.ReadAll(io.LimitReader(resp.Body, most))
	switch {
	case err != nil:
		return nil, fmt.Errorf("sign: %w", err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("sign: %s answered %s", url, resp.Status)
	}
	return Parse(text)
}
