package storeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// visit is one call: the request, and what the audit log will say about it.
type visit struct {
	*API
	r      *http.Request
	method wire.Method
	heard  Heard
}

// deniedError is a refusal by Own or May.
type deniedError struct{ error }

func (e deniedError) Unwrap() error { return e.error }

// beforeError: the engine failed before anything was changed.
type beforeError struct{ error }

func (e beforeError) Unwrap() error { return e.error }

// own checks that the caller may act as the candidate.
func (v *visit) own(candidate string) error {
	v.heard.Candidate = candidate
	if err := v.cfg.Own(v.r, candidate); err != nil {
		return deniedError{err}
	}
	return nil
}

// may checks a right to groups.
func (v *visit) may(verb auth.Verb, scope ...string) error {
	v.heard.Groups = scope
	if err := v.cfg.May(v.r, verb, scope); err != nil {
		return deniedError{err}
	}
	return nil
}

// find reads a session.
func (v *visit) find(ctx context.Context, id store.SessionID, read func(context.Context, store.SessionID) (store.Session, error)) (store.Session, error) {
	v.heard.Session = id
	if !plausible(id) {
		return store.Session{}, fmt.Errorf("no session has the id %.64q: %w", id, store.ErrSessionDead)
	}
	return read(ctx, id)
}

// owned returns the session if the caller owns it.
func (v *visit) owned(ctx context.Context, id store.SessionID) (store.Session, error) {
	s, err := v.find(ctx, id, v.cfg.Session)
	if err != nil {
		return s, before(err)
	}
	return s, v.own(s.Candidate.ID)
}

func before(err error) error {
	if err == nil || store.Definite(err) {
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
			if err := a.checkDeployment(ctx, r); err != nil {
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

// checkDeployment refuses a call that names another deployment.
func (a *API) checkDeployment(ctx context.Context, r *http.Request) error {
	meant := r.Header.Get(wire.DeploymentHeader)
	if meant == "" {
		return nil
	}
	here, err := a.servedDeployment(ctx)
	if err != nil {
		return before(err)
	}
	if meant != here {
		return httpapi.Refuse(http.StatusMisdirectedRequest, wire.CodeDeployment,
			"this service serves deployment %q, not %.64q: ask another instance; if all instances say so, the store was replaced: restart the client", here, meant)
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
		return 0, &store.ArgumentError{Field: wire.TimeoutHeader, Value: said, Rule: "a number of milliseconds, at least 1"}
	}
	return min(wire.Duration(ms), maxCall), nil
}

// report tells Heard about a call that changed something or was denied.
func (v *visit) report(err error) {
	var denied deniedError
	if v.cfg.Heard == nil || v.method.Repeatable() && !errors.As(err, &denied) {
		return
	}
	v.heard.Err = err
	v.cfg.Heard(v.r, v.heard)
}

// problem returns the answer for an error.
func problem(m wire.Method, err error) *httpapi.Problem {
	var said *httpapi.Problem
	var denied deniedError
	var early beforeError
	switch {
	case errors.As(err, &said):
		return said
	case errors.As(err, &denied):
		return httpapi.Refuse(http.StatusForbidden, "denied", "%v", err)
	case errors.As(err, &early):
		return httpapi.Refuse(http.StatusServiceUnavailable, wire.CodeUnavailable, "%v", err).Retry(time.Second)
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
