package fence

import (
	"fmt"
	"strconv"
)

// Token is the fencing token of one grant: epoch<<40 | counter. A later grant
// of a group always has a larger one, so a resource that remembers the largest
// it has seen can tell a stale leader from the present one.
//
// Tokens stay below 2^53, so every JSON reader keeps them exact. The counter
// grows with each grant and never restarts; an operator raises the epoch after
// the engine was restored from a backup, which may have taken the counter back.
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

// NewToken composes a token. One of parts that are out of range is not Valid: it
// must not wrap around into a token that was granted.
func NewToken(epoch, counter uint64) Token {
	if epoch > MaxEpoch || counter > MaxCounter {
		return MaxToken + 1
	}
	return Token(epoch<<epochShift | counter)
}

// Epoch returns how often the deployment's epoch had been raised.
func (t Token) Epoch() uint64 { return uint64(t >> epochShift) }

// Counter returns the grant's number within the epoch.
func (t Token) Counter() uint64 { return uint64(t) & MaxCounter }

// Valid reports whether t can be the token of a grant: zero is none.
func (t Token) Valid() bool { return t > 0 && t <= MaxToken }

// Next returns the token of the grant after t in the given epoch: the counter
// goes on even when the epoch rises, and never goes back to an older epoch. Only
// a counter that was used up starts anew, in a higher epoch.
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

// String returns the decimal number, as on the wire.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// longestToken is the number of digits of MaxToken.
const longestToken = 16

// ParseToken reads a token from outside: decimal digits only, from 1 to
// MaxToken. Signs, fractions, exponents, spaces and leading zeros are refused,
// because two spellings of one number are two chances to be misread.
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

// UnmarshalJSON reads a JSON number by the rule of ParseToken; a bare 0 means
// that there is no token.
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

// clip keeps ten megabytes of somebody's token out of our error messages.
func clip(s string) string {
	const most = 32
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:most], len(s))
}
