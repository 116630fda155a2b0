package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/server/httpapi"
)

// The headers of the ledger's requests and answers, besides those of the stamp (package
// httpfence).
const (
	// HeaderHolder is who writes, for the list of refused writes, percent-encoded. The default
	// is the address of the caller.
	HeaderHolder = "Fencing-Holder"
	// HeaderRetried: this is the answer to the first try.
	HeaderRetried = "Ledger-Retried"
	// HeaderIdentity is the Identity of the ledger, in answers to writes and health checks. In a
	// request it is the last one that the caller has seen: a ledger that is behind it, or
	// another ledger, refuses the request with ErrDataLost.
	HeaderIdentity = "Ledger-Identity"
	// HeaderFencing is "off" on every answer of a ledger that does not fence.
	HeaderFencing = "Ledger-Fencing"
)

// RangeBody is the body of a request for numbers of a sequence.
type RangeBody struct {
	Digest string `json:"digest,omitempty"`
	First  uint64 `json:"first,omitempty"`
	Last   uint64 `json:"last,omitempty"`
	N      uint64 `json:"n,omitempty"`
}

// RangeAnswer is the numbers that were taken.
type RangeAnswer struct {
	Resource string      `json:"resource"`
	Sequence string      `json:"sequence"`
	Token    fence.Token `json:"token"`
	First    uint64      `json:"first"`
	Last     uint64      `json:"last"`
	AtMS     int64       `json:"at_ms"`
}

// ResourceBody is a resource, how many leaders act on it now, and the ledger's wall clock.
type ResourceBody struct {
	Resource
	LeadersActing int   `json:"leaders_acting"`
	NowMS         int64 `json:"now_ms"`
}

// AcceptBody is the body of POST /accept. Replaces names the ledger that this one replaces;
// empty: itself, before it lost data.
type AcceptBody struct {
	Replaces string `json:"replaces,omitempty"`
}

// sentinels are the errors without data. Internal: their text may have details that callers
// must not see.
var sentinels = []struct {
	err       error
	status    int
	code      string
	retryable bool
	internal  bool
}{
	{ErrUnknown, http.StatusServiceUnavailable, "outcome_unknown", false, true},
	{ErrDataLost, http.StatusServiceUnavailable, "data_lost", false, false},
	{ErrBusy, http.StatusTooManyRequests, "busy", true, false},
	{ErrUnavailable, http.StatusServiceUnavailable, "unavailable", true, true},
	{ErrNotFound, http.StatusNotFound, "not_found", false, false},
	{ErrTooManyResources, http.StatusInsufficientStorage, "too_many_resources", false, false},
	{ErrTooManyRecords, http.StatusInsufficientStorage, "too_many_records", false, false},
	{ErrDenied, http.StatusForbidden, "denied", false, false},
}

// The codes of the errors with data.
const (
	codeRequest  = "invalid_request"
	codeVersion  = "version_conflict"
	codeSequence = "sequence_conflict"
)

// WriteError answers with an error. It leaves out the text of an Internal one.
func WriteError(w http.ResponseWriter, err error) {
	if errors.Is(err, fence.ErrRefused) {
		httpfence.WriteError(w, err)
		return
	}
	p, _ := problemOf(err)
	httpapi.WriteProblem(w, p)
}

// Internal reports that the text of err may have details that callers must not see, such as the
// address of a database. The caller of WriteError logs it.
func Internal(err error) bool {
	_, internal := problemOf(err)
	return internal && !errors.Is(err, fence.ErrRefused)
}

func problemOf(err error) (p *httpapi.Problem, internal bool) {
	var (
		request *RequestError
		version *VersionError
		seq     *SequenceError
	)
	switch {
	case errors.As(err, &p):
		return p, false
	case errors.As(err, &request):
		return httpapi.Refuse(http.StatusBadRequest, codeRequest, "%v", err).With(members(request)), false
	case errors.As(err, &version):
		p = httpapi.Refuse(http.StatusConflict, codeVersion, "%v", err).With(members(version))
		if version.Space != "" {
			p.Status = http.StatusPreconditionFailed
		}
		return p, false
	case errors.As(err, &seq):
		return httpapi.Refuse(http.StatusConflict, codeSequence, "%v", err).With(members(seq)), false
	}
	for _, s := range sentinels {
		if !errors.Is(err, s.err) {
			continue
		}
		if s.internal {
			err = s.err
		}
		p = httpapi.Refuse(s.status, s.code, "%v", err)
		if s.retryable {
			p = p.Retry(time.Second)
		}
		return p, s.internal
	}
	return httpapi.Refuse(http.StatusInternalServerError, "internal", "internal error; see the log"), true
}

// members are the fields of an error as JSON.
func members(err error) (m map[string]any) {
	data, _ := json.Marshal(err) // texts and numbers can always be
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	_ = d.Decode(&m)
	return m
}

// FromProblem returns the error of an answer; it is the inverse of WriteError. An answer that
// does not come from a ledger is ErrUnknown: a proxy may have forwarded the request.
func FromProblem(status int, contentType string, body []byte) error {
	if status == http.StatusRequestHeaderFieldsTooLarge {
		return &RequestError{Field: "header", Rule: "too large"}
	}
	var p httpfence.Problem
	if contentType != httpapi.ContentTypeProblem || json.Unmarshal(body, &p) != nil {
		return fmt.Errorf("%w: the answer was %d %s", ErrUnknown, status, http.StatusText(status))
	}
	if err := p.Err(); err != nil {
		return err
	}
	known := map[string]error{codeRequest: &RequestError{}, codeVersion: &VersionError{}, codeSequence: &SequenceError{}}[p.Code]
	if known != nil {
		if err := json.Unmarshal(body, known); err != nil {
			return fmt.Errorf("%w: the answer cannot be read: %w", ErrUnknown, err)
		}
		return known
	}
	for _, s := range sentinels {
		if s.code == p.Code {
			if more := strings.TrimLeft(strings.TrimPrefix(p.Detail, s.err.Error()), ": "); more != "" {
				return fmt.Errorf("%w (%s)", s.err, more)
			}
			return s.err
		}
	}
	if status < http.StatusInternalServerError {
		return &RequestError{Field: "request", Value: p.Code, Rule: p.Detail}
	}
	return fmt.Errorf("%w: %s", ErrUnknown, p.Detail)
}
