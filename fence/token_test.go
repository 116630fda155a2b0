package fence

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
)

// A token has one spelling. Everything else is refused with a message that says what is wrong
// and quotes only a short part of long input.
func TestParseToken(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Token
		err  string
	}{
		{"1", 1, ""},
		{"42", 42, ""},
		{"1099511627777", NewToken(1, 1), ""},
		{"9007199254740991", MaxToken, ""},

		{"", 0, `fence: invalid token: missing: a decimal number from 1 to 2^53-1`},
		{"0", 0, `fence: invalid token "0": from 1 to 2^53-1, without leading zeros`},
		{"007", 0, `fence: invalid token "007": from 1 to 2^53-1, without leading zeros`},
		{"9007199254740992", 0, `fence: invalid token "9007199254740992": at most 2^53-1`},
		{"9007199254740993", 0, `fence: invalid token "9007199254740993": at most 2^53-1`},
		{"9999999999999999", 0, `fence: invalid token "9999999999999999": at most 2^53-1`},
		{"9223372036854775807", 0, `fence: invalid token "9223372036854775807": a decimal number from 1 to 2^53-1`},
		{"18446744073709551616", 0, `fence: invalid token "18446744073709551616": a decimal number from 1 to 2^53-1`},
		{"-1", 0, `fence: invalid token "-1": decimal digits only`},
		{"+1", 0, `fence: invalid token "+1": decimal digits only`},
		{"1.5", 0, `fence: invalid token "1.5": decimal digits only`},
		{"1.0", 0, `fence: invalid token "1.0": decimal digits only`},
		{"1e3", 0, `fence: invalid token "1e3": decimal digits only`},
		{"0x10", 0, `fence: invalid token "0x10": decimal digits only`},
		{"1_000", 0, `fence: invalid token "1_000": decimal digits only`},
		{" 1", 0, `fence: invalid token " 1": decimal digits only`},
		{"1 ", 0, `fence: invalid token "1 ": decimal digits only`},
		{"1\n", 0, `fence: invalid token "1\n": decimal digits only`},
		{"٣", 0, `fence: invalid token "٣": decimal digits only`},
		{"MAX_INT", 0, `fence: invalid token "MAX_INT": decimal digits only`},
		{"null", 0, `fence: invalid token "null": decimal digits only`},
		{strings.Repeat("9", 10<<20), 0, `fence: invalid token "99999999999999999999999999999999… (10485760 bytes)": a decimal number from 1 to 2^53-1`},
	} {
		got, err := ParseToken(tt.in)
		if got != tt.want || message(err) != tt.err {
			t.Errorf("%q: %d, %v; want %d, %s", clip(tt.in), got, err, tt.want, tt.err)
		}
		if err != nil && !refusedAs[*InvalidError](err) {
			t.Errorf("%q: %#v is not an InvalidError that is ErrRefused", clip(tt.in), err)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func refusedAs[E error](err error) bool {
	var e E
	return errors.As(err, &e) && errors.Is(err, ErrRefused)
}

// A printed token is parsed as the same token.
func TestTokenRoundTrip(t *testing.T) {
	for _, token := range []Token{1, 2, 10, NewToken(0, MaxCounter), NewToken(1, 0), NewToken(1, 1), NewToken(MaxEpoch, 0), MaxToken - 1, MaxToken} {
		if got, err := ParseToken(token.String()); got != token || err != nil {
			t.Errorf("ParseToken(%q) = %d, %v", token, got, err)
		}
		data, err := json.Marshal(token)
		if err != nil || string(data) != token.String() {
			t.Errorf("JSON of %d is %s, %v", token, data, err)
		}
		var got Token
		if err := json.Unmarshal(data, &got); got != token || err != nil {
			t.Errorf("%s is read back as %d, %v", data, got, err)
		}
		// Readers that use floating point lose no precision.
		var f float64
		if err := json.Unmarshal(data, &f); err != nil || Token(f) != token {
			t.Errorf("%s as a float64 is %v, %v", data, f, err)
		}
		if token.Epoch()<<40|token.Counter() != uint64(token) {
			t.Errorf("%d falls apart into %d and %d", token, token.Epoch(), token.Counter())
		}
	}
}

// JSON numbers follow the same rule; 0 and null mean no token, and a refused value leaves the
// variable unchanged.
func TestTokenJSON(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Token
		ok   bool
	}{
		{`0`, 0, true},
		{`null`, 0, true},
		{`7`, 7, true},
		{` 7 `, 7, true}, // JSON allows the spaces
		{`"7"`, 0, false},
		{`7.0`, 0, false},
		{`7e0`, 0, false},
		{`-7`, 0, false},
		{`-0`, 0, false},
		{`9007199254740992`, 0, false},
		{`18446744073709551623`, 0, false},
		{`true`, 0, false},
		{`[7]`, 0, false},
		{`""`, 0, false},
	} {
		const before = Token(99)
		got := before
		err := json.Unmarshal([]byte(tt.in), &got)
		if tt.ok && (err != nil || got != tt.want) {
			t.Errorf("%s: %d, %v; want %d", tt.in, got, err, tt.want)
		}
		if !tt.ok && (err == nil || got != before) {
			t.Errorf("%s: %d, %v; want it refused", tt.in, got, err)
		}
	}
}

// A token is valid from 1 to MaxToken. One with parts out of range is not: it must not wrap
// around to another token.
func TestValid(t *testing.T) {
	for _, tt := range []struct {
		token Token
		want  bool
	}{
		{0, false}, {1, true}, {MaxToken, true}, {MaxToken + 1, false}, {math.MaxUint64, false},
		{NewToken(0, 0), false},
		{NewToken(0, 1), true},
		{NewToken(MaxEpoch, MaxCounter), true},
		{NewToken(MaxEpoch+1, 0), false},
		{NewToken(1<<24, 5), false},
		{NewToken(math.MaxUint64, 1), false},
		{NewToken(0, MaxCounter+1), false},
		{NewToken(0, MaxCounter+6), false},
		{NewToken(3, math.MaxUint64), false},
	} {
		if tt.token.Valid() != tt.want {
			t.Errorf("token %d (epoch %d, counter %d): valid is %v, want %v", tt.token, tt.token.Epoch(), tt.token.Counter(), tt.token.Valid(), tt.want)
		}
	}
	if MaxEpoch != 8191 || MaxCounter != 1099511627775 || MaxToken != 9007199254740991 {
		t.Errorf("the limits moved: %d, %d, %d", MaxEpoch, MaxCounter, MaxToken)
	}
}

// The next token is larger and valid, or the error says why there is none: across epochs,
// with an epoch that is too low, and at the limits.
func TestNext(t *testing.T) {
	for _, tt := range []struct {
		name  string
		token Token
		epoch uint64
		want  Token
		err   string
	}{
		{"first", 0, 0, 1, ""},
		{"first of a raised epoch", 0, 3, NewToken(3, 1), ""},
		{"next", 41, 0, 42, ""},
		{"epoch raised: the counter goes on", 41, 1, NewToken(1, 42), ""},
		{"epoch raised by many", NewToken(1, 41), 9, NewToken(9, 42), ""},
		{"epoch behind: not taken back", NewToken(5, 41), 2, NewToken(5, 42), ""},
		{"last of an epoch", NewToken(2, MaxCounter-1), 2, NewToken(2, MaxCounter), ""},
		{"epoch used up", NewToken(2, MaxCounter), 2, 0, `fence: invalid token "3298534883327": its epoch is used up: raise the epoch`},
		{"epoch used up and behind", NewToken(2, MaxCounter), 1, 0, `fence: invalid token "3298534883327": its epoch is used up: raise the epoch`},
		{"epoch used up, and raised as was asked", NewToken(2, MaxCounter), 3, NewToken(3, 1), ""},
		{"last epoch", 7, MaxEpoch, NewToken(MaxEpoch, 8), ""},
		{"the very last", MaxToken - 1, MaxEpoch, MaxToken, ""},
		{"after the very last", MaxToken, MaxEpoch, 0, `fence: invalid token "9007199254740991": its epoch is used up: raise the epoch`},
		{"no such epoch", 7, MaxEpoch + 1, 0, `fence: invalid epoch "8192": at most 8191`},
		{"no such epoch at all", 7, math.MaxUint64, 0, `fence: invalid epoch "18446744073709551615": at most 8191`},
		{"after no token", MaxToken + 1, 0, 0, `fence: invalid epoch "8192": at most 8191`},
		{"after no token at all", math.MaxUint64, 0, 0, `fence: invalid epoch "16777215": at most 8191`},
	} {
		got, err := tt.token.Next(tt.epoch)
		if got != tt.want || message(err) != tt.err {
			t.Errorf("%s: %d, %v; want %d, %s", tt.name, got, err, tt.want, tt.err)
		}
		if err == nil && (!got.Valid() || got <= tt.token) {
			t.Errorf("%s: %d is not a token above %d", tt.name, got, tt.token)
		}
		if err != nil && !refusedAs[*InvalidError](err) {
			t.Errorf("%s: %#v is not an InvalidError", tt.name, err)
		}
	}
}
