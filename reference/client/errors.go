package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

var (
	// ErrUnknown: the call may have been done or not, and was not retried.
	ErrUnknown = errors.New("fleet: the outcome is unknown")
	// ErrUnavailable: nothing was done in time: no node could be reached, nobody led, or the
	// leader could not do it.
	ErrUnavailable = errors.New("fleet: unavailable, nothing was done")
	// ErrNotFound: there is no such record or job.
	ErrNotFound = errors.New("fleet: not found")
	// ErrVersion: the record has another version than the caller expects.
	ErrVersion = errors.New("fleet: the record has another version, nothing was written")
)

// ProblemError is a refusal: nothing was done, and the same call would be refused again.
type ProblemError struct {
	Status int
	Code   string
	Detail string
	// CurrentVersion is set where a record has another version than expected.
	CurrentVersion uint64
}

func (e *ProblemError) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("fleet: %d %s", e.Status, http.StatusText(e.Status))
	}
	return "fleet: " + e.Detail
}

// Is matches ErrNotFound and ErrVersion.
func (e *ProblemError) Is(target error) bool {
	switch {
	case target == ErrNotFound:
		return e.Status == http.StatusNotFound
	case target == ErrVersion:
		return e.Status == http.StatusPreconditionFailed
	}
	return false
}

// refusal is an answer that nothing was done and that the call may be retried.
type refusal struct {
	code   string
	detail string
	// leader is the URL to call instead; empty: unknown.
	leader string
	after  time.Duration
}

func (r *refusal) Error() string {
	if r.detail == "" {
		return r.code
	}
	return r.detail
}

type problem struct {
	Code           string `json:"code"`
	Detail         string `json:"detail"`
	Retryable      bool   `json:"retryable"`
	LeaderAddress  string `json:"leader_address"`
	CurrentVersion uint64 `json:"current_version"`
}

// fromAnswer turns a failure into an error: a *refusal, a *ProblemError, or ErrUnknown if the
// answer does not say what was done.
func fromAnswer(resp *http.Response, body []byte) error {
	var p problem
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != httpapi.ContentTypeProblem || json.Unmarshal(body, &p) != nil || p.Code == "" {
		p = problem{}
	}
	again := &refusal{code: p.Code, detail: p.Detail}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		again.after = time.Duration(s) * time.Second
	}
	switch {
	case p.Code == api.CodeOutcomeUnknown:
		return fmt.Errorf("%w: %s", ErrUnknown, p.Detail)
	case p.Code == api.CodeNotLeader && resp.StatusCode == http.StatusConflict:
		again.leader = base(resp.Header.Get("Location"), resp.Request.URL.Path)
		if again.leader == "" {
			again.leader = strings.TrimRight(p.LeaderAddress, "/")
		}
		return again
	case p.Retryable && (resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusTooManyRequests):
		return again
	case resp.StatusCode >= 500 || resp.StatusCode < 400:
		return fmt.Errorf("%w: the answer was %s %s", ErrUnknown, resp.Status, p.Detail)
	}
	return &ProblemError{Status: resp.StatusCode, Code: p.Code, Detail: p.Detail, CurrentVersion: p.CurrentVersion}
}

// base is a Location without the path and the query of the request.
func base(location, path string) string {
	if i := strings.IndexByte(location, '?'); i >= 0 {
		location = location[:i]
	}
	if !strings.HasPrefix(location, "http://") && !strings.HasPrefix(location, "https://") {
		return ""
	}
	at, ok := strings.CutSuffix(location, path)
	if !ok {
		// The node answers with and without the version in the path.
		at, ok = strings.CutSuffix(location, strings.TrimPrefix(path, "/v1"))
	}
	if !ok {
		return ""
	}
	return strings.TrimRight(at, "/")
}

// gaveUp is why a call was not done.
func gaveUp(ctx context.Context, last error) error {
	switch {
	case last == nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	case errors.Is(last, ErrUnavailable):
		return last
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, last)
}

// definite turns ErrUnknown into ErrUnavailable, for calls that change nothing.
func definite(err error) error {
	if !errors.Is(err, ErrUnknown) {
		return err
	}
	return fmt.Errorf("%w: %s", ErrUnavailable, strings.TrimPrefix(err.Error(), ErrUnknown.Error()+": "))
}
