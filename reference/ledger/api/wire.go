package api

import (
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

// BatchBody is the body of a batch.
type BatchBody struct {
	Digest string  `json:"digest,omitempty"`
	Writes []Write `json:"writes"`
}

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

// wireProblem is the part of a problem that FromProblem reads.
type wireProblem struct {
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Field   string `json:"field"`
	Value   string `json:"value"`
	Rule    string `json:"rule"`
	Space   string `json:"space"`
	Name    string `json:"name"`
	First   uint64 `json:"first"`
	LastSeq uint64 `json:"last_seq"`
	Version uint64 `json:"version"`
	Current uint64 `json:"current_version"`
}

// The codes of problems that are not refusals, which are those of httpfence.
const (
	codeRequest     = "invalid_request"
	codeVersion     = "version_conflict"
	codeSequence    = "sequence_conflict"
	codeUnknown     = "outcome_unknown"
	codeUnavailable = "unavailable"
	codeDataLost    = "data_lost"
	codeBusy        = "busy"
	codeNotFound    = "not_found"
	codeResources   = "too_many_resources"
	codeShared      = "too_many_records"
	codeDenied      = "denied"
)

// sentinels are the errors without data.
var sentinels = []struct {
	err        error
	status     int
	code       string
	retryable  bool
	retryAfter time.Duration
}{
	{ErrUnknown, http.StatusServiceUnavailable, codeUnknown, false, 0},
	{ErrDataLost, http.StatusServiceUnavailable, codeDataLost, false, 0},
	{ErrBusy, http.StatusTooManyRequests, codeBusy, true, time.Second},
	{ErrUnavailable, http.StatusServiceUnavailable, codeUnavailable, true, time.Second},
	{ErrNotFound, http.StatusNotFound, codeNotFound, false, 0},
	{ErrTooManyResources, http.StatusInsufficientStorage, codeResources, false, 0},
	{ErrTooManyRecords, http.StatusInsufficientStorage, codeShared, false, 0},
	{ErrDenied, http.StatusForbidden, codeDenied, false, 0},
}

// WriteError answers with an error.
func WriteError(w http.ResponseWriter, err error) {
	if errors.Is(err, fence.ErrRefused) {
		httpfence.WriteError(w, err)
		return
	}
	httpapi.WriteProblem(w, problemOf(err))
}

func problemOf(err error) *httpapi.Problem {
	var (
		problem *httpapi.Problem
		request *RequestError
		version *VersionError
		seq     *SequenceError
	)
	p := &httpapi.Problem{Detail: err.Error()}
	switch {
	case errors.As(err, &problem):
		return problem
	case errors.As(err, &request):
		p.Status, p.Code = http.StatusBadRequest, codeRequest
		p.More = map[string]any{"field": request.Field, "value": request.Value, "rule": request.Rule}
	case errors.As(err, &version):
		p.Status, p.Code = http.StatusConflict, codeVersion
		p.More = map[string]any{"name": version.Key, "version": version.Version, "current_version": version.Current}
		if version.Space != "" {
			p.Status, p.More["space"] = http.StatusPreconditionFailed, version.Space
		}
	case errors.As(err, &seq):
		p.Status, p.Code = http.StatusConflict, codeSequence
		p.More = map[string]any{"name": seq.Name, "first": seq.First, "last_seq": seq.LastSeq}
	default:
		p.Status, p.Code = http.StatusInternalServerError, "internal"
		neutral := "internal error; see the log"
		for _, s := range sentinels {
			if errors.Is(err, s.err) {
				p.Status, p.Code, p.Retryable, p.RetryAfter, neutral = s.status, s.code, s.retryable, s.retryAfter, s.err.Error()
				break
			}
		}
		if Internal(err) {
			p.Detail = neutral
		}
	}
	return p
}

// Internal reports that the text of err may have details that callers must not see, such as the
// address of a database. WriteError leaves the text out; its caller logs it.
func Internal(err error) bool {
	var known interface {
		error
		public()
	}
	if errors.Is(err, fence.ErrRefused) || errors.As(err, &known) {
		return false
	}
	var problem *httpapi.Problem
	if errors.As(err, &problem) {
		return false
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.code == codeUnknown || s.code == codeUnavailable
		}
	}
	return true
}

func (*RequestError) public()  {}
func (*VersionError) public()  {}
func (*SequenceError) public() {}

// FromProblem returns the error of an answer; it is the inverse of WriteError. An answer that
// does not come from a ledger is ErrUnknown: a proxy may have forwarded the request.
func FromProblem(status int, contentType string, body []byte) error {
	if status == http.StatusRequestHeaderFieldsTooLarge {
		return &RequestError{Field: "header", Rule: "too large"}
	}
	var refusal httpfence.Problem
	var p wireProblem
	if contentType != httpapi.ContentTypeProblem || json.Unmarshal(body, &p) != nil || json.Unmarshal(body, &refusal) != nil {
		return fmt.Errorf("%w: the answer was %d %s", ErrUnknown, status, http.StatusText(status))
	}
	if err := refusal.Err(); err != nil {
		return err
	}
	switch p.Code {
	case codeRequest:
		return &RequestError{Field: p.Field, Value: p.Value, Rule: p.Rule}
	case codeVersion:
		return &VersionError{Space: p.Space, Key: p.Name, Version: p.Version, Current: p.Current}
	case codeSequence:
		return &SequenceError{Name: p.Name, First: p.First, LastSeq: p.LastSeq}
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
