package fence

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// Stamp identifies one write of a leader: who writes (deployment, group, token) and, for
// strict sinks, which of its writes this is (seq).
type Stamp struct {
	Deployment string `json:"deployment"`
	Group      string `json:"group"`
	Token      Token  `json:"token"`
	Seq        uint64 `json:"seq,omitempty"`
	// Session identifies the session that the token was granted to; see SessionDigest.
	// A store that lost data can grant one token to two sessions. A sink that knows
	// the session of its token refuses the other session. Empty means unknown: such a
	// stamp is compared by its token only.
	Session string `json:"session,omitempty"`
	// Signature proves that the token was granted, to sinks that require that: see package sign.
	Signature string `json:"signature,omitempty"`
}

// MaxSignature bounds Stamp.Signature, in bytes.
const MaxSignature = 1024

// MaxSession bounds Stamp.Session, in bytes.
const MaxSession = 64

// SessionDigest returns the value of Stamp.Session: a digest of the session's id, because on
// some engines everybody who knows the id can close the session.
func SessionDigest(session string) string {
	sum := sha256.Sum256([]byte(session))
	return hex.EncodeToString(sum[:8])
}

// MaxSeq is the largest sequence number of a stamp: 2^53 − 1, exact in JSON.
const MaxSeq uint64 = 1<<53 - 1

// Validate refuses a stamp that no leader can have written.
func (s Stamp) Validate() error {
	switch {
	case s.Deployment == "":
		return &InvalidError{Field: "deployment", Rule: "must not be empty"}
	case s.Group == "":
		return &InvalidError{Field: "group", Rule: "must not be empty"}
	case !s.Token.Valid():
		return &InvalidError{Field: "token", Value: s.Token.String(), Rule: "from 1 to 2^53-1"}
	case s.Seq > MaxSeq:
		return &InvalidError{Field: "seq", Value: fmt.Sprint(s.Seq), Rule: "at most 2^53-1"}
	case len(s.Session) > MaxSession || strings.ContainsFunc(s.Session, func(c rune) bool { return c <= ' ' || c > '~' }):
		return &InvalidError{Field: "session", Value: clip(s.Session), Rule: fmt.Sprintf("at most %d bytes of visible ASCII", MaxSession)}
	case len(s.Signature) > MaxSignature || strings.ContainsFunc(s.Signature, func(c rune) bool { return c <= ' ' || c > '~' }):
		return &InvalidError{Field: "signature", Rule: fmt.Sprintf("at most %d bytes of visible ASCII", MaxSignature)}
	}
	return nil
}

// WithSeq returns the stamp of the seq-th write to a strict sink, counted from 1.
func (s Stamp) WithSeq(seq uint64) Stamp {
	s.Seq = seq
	return s
}

// String is for people and logs.
func (s Stamp) String() string {
	if s.Seq == 0 {
		return fmt.Sprintf("%s/%s token %d", s.Deployment, s.Group, s.Token)
	}
	return fmt.Sprintf("%s/%s token %d seq %d", s.Deployment, s.Group, s.Token, s.Seq)
}

// A Verifier decodes a stamp that came over the wire, and returns an error if it must not be accepted. Tokens protect
// against mistakes; the Verifier of package sign protects against attackers.
type Verifier func(ctx context.Context, raw []byte) (Stamp, error)

// maxRaw bounds the input of a Verifier, in bytes.
const maxRaw = 4096

// Unsigned is the Verifier that accepts every valid JSON stamp.
func Unsigned(_ context.Context, raw []byte) (Stamp, error) {
	if len(raw) > maxRaw {
		return Stamp{}, &InvalidError{Field: "stamp", Value: fmt.Sprintf("%d bytes", len(raw)), Rule: fmt.Sprintf("at most %d bytes", maxRaw)}
	}
	var s Stamp
	if err := json.Unmarshal(raw, &s); err != nil {
		return Stamp{}, &InvalidError{Field: "stamp", Value: clip(string(raw)), Rule: "a JSON stamp: " + err.Error()}
	}
	return s, s.Validate()
}

// A Sealer is a sink that can refuse all lower tokens before the first write. tenure.Lead
// seals its sinks before work begins, so that an older leader's write cannot be applied
// between the new leader's first read and its first write.
type Sealer interface {
	// Seal raises the sink's mark to the stamp's token. A StaleError means that the sink has seen
	// a larger token, a CloneError that another session sealed it with the same token.
	Seal(ctx context.Context, s Stamp) error
}
