// Package secret keeps credentials and private keys out of logs, audits and errors.
package secret

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"

	"github.com/tenurehq/tenure/store"
)

// tokenShapes match our static tokens and JWTs, also truncated ones: their claims are readable.
var tokenShapes = regexp.MustCompile(`tnr_[A-Za-z0-9_-]{8,}|eyJ[A-Za-z0-9_=-]{8,}\.[A-Za-z0-9_.=-]*`)

// secretShapes match private keys in PEM, and long words that may be a key or token of another
// kind.
var secretShapes = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)|[A-Za-z0-9+/_=-]{40,}`)

// shortest is the length of the shortest match of tokenShapes.
const shortest = 12

// In reports whether s contains a credential or a JWT.
func In(s string) bool { return len(s) >= shortest && tokenShapes.MatchString(s) }

// Redact replaces everything in s that looks like a secret by the first bytes of its SHA-256,
// by which an operator can identify the secret. A long word looks like one if it has upper-case
// letters, lower-case letters and digits.
func Redact(s string) string {
	if len(s) < shortest {
		return s
	}
	s = tokenShapes.ReplaceAllStringFunc(s, hide)
	return secretShapes.ReplaceAllStringFunc(s, func(run string) string {
		if strings.HasPrefix(run, "-----") || strings.ContainsAny(run, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") &&
			strings.ContainsAny(run, "abcdefghijklmnopqrstuvwxyz") && strings.ContainsAny(run, "0123456789") {
			return hide(run)
		}
		return run
	})
}

func hide(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return "[secret " + hex.EncodeToString(sum[:4]) + "]"
}

// Clip redacts and shortens s.
func Clip(s string) string { return AtMost(Redact(s), 128) }

// Glimpse is the beginning of a text that should have been a name, and may be anything.
func Glimpse(s string) string { return AtMost(Redact(s), 12) }

// Name is a name as it is, and a glimpse of anything else.
func Name(s string) string {
	if store.ValidName(s) {
		return Redact(s)
	}
	return Glimpse(s)
}

// AtMost shortens s to so many bytes.
func AtMost(s string, most int) string {
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// StrictJSON decodes one value without unknown fields. Its errors quote no text that could be
// a secret.
func StrictJSON(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return errors.New("invalid JSON: " + Clip(err.Error()))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("invalid JSON: there is text after the value")
	}
	return nil
}
