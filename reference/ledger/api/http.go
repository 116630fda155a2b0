package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// ETag returns the version of a record as an HTTP ETag.
func ETag(version uint64) string { return strconv.Quote(strconv.FormatUint(version, 10)) }

// SetPrecondition says in the headers of a write which version the record must have: 0 none,
// nil any.
func SetPrecondition(h http.Header, version *uint64) {
	switch {
	case version == nil:
	case *version == 0:
		h.Set("If-None-Match", "*")
	default:
		h.Set("If-Match", ETag(*version))
	}
}

// Precondition reads what SetPrecondition writes. It refuses every other condition, because
// ignoring one would overwrite what the caller wants to keep.
func Precondition(h http.Header) (version *uint64, err error) {
	match, none := h.Values("If-Match"), h.Values("If-None-Match")
	switch {
	case len(match) == 0 && len(none) == 0:
		return nil, nil
	case len(match)+len(none) > 1:
		return nil, &RequestError{Field: "If-Match", Rule: "one of If-Match and If-None-Match, once"}
	case len(none) == 1:
		if none[0] != "*" {
			return nil, &RequestError{Field: "If-None-Match", Value: clip(none[0]), Rule: "only * for a write: the record must not exist"}
		}
		return new(uint64), nil
	}
	text, quoted := strings.CutPrefix(match[0], `"`)
	text, closed := strings.CutSuffix(text, `"`)
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || !quoted || !closed || n == 0 {
		return nil, &RequestError{Field: "If-Match", Value: clip(match[0]), Rule: `one version in quotes, as the ETag has it: "7"`}
	}
	return &n, nil
}

// PageOf reads ?after= and ?limit=. The limit is 0 if it is not given.
func PageOf(r *http.Request) (after string, limit int, err error) {
	q := r.URL.Query()
	if s := q.Get("limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 || limit > MaxPage {
			return "", 0, &RequestError{Field: "limit", Value: clip(s), Rule: fmt.Sprintf("from 1 to %d", MaxPage)}
		}
	}
	return q.Get("after"), limit, nil
}

// BeforeOf reads ?before_ms=. It is 0 if it is not given.
func BeforeOf(r *http.Request) (ms int64, err error) {
	if s := r.URL.Query().Get("before_ms"); s != "" {
		if ms, err = strconv.ParseInt(s, 10, 64); err != nil || ms < 1 {
			return 0, &RequestError{Field: "before_ms", Value: clip(s), Rule: "milliseconds since 1970, from 1 to 2^53-1"}
		}
	}
	return ms, nil
}

// PendingOf reads ?pending=.
func PendingOf(r *http.Request) (pending bool, err error) {
	if s := r.URL.Query().Get("pending"); s != "" {
		if pending, err = strconv.ParseBool(s); err != nil {
			return false, &RequestError{Field: "pending", Value: clip(s), Rule: "true or false"}
		}
	}
	return pending, nil
}
