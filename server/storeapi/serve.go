package storeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// visit is one call being served: who asks, and what is to be heard of it.
type visit struct {
	*API
	r      *http.Request
	method wire.Method
	heard  Heard
}

// deniedError is the verdict of Own or May.
type deniedError struct{ error }

func (e deniedError) Unwrap() error { return e.error }

// beforeError: the engine failed before anything was changed.
type beforeError struct{ error }

func (e beforeError) Unwrap() error { return e.error }

// own checks that the caller may speak as the candidate.
func (v *visit) own(candidate string) error {
	v.heard.Candidate = candidate
	if err := v.cfg.Own(v.r, candidate); err != nil {
		return deniedError{err}
	}
	return nil
}

// may checks a right to groups.
func (v *visit) may(right Right, scope ...string) error {
	v.heard.Groups = scope
	if err := v.cfg.May(v.r, right, scope); err != nil {
		return deniedError{err}
	}
	return nil
}

// owned checks that the session is the caller's.
func (v *visit) owned(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	v.heard.Session = id
	if !plausible(id) {
		return lease.Session{}, fmt.Errorf("session %.64q never was: %w", id, lease.ErrSessionDead)
	}
	s, err := v.cfg.Session(ctx, id)
	if err != nil {
		return s, before(err)
	}
	return s, v.own(s.Candidate.ID)
}

// begins checks that the session may begin to lead the groups. A batch of which some may
// not be led is a conflict that shows nothing: its caller tries them one by one, and learns
// which, while the others are not held up.
func (v *visit) begins(ctx context.Context, s lease.Session, groups ...string) error {
	if v.cfg.Policy == nil {
		return nil
	}
	err := v.cfg.Policy.Begins(ctx, s, groups...)
	var p *httpapi.Problem
	switch {
	case !errors.As(err, &p):
		return before(err)
	case len(groups) > 1:
		return fmt.Errorf("%w: %s", &lease.ConflictError{}, p.Detail)
	}
	return p
}

func before(err error) error {
	if err == nil || lease.Definite(err) {
		return err
	}
	return beforeError{err}
}

// serve reads a call, makes it and writes its answer.
func serve[In, Out any](a *API, m wire.Method, f func(context.Context, *visit, In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := &visit{API: a, r: r, method: m, heard: Heard{Method: m}}
		out, err := func() (out Out, err error) {
			var in In
			if err := httpapi.ReadJSON(w, r, maxBody, false, &in); err != nil {
				return out, err
			}
			patience, err := timeout(r)
			if err != nil {
				return out, err
			}
			ctx, cancel := context.WithTimeout(r.Context(), patience)
			defer cancel()
			if err := a.meant(ctx, r); err != nil {
				return out, err
			}
			return f(ctx, v, in)
		}()
		v.report(err)
		if err != nil {
			httpapi.WriteProblem(w, problem(m, err))
			return
		}
		httpapi.WriteJSON(w, http.StatusOK, out)
	}
}

// meant checks that the caller speaks to the right deployment.
func (a *API) meant(ctx context.Context, r *http.Request) error {
	meant := r.Header.Get(wire.DeploymentHeader)
	if meant == "" {
		return nil
	}
	here, err := a.standsFor(ctx)
	if err != nil {
		return before(err)
	}
	if meant != here {
		return &httpapi.Problem{
			Status: http.StatusMisdirectedRequest, Code: wire.CodeDeployment,
			Detail: fmt.Sprintf("this service stands for deployment %q, not %.64q: ask another instance; if all say so the store was replaced, and the client must be started again", here, meant),
		}
	}
	return nil
}

func timeout(r *http.Request) (time.Duration, error) {
	said := r.Header.Get(wire.TimeoutHeader)
	if said == "" {
		return defaultCall, nil
	}
	ms, err := strconv.ParseInt(said, 10, 64)
	if err != nil || ms < 1 {
		return 0, &lease.ArgumentError{Field: wire.TimeoutHeader, Value: said, Rule: "a number of milliseconds, at least 1"}
	}
	return min(wire.Duration(ms), maxCall), nil
}

// report tells of what changed something, and of what was denied.
func (v *visit) report(err error) {
	var denied deniedError
	if v.cfg.Heard == nil || v.method.Repeatable() && !errors.As(err, &denied) {
		return
	}
	v.heard.Err = err
	v.cfg.Heard(v.r, v.heard)
}

// problem says an error to the caller.
func problem(m wire.Method, err error) *httpapi.Problem {
	var said *httpapi.Problem
	var denied deniedError
	var early beforeError
	switch {
	case errors.As(err, &said):
		return said
	case errors.As(err, &denied):
		return &httpapi.Problem{Status: http.StatusForbidden, Code: "denied", Detail: err.Error()}
	case errors.As(err, &early):
		return &httpapi.Problem{Status: http.StatusServiceUnavailable, Code: wire.CodeUnavailable, Detail: err.Error(), Retryable: true, RetryAfter: time.Second}
	}
	p := wire.ProblemOf(m, err)
	out := &httpapi.Problem{Status: p.Status, Code: p.Code, Detail: p.Detail, Retryable: p.Retryable, More: map[string]any{}}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		out.RetryAfter = time.Second
	}
	if p.Current != nil {
		out.More["current"] = p.Current
	}
	if p.Field != "" {
		out.More["field"], out.More["value"], out.More["rule"] = p.Field, p.Value, p.Rule
	}
	return out
}

// line says it in a stream.
func line(m wire.Method, err error) wire.Line {
	p := wire.ProblemOf(m, err)
	return wire.Line{Problem: &p}
}
