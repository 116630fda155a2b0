package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// maxAnswer bounds an answer: a page of a thousand views with the most metadata.
const maxAnswer = 64 << 20

var errSlow = errors.New("no answer in time (stopped, cut off, or without an engine)")

// result says what is known after one instance was asked.
type result int

const (
	answered result = iota
	unsent          // the instance has done nothing
	silent          // the instance may have made the call
)

// call makes a call and reads its answer.
func call[Out any](ctx context.Context, s *Store, m wire.Method, in any) (Out, error) {
	var out, zero Out
	body, err := json.Marshal(in)
	if err != nil {
		return zero, wrap(m, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultCall)
		defer cancel()
	}
	err = s.each(ctx, m, func(ctx context.Context, at, left int) (result, error) {
		out = zero
		return s.try(ctx, m, at, left, body, &out)
	})
	if err != nil {
		return zero, err
	}
	return out, nil
}

// each asks one instance after the other until one answers. It stops early if the outcome is
// unknown and the call must not be repeated.
func (s *Store) each(ctx context.Context, m wire.Method, try func(ctx context.Context, at, left int) (result, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errClosed) })()
	first, n := int(s.preferred.Load()), len(s.bases)
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
			// The caller did not cancel the call: the instance failed.
			s.leave(at)
		}
		errs = append(errs, fmt.Errorf("%s: %w", s.cfg.URLs[at], err))
		if said == silent && !m.Repeatable() {
			return wrap(m, fmt.Errorf("the outcome is unknown: %w", errors.Join(errs...)))
		}
	}
	if len(errs) == 0 {
		return wrap(m, context.Cause(ctx))
	}
	return wrap(m, fmt.Errorf("no instance of the service answered: %w", errors.Join(errs...)))
}

// CallError names the call that failed. Err is the cause, complete without the name.
type CallError struct {
	Call string
	Err  error
}

func (e *CallError) Error() string { return "remote: " + e.Call + ": " + e.Err.Error() }
func (e *CallError) Unwrap() error { return e.Err }

func wrap(m wire.Method, err error) error {
	if err != nil {
		return &CallError{string(m), err}
	}
	return nil
}

func (s *Store) prefer(at int) { s.preferred.Store(int64(at)) }

// leave makes the next call begin at another instance.
func (s *Store) leave(at int) { s.preferred.CompareAndSwap(int64(at), int64((at+1)%len(s.bases))) }

// try asks one instance. It shares the time that is left with the instances that were not
// asked yet. A call that may be repeated has its share until the answer; any other call until
// there is a connection, because after that it may have been sent.
func (s *Store) try(ctx context.Context, m wire.Method, at, left int, body []byte, out any) (result, error) {
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
	transport := s.calls
	if m == wire.KeepAlive {
		transport = s.beats
	}
	resp, err := s.send(ctx, transport, m, at, body)
	switch {
	case err != nil && sent.Load():
		return silent, explain(ctx, err)
	case err != nil:
		return unsent, explain(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return silent, explain(ctx, err)
	case resp.StatusCode != http.StatusOK:
		return refused(resp, answer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return silent, fmt.Errorf("decode its answer: %w", err)
	}
	return answered, nil
}

// explain returns the cause of a failed request, in words where the error is not enough.
func explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errSlow
	case errors.As(err, &record):
		return errors.New("it does not speak TLS: use a URL that begins with http://")
	}
	return err
}

// send makes the request and waits for the headers of the answer. It follows no redirect:
// that would repeat the call, and would send the credentials to another server.
func (s *Store) send(ctx context.Context, transport *http.Transport, m wire.Method, at int, body []byte) (*http.Response, error) {
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
			return nil, fmt.Errorf("get the bearer token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return transport.RoundTrip(req)
}

// refused reads an answer other than 200.
func refused(resp *http.Response, body []byte) (result, error) {
	var p wire.Problem
	if mediaType(resp) != wire.ContentTypeProblem || json.Unmarshal(body, &p) != nil {
		// A proxy between here and the service has answered.
		return silent, fmt.Errorf("answered %s, but not as the service does", resp.Status)
	}
	p.Status = resp.StatusCode
	return verdict(&p)
}

func mediaType(resp *http.Response) string {
	t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // "" if it cannot be parsed
	return t
}

func verdict(p *wire.Problem) (result, error) {
	if err := p.Definite(); err != nil {
		return answered, err
	}
	switch {
	case p.Code == wire.CodeNotAMember:
		// A policy and not a right: an operator may change it at any time.
		return answered, &wire.Refusal{Said: p.String(), Is: []error{ErrDenied, store.ErrBusy}}
	case p.Status == http.StatusUnauthorized:
		return answered, &wire.Refusal{Said: p.String(), Is: []error{ErrDenied, store.ErrUnauthenticated}}
	case p.Status == http.StatusForbidden:
		return answered, &wire.Refusal{Said: p.String(), Is: []error{ErrDenied, store.ErrDenied}}
	case p.Code == wire.CodeDeployment, p.Code == wire.CodeUnavailable:
		return unsent, errors.New(p.String())
	default:
		return silent, errors.New(p.String())
	}
}
