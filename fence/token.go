package fence

import (
	"fmt"
	"strconv"
)

// Token is the fencing token of one grant: epoch<<40 | counter. A later grant of a group
// always has a larger one, so a resource that stores the largest token that it has seen can
// refuse a stale leader.
//
// Tokens stay below 2^53, so every JSON reader keeps them exact. The counter grows with each
// grant and never restarts. An operator raises the epoch after the engine was restored from a
// backup, which may have lowered the counter.
type Token uint64

const (
	epochShift = 40

	// MaxToken is the largest token: 2^53 − 1.
	MaxToken Token = 1<<53 - 1
	// MaxEpoch is the largest epoch that fits above the counter.
	MaxEpoch uint64 = uint64(MaxToken >> epochShift)
	// MaxCounter is the largest counter within an epoch.
	MaxCounter uint64 = 1<<epochShift - 1
)

// NewToken composes a token. If a part is out of range, the token is not Valid: it must not
// wrap around to a token that was granted.
func NewToken(epoch, counter uint64) Token {
	if epoch > MaxEpoch || counter > MaxCounter {
		return MaxToken + 1
	}
	return Token(epoch<<epochShift | counter)
}

// Epoch returns the epoch of the token.
func (t Token) Epoch() uint64 { return uint64(t >> epochShift) }

// Counter returns the grant's number within the epoch.
func (t Token) Counter() uint64 { return uint64(t) & MaxCounter }

// Valid reports whether t can be the token of a grant. Zero cannot.
func (t Token) Valid() bool { return t > 0 && t <= MaxToken }

// Next returns the token of the grant after t in the given epoch. The counter continues when
// the epoch rises, and an older epoch is never used. Only a counter at its maximum starts
// again, in a higher epoch.
func (t Token) Next(epoch uint64) (Token, error) {
	raised := epoch > t.Epoch()
	epoch = max(epoch, t.Epoch())
	if epoch > MaxEpoch {
		return 0, &InvalidError{Field: "epoch", Value: strconv.FormatUint(epoch, 10), Rule: fmt.Sprintf("at most %d", MaxEpoch)}
	}
	counter := t.Counter() + 1
	if counter > MaxCounter {
		if !raised {
			return 0, &InvalidError{Field: "token", Value: t.String(), Rule: "its epoch is used up: raise the epoch"}
		}
		counter = 1
	}
	return NewToken(epoch, counter), nil
}

// String returns the decimal number, as it is sent over the network.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// longestToken is the number of digits of MaxToken.
const longestToken = 16

// ParseToken parses a token: decimal digits only, from 1 to MaxToken. It refuses signs,
// fractions, exponents, spaces and leading zeros, so that each token has one spelling.
func ParseToken(s string) (Token, error) {
	bad := func(rule string) (Token, error) {
		return 0, &InvalidError{Field: "token", Value: clip(s), Rule: rule}
	}
	if s == "" {
		return bad("missing: a decimal number from 1 to 2^53-1")
	}
	if len(s) > longestToken {
		return bad("a decimal number from 1 to 2^53-1")
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return bad("decimal digits only")
		}
	}
	if s[0] == '0' {
		return bad("from 1 to 2^53-1, without leading zeros")
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || Token(n) > MaxToken {
		return bad("at most 2^53-1")
	}
	return Token(n), nil
}

// MarshalJSON writes a JSON number.
func (t Token) MarshalJSON() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalJSON reads a JSON number by the rule of ParseToken; 0 means no token.
func (t *Token) UnmarshalJSON(data []byte) error {
	if string(data) == "0" || string(data) == "null" {
		*t = 0
		return nil
	}
	parsed, err := ParseToken(string(data))
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}

// clip shortens long input for error messages.
func clip(s string) string {
	const most = 32
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:most], len(s))
}
