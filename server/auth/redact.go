package auth

import (
	"crypto/sha256"
	"encoding/hex"
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

func hasToken(s string) bool { return len(s) >= shortest && tokenShapes.MatchString(s) }

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

// clip redacts and shortens s.
func clip(s string) string { return atMost(Redact(s), 128) }

// glimpse is the beginning of a text that should have been a name, and may be anything.
func glimpse(s string) string { return atMost(Redact(s), 12) }

// glimpseUnlessName is a name as it is, and a glimpse of anything else.
func glimpseUnlessName(s string) string {
	if store.ValidName(s) {
		return Redact(s)
	}
	return glimpse(s)
}

func atMost(s string, most int) string {
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
