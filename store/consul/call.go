package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tenurehq/tenure/store"
)

// request is one call of the HTTP API.
type request struct {
	what   string // for errors
	method string
	path   string // below /v1/
	query  url.Values
	body   any
	into   any // what the answer is decoded into
	// blocks: the answer takes long, so only one address is asked.
	blocks bool
}

// answer is what Consul said. The status is 200, 404 or 409.
type answer struct {
	status  int
	header  http.Header
	address int
}

// refusedError is an answer that every address would give.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// each gives a call to one address after the other until one answers. The time that is left is
// shared among those that have not been asked. An error leaves the outcome unknown, unless
// store.Definite says otherwise.
func (d *Driver) each(ctx context.Context, r request) (answer, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultCall)
		defer cancel()
	}
	d.mu.Lock()
	first := d.preferred
	d.mu.Unlock()
	tries := len(d.cfg.Addresses)
	if r.blocks {
		tries = 1
	}
	var errs []error
	for i := range tries {
		at := (first + i) % len(d.cfg.Addresses)
		a, err := d.try(ctx, at, tries-i, r)
		var refused refusedError
		if err == nil || errors.As(err, &refused) || errors.Is(err, context.Canceled) {
			return a, err
		}
		errs = append(errs, err)
		d.mu.Lock()
		if d.preferred == at {
			d.preferred = (at + 1) % len(d.cfg.Addresses)
		}
		d.mu.Unlock()
		if ctx.Err() != nil {
			break
		}
	}
	return answer{}, errors.Join(errs...)
}

// try asks one address. left is how many addresses share the time.
func (d *Driver) try(ctx context.Context, at, left int, r request) (answer, error) {
	if deadline, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	a, err := d.send(ctx, at, r)
	switch {
	case err == nil:
		return a, nil
	case d.ctx.Err() != nil:
		return a, refusedError{errClosed}
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no answer in time (stopped, cut off, or without a quorum): %w", context.DeadlineExceeded)
	}
	return a, fmt.Errorf("consul: %s: %s: %w", r.what, d.cfg.Addresses[at], err)
}

func (d *Driver) send(ctx context.Context, at int, r request) (answer, error) {
	var body io.Reader = http.NoBody
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return answer{}, err
		}
		body = bytes.NewReader(text)
	}
	target, err := url.Parse(d.cfg.Addresses[at])
	if err != nil {
		return answer{}, err
	}
	query := url.Values{}
	for k, v := range r.query {
		query[k] = v
	}
	if d.cfg.Datacenter != "" {
		query.Set("dc", d.cfg.Datacenter)
	}
	target.Path, target.RawQuery = "/v1/"+r.path, query.Encode()
	q, err := http.NewRequestWithContext(ctx, r.method, target.String(), body)
	if err != nil {
		return answer{}, err
	}
	if d.cfg.Token != "" {
		q.Header.Set("X-Consul-Token", d.cfg.Token)
	}
	resp, err := d.client.Do(q)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which is long
		}
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header, address: at}
	switch {
	case a.status == http.StatusNotFound && r.path != "txn" || a.status == http.StatusOK && r.into == nil:
		return a, nil
	case a.status == http.StatusOK, a.status == http.StatusConflict:
		if err := json.Unmarshal(text, r.into); err != nil {
			return a, fmt.Errorf("the answer is not one of Consul: %w", err)
		}
		return a, nil
	}
	return a, refusal(a.status, string(text))
}

// refusal is the error of an answer that is no success.
func refusal(status int, text string) error {
	const most = 200
	text = strings.TrimSpace(text)
	if len(text) > most {
		text = text[:most] + "…"
	}
	switch {
	case status == http.StatusForbidden && strings.Contains(text, "ACL not found"):
		return refusedError{fmt.Errorf("%w: Consul does not know the ACL token", store.ErrUnauthenticated)}
	case status == http.StatusForbidden:
		return refusedError{fmt.Errorf("%w: %s", store.ErrDenied, text)}
	case strings.Contains(text, "No path to datacenter"), strings.Contains(text, "No datacenter"):
		return refusedError{&store.ArgumentError{Field: "datacenter", Rule: text}}
	case status >= http.StatusInternalServerError:
		return fmt.Errorf("Consul cannot serve, perhaps it has no leader or no quorum: HTTP status %d: %s", status, text)
	}
	return fmt.Errorf("HTTP status %d: %s", status, text)
}
