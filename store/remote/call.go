package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// maxAnswer bounds an answer: a page of a thousand views with all the metadata
// that they may have.
const maxAnswer = 64 << 20

// spoken is what a try has come to, if it is not an answer.
type spoken int

const (
	answered spoken = iota
	unsent          // nothing was done there
	silent          // it may have been done
)

// call makes a call and reads its answer.
func call[Out any](ctx context.Context, s *Store, m wire.Method, in any) (Out, error) {
	var out, zero Out
	body, err := json.Marshal(in)
	if err != nil {
		return zero, fmt.Errorf("remote: %s: %w", m, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultCall)
		defer cancel()
	}
	err = s.each(ctx, m, func(ctx context.Context, at, left int) (spoken, error) {
		out = zero
		return s.try(ctx, m, at, left, body, &out)
	})
	if err != nil {
		return zero, err
	}
	return out, nil
}

// each gives a call to one instance after the other until one has spoken, or until
// nobody knows what became of a call that must not be repeated.
func (s *Store) each(ctx context.Context, m wire.Method, try func(ctx context.Context, at, left int) (spoken, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errShutdown) })()
	s.mu.Lock()
	first := s.preferred
	s.mu.Unlock()
	n := len(s.bases)
	var errs []error
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		at := (first + i) % n
		said, err := try(ctx, at, n-i)
		if said == answered {
			s.prefer(at)
			return wrap(m, err)
		}
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			// The caller has not lost interest: the instance failed it.
			s.leave(at)
		}
		errs = append(errs, fmt.Errorf("%s: %w", s.cfg.URLs[at], err))
		if said == silent && !m.Repeatable() {
			return fmt.Errorf("remote: %s: the outcome is unknown: %w", m, errors.Join(errs...))
		}
	}
	if len(errs) == 0 {
		return fmt.Errorf("remote: %s: %w", m, context.Cause(ctx))
	}
	return fmt.Errorf("remote: %s: no instance of the service answered: %w", m, errors.Join(errs...))
}

func wrap(m wire.Method, err error) error {
	if err != nil {
		return fmt.Errorf("remote: %s: %w", m, err)
	}
	return nil
}

func (s *Store) prefer(at int) {
	s.mu.Lock()
	s.preferred = at
	s.mu.Unlock()
}

// leave sees to it that the next call begins elsewhere, also when this one ends
// here.
func (s *Store) leave(at int) {
	s.mu.Lock()
	if s.preferred == at {
		s.preferred = (at + 1) % len(s.bases)
	}
	s.mu.Unlock()
}

// try asks one instance. The time that is left is shared among those that have
// not been asked: for a call that may be repeated until the answer, for any other
// until there is a connection, because then it may have been sent.
func (s *Store) try(ctx context.Context, m wire.Method, at, left int, body []byte, out any) (spoken, error) {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(time.Until(deadline)/time.Duration(left), func() { cancel(errSlow) })
	defer patience.Stop()
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		sent.Store(true)
		if !m.Repeatable() {
			patience.Stop()
		}
	}})
	lane := s.calls
	if m == wire.KeepAlive {
		lane = s.beats
	}
	resp, err := s.send(ctx, lane, m, at, body)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if sent.Load() {
			return silent, explain(err)
		}
		return unsent, explain(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return silent, explain(err)
	case resp.StatusCode != http.StatusOK:
		return refused(resp, answer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return silent, fmt.Errorf("its answer cannot be read: %w", err)
	}
	return answered, nil
}

// send makes the request and waits for the head of its answer. It follows no
// redirection: that would be a repetition, and would show others who we are.
func (s *Store) send(ctx context.Context, lane *http.Transport, m wire.Method, at int, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.bases[at]+m.Path(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", wire.ContentType)
	if deadline, ok := ctx.Deadline(); ok {
		req.Header.Set(wire.TimeoutHeader, strconv.FormatInt(max(1, wire.Given(time.Until(deadline))), 10))
	}
	if s.deployment != "" {
		req.Header.Set(wire.DeploymentHeader, s.deployment)
	}
	if s.cfg.Bearer != nil {
		token, err := s.cfg.Bearer(ctx)
		if err != nil {
			return nil, fmt.Errorf("the bearer token cannot be had: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return lane.RoundTrip(req)
}

// refused reads an answer other than 200.
func refused(resp *http.Response, body []byte) (spoken, error) {
	var p wire.Problem
	if mediaType(resp) != wire.ContentTypeProblem || json.Unmarshal(body, &p) != nil {
		// Something between us and the service speaks for itself.
		return silent, fmt.Errorf("answered %s, which is not of the service", resp.Status)
	}
	p.Status = resp.StatusCode
	return verdict(&p)
}

func verdict(p *wire.Problem) (spoken, error) {
	if err := p.Definite(); err != nil {
		return answered, err
	}
	switch {
	case p.Code == wire.CodeNotAMember:
		// A policy, not a permission: an operator may change it at any time.
		return answered, fmt.Errorf("%w: %w: %s", ErrDenied, lease.ErrBusy, p)
	case p.Status == http.StatusUnauthorized:
		return answered, fmt.Errorf("%w: %w: %s", ErrDenied, lease.ErrUnauthenticated, p)
	case p.Status == http.StatusForbidden:
		return answered, fmt.Errorf("%w: %w: %s", ErrDenied, lease.ErrDenied, p)
	case p.Code == wire.CodeDeployment, p.Code == wire.CodeUnavailable:
		return unsent, errors.New(p.String())
	default:
		return silent, errors.New(p.String())
	}
}
