package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/store"
)

// A static token is tokenBegin and 32 random bytes in base64url. Scanners, and Redact, find
// leaked tokens by their prefix.
const (
	tokenBegin = "tnr_"
	tokenBytes = 32
	maxTokens  = 100_000
)

// NewToken returns a new token, and its hash for the file of tokens:
//
//	{"tokens": [{"name": "node-1", "sha256": "…", "expires": "2027-01-01T00:00:00Z"}]}
//
// The expiry is optional. Several tokens may have one name, so that a token can be replaced
// without an interruption.
func NewToken() (token, sha256Hex string) {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	token = tokenBegin + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

// checkToken refuses a token that NewToken did not make: a short token could be guessed,
// because its hash is fast.
func checkToken(token string) error {
	rest, ok := strings.CutPrefix(token, tokenBegin)
	if !ok {
		return errors.New("it does not begin with " + tokenBegin)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	if err != nil || len(b) != tokenBytes || strings.ContainsAny(rest, "\r\n") {
		return fmt.Errorf("it is not %s and %d random bytes in base64url", tokenBegin, tokenBytes)
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
	} `json:"tokens"`
}

type digest = [sha256.Size]byte

type holder struct {
	name    string
	expires time.Time // zero: never
}

// tokens are the static tokens by their hash. The time of a lookup depends on the hash, which
// reveals nothing about the token.
type tokens map[digest]holder

func parseTokens(text []byte) (tokens, error) {
	var f tokenFile
	if err := strictJSON(text, &f); err != nil {
		return nil, err
	}
	if len(f.Tokens) > maxTokens {
		return nil, fmt.Errorf("more than %d tokens", maxTokens)
	}
	all := make(tokens, len(f.Tokens))
	for i, t := range f.Tokens {
		if !store.ValidName(t.Name) {
			return nil, fmt.Errorf("token %d: its name is not a node id", i+1)
		}
		sum, err := hex.DecodeString(t.SHA256)
		// The error does not quote it: it may be the token itself.
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("token %d (%s): its sha256 is not 64 hexadecimal digits; put the hash there, not the token", i+1, t.Name)
		}
		d := digest(sum)
		if was, ok := all[d]; ok {
			return nil, fmt.Errorf("token %d (%s): the same token is listed for %s", i+1, t.Name, was.name)
		}
		all[d] = holder{t.Name, t.Expires}
	}
	return all, nil
}
