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
	"github.com/tenurehq/tenure/store/kv"
)

// request is one call of the HTTP API.
type request struct {
	what   string // for errors
	method string
	path   string // below /v1/
	query  url.Values
	body   any
	into   any // what the answer is decoded into
	// blocks: a blocking query, which is sent to one address only.
	blocks bool
}

// answer is an answer of Consul. The status is 200, 404 or 409.
type answer struct {
	status int
	header http.Header
}

// each tries a call at one address after the other until one answers. The remaining time is
// divided among the addresses that were not tried yet. After an error the outcome is unknown,
// unless store.Definite says otherwise.
func (d *Driver) each(ctx context.Context, r request) (answer, error) {
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	tries := len(d.cfg.Addresses)
	if r.blocks {
		tries = 1
	}
	var errs []error
	for left := tries; left > 0 && (left == tries || ctx.Err() == nil); left-- {
		first := d.first.Load()
		a, err := d.try(ctx, int(first%uint32(len(d.cfg.Addresses))), left, r)
		if err == nil || store.Permanent(err) || errors.Is(err, kv.ErrClosed) || errors.Is(err, context.Canceled) {
			return a, err
		}
		errs = append(errs, err)
		d.first.CompareAndSwap(first, first+1)
	}
	return answer{}, errors.Join(errs...)
}

// try tries one address. left is how many addresses share the remaining time.
func (d *Driver) try(ctx context.Context, at, left int, r request) (answer, error) {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	a, err := d.send(ctx, at, r)
	switch {
	case err == nil:
		return a, nil
	case d.ctx.Err() != nil:
		return a, kv.ErrClosed
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no answer in time (stopped, cut off, or without a quorum): %w", context.DeadlineExceeded)
	}
	return a, fmt.Errorf("consul: %s: %s: %w", r.what, d.cfg.Addresses[at], err)
}

func (d *Driver) send(ctx context.Context, at int, r request) (answer, error) {
	var body bytes.Buffer
	if r.body != nil {
		if err := json.NewEncoder(&body).Encode(r.body); err != nil {
			return answer{}, err
		}
	}
	q, err := http.NewRequestWithContext(ctx, r.method, d.cfg.Addresses[at], &body)
	if err != nil {
		return answer{}, err
	}
	q.URL.Path, q.URL.RawQuery = "/v1/"+r.path, r.query.Encode()
	q.Header.Set("X-Consul-Token", d.cfg.Token)
	resp, err := d.client.Do(q)
	if err != nil {
		return answer{}, errors.Unwrap(err) // without the URL, which is long
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header}
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

// refusal returns the error for an HTTP status that is not a success.
func refusal(status int, text string) error {
	text = strings.TrimSpace(text[:min(len(text), 200)])
	switch {
	case status == http.StatusForbidden && strings.Contains(text, "ACL not found"):
		return fmt.Errorf("%w: Consul does not know the ACL token", store.ErrUnauthenticated)
	case status == http.StatusForbidden:
		return fmt.Errorf("%w: %s", store.ErrDenied, text)
	case status >= http.StatusInternalServerError:
		return fmt.Errorf("no leader, or no quorum? HTTP status %d: %s", status, text)
	}
	return fmt.Errorf("HTTP status %d: %s", status, text)
}
