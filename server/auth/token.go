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

	"github.com/tenurehq/tenure/lease"
)

// A static token is tokenBegin and 32 random bytes in base64url. The beginning lets
// scanners, and Redact, find one that was left somewhere.
const (
	tokenBegin = "tnr_"
	tokenBytes = 32
	maxTokens  = 100_000
)

// NewToken makes a token for its holder, and the hash that goes into the file of tokens:
//
//	{"tokens": [{"name": "node-1", "sha256": "…", "expires": "2027-01-01T00:00:00Z"}]}
//
// The expiry is optional. Several tokens may have one name, so that they can be changed
// without a gap.
func NewToken() (token, sha256Hex string) {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	token = tokenBegin + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

// checkToken refuses what NewToken did not make: a short or invented token could be
// found by trying, its hash being fast.
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

// tokens are the static tokens by their hash. That a lookup's time depends on the hash
// tells nothing of the token.
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
		if !lease.ValidName(t.Name) {
			return nil, fmt.Errorf("token %d: its name is not a node id", i+1)
		}
		sum, err := hex.DecodeString(t.SHA256)
		// Not quoted: somebody may have put the token itself there.
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("token %d (%s): its sha256 is not 64 hexadecimal digits; put the hash there, not the token", i+1, t.Name)
		}
		d := digest(sum)
		if was, ok := all[d]; ok {
			return nil, fmt.Errorf("token %d (%s): the token before was given to %s", i+1, t.Name, was.name)
		}
		all[d] = holder{t.Name, t.Expires}
	}
	return all, nil
}
