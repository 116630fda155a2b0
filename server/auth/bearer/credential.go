// Package bearer verifies what callers send as "Authorization: Bearer": JWTs, and the credentials
// that [NewCredential] makes.
package bearer

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/server/auth/secret"
	"github.com/tenurehq/tenure/store"
)

// A credential is Prefix and 32 random bytes in base64url. Scanners, and package secret, find
// leaked credentials by their prefix.
const (
	Prefix     = "tnr_"
	tokenBytes = 32
	maxTokens  = 100_000
)

// NewCredential returns a new credential, and its hash for the file of credentials:
//
//	{"credentials": [{"name": "node-1", "sha256": "…", "expires": "2027-01-01T00:00:00Z"}]}
//
// The expiry is optional. Several credentials may have one name, so that a credential can be replaced
// without an interruption.
func NewCredential() (token, sha256Hex string) {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	token = Prefix + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

// Check refuses a credential that NewCredential did not make: a short credential could be guessed,
// because its hash is fast.
func Check(token string) error {
	rest, ok := strings.CutPrefix(token, Prefix)
	if !ok {
		return errors.New("it does not begin with " + Prefix)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	if err != nil || len(b) != tokenBytes || strings.ContainsAny(rest, "\r\n") {
		return fmt.Errorf("it is not %s and %d random bytes in base64url", Prefix, tokenBytes)
	}
	return nil
}

type tokenFile struct {
	Tokens []struct {
		Name    string    `json:"name"`
		SHA256  string    `json:"sha256"`
		Expires time.Time `json:"expires"`
		// Note is for people.
		Note string `json:"note"`
	} `json:"credentials"`
}

// Digest is the SHA-256 of a credential or JWT.
type Digest = [sha256.Size]byte

// Holder is who has a credential.
type Holder struct {
	Name    string
	Expires time.Time // zero: never
}

// Credentials are the credentials by their hash. The time of a lookup depends on the hash, which
// reveals nothing about the credential.
type Credentials map[Digest]Holder

// ParseCredentials decodes the file of credentials.
func ParseCredentials(text []byte) (Credentials, error) {
	var f tokenFile
	if err := secret.StrictJSON(text, &f); err != nil {
		return nil, err
	}
	if len(f.Tokens) > maxTokens {
		return nil, fmt.Errorf("more than %d credentials", maxTokens)
	}
	all := make(Credentials, len(f.Tokens))
	for i, t := range f.Tokens {
		if !store.ValidName(t.Name) {
			return nil, fmt.Errorf("credential %d: its name is not a node id", i+1)
		}
		sum, err := hex.DecodeString(t.SHA256)
		// The error does not quote it: it may be the credential itself.
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("credential %d (%s): its sha256 is not 64 hexadecimal digits; put the hash there, not the credential", i+1, t.Name)
		}
		d := Digest(sum)
		if was, ok := all[d]; ok {
			return nil, fmt.Errorf("credential %d (%s): the same credential is listed for %s", i+1, t.Name, was.Name)
		}
		all[d] = Holder{t.Name, t.Expires}
	}
	return all, nil
}

// Find returns the holder of a credential that is in force at a time.
func (c Credentials) Find(d Digest, now time.Time) (Holder, error) {
	h, ok := c[d]
	switch {
	case c == nil:
		return h, errors.New("this service accepts no static credentials")
	case !ok:
		return h, errors.New("the credential is unknown; it may have been revoked")
	case !h.Expires.IsZero() && !now.Before(h.Expires):
		return h, errors.New("the credential has expired")
	}
	return h, nil
}
