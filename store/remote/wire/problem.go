package wire

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/tenurehq/tenure/store"
)

// Problem is an answer other than 200 (RFC 9457).
type Problem struct {
	Type      string `json:"type,omitempty"`
	Title     string `json:"title,omitempty"`
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Detail    string `json:"detail,omitempty"`
	Retryable bool   `json:"retryable"`

	// Current are the views that a conflict shows.
	Current []View `json:"current,omitempty"`
	// Field, Value and Rule are those of an invalid argument.
	Field string `json:"field,omitempty"`
	Value string `json:"value,omitempty"`
	Rule  string `json:"rule,omitempty"`
}

// The codes that a client maps to an error of store.Store.
const (
	CodeSessionDead = "session_dead"
	CodeConflict    = "conflict"
	CodeSuccessor   = "no_successor"
	CodeRewound     = "rewound"
	CodeInvalid     = "invalid_argument"
	CodeBusy        = "busy"
	CodeNotFound    = "not_found"

	// CodeUnknown: the call may have taken effect, or may yet.
	CodeUnknown = "outcome_unknown"
	// CodeUnavailable: the service cannot answer; nothing was changed.
	CodeUnavailable = "unavailable"
	// CodeDeployment: the service serves another deployment; nothing was done.
	CodeDeployment = "other_deployment"
)

// The codes of a policy that keeps a session from leading. Nothing was done; the same call may
// succeed later.
const (
	CodeCoolingDown = "cooling_down"
	CodeCordoned    = "cordoned"
	CodeNoGroup     = "unknown_group"
	CodeNotAMember  = "not_a_member"
	// CodeTTL: the policy does not allow the TTL of the session.
	CodeTTL = "ttl_out_of_bounds"
)

type sentinel struct {
	err       error
	code      string
	status    int
	retryable bool
}

// sentinels are the definite errors, with their codes.
func sentinels() []sentinel {
	return []sentinel{
		{store.ErrSessionDead, CodeSessionDead, http.StatusConflict, false},
		{store.ErrConflict, CodeConflict, http.StatusConflict, false},
		{store.ErrSuccessor, CodeSuccessor, http.StatusConflict, false},
		{store.ErrRewound, CodeRewound, http.StatusServiceUnavailable, false},
		{store.ErrInvalid, CodeInvalid, http.StatusBadRequest, false},
		{store.ErrBusy, CodeBusy, http.StatusTooManyRequests, true},
		{store.ErrNotFound, CodeNotFound, http.StatusNotFound, false},
	}
}

// ProblemOf encodes an error of a Store's method.
func ProblemOf(m Method, err error) Problem {
	p := Problem{Status: http.StatusServiceUnavailable, Code: CodeUnknown, Detail: clip(err.Error())}
	if m.Repeatable() {
		p.Code, p.Retryable = CodeUnavailable, true
	}
	for _, s := range sentinels() {
		if errors.Is(err, s.err) {
			p.Status, p.Code, p.Retryable = s.status, s.code, s.retryable
			break
		}
	}
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		p.Current = Each(conflict.Current, ViewOf)
	}
	var argument *store.ArgumentError
	if errors.As(err, &argument) {
		p.Field, p.Rule = argument.Field, argument.Rule
		if argument.Value != nil {
			p.Value = clip(fmt.Sprint(argument.Value))
		}
	}
	p.Title = http.StatusText(p.Status)
	return p
}

// Refusal is an answer that means some errors, in the words of the service.
type Refusal struct {
	Said string
	Is   []error
}

func (r *Refusal) Error() string { return r.Said }

// Unwrap returns the errors that the answer means.
func (r *Refusal) Unwrap() []error { return r.Is }

// Definite returns the error of store.Store for the code, or nil if the code has none.
func (p *Problem) Definite() error {
	var is error
	switch p.Code {
	case CodeConflict:
		conflict := &store.ConflictError{}
		// Without the views it is still a conflict: an engine need not show any.
		conflict.Current, _ = LeaseViews(p.Current)
		is = conflict
	case CodeCoolingDown, CodeCordoned, CodeNoGroup:
		is = store.ErrBusy
	case CodeTTL:
		is = &store.ArgumentError{Field: "ttl", Rule: p.Detail}
	case CodeInvalid, "bad_body", "body_too_large":
		argument := &store.ArgumentError{Field: p.Field, Rule: p.Rule}
		if p.Value != "" {
			argument.Value = p.Value
		}
		if p.Field == "" {
			argument.Field, argument.Rule = "body", p.Detail
		}
		is = argument
	default:
		for _, s := range sentinels() {
			if p.Code == s.code {
				is = s.err
			}
		}
		// Another limit of the service: nothing was done.
		if is == nil && p.Status == http.StatusTooManyRequests {
			is = store.ErrBusy
		}
	}
	if is == nil {
		return nil
	}
	return &Refusal{p.String(), []error{is}}
}

func (p *Problem) String() string {
	switch {
	case p.Detail != "":
		return p.Detail
	case p.Code != "":
		return p.Code
	default:
		return "status " + strconv.Itoa(p.Status)
	}
}

func clip(s string) string {
	const most = 1024
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
