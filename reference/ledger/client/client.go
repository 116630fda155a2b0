// Package client calls a ledger over HTTP.
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/reference/httpclient"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// Config configures a client.
type Config struct {
	// URL of the ledger, such as http://127.0.0.1:7420.
	URL string
	// Holder is who writes, for the list of refused writes. Optional.
	Holder string
	// Timeout bounds each call that has no earlier deadline. Default 5s.
	Timeout time.Duration
}

// Client calls a ledger. It is safe for concurrent use. It retries nothing: only the caller
// knows whether that is safe.
//
// The errors are the refusals of package fence and the errors of package api. A call without
// an answer is api.ErrUnknown, unless the request was certainly not sent.
type Client struct {
	base    string
	holder  string
	timeout time.Duration
	http    *http.Client
	// seen is the identity in the last answer. Every request carries it, so that a ledger
	// that has lost data since then refuses the request.
	seen atomic.Pointer[api.Identity]
}

// New returns a client. It does not connect yet.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("ledger: %q is not the URL of a ledger, such as http://127.0.0.1:7420", cfg.URL)
	}
	c := &Client{base: strings.TrimRight(u.String(), "/") + "/v1", holder: cfg.Holder, timeout: cfg.Timeout}
	if c.timeout <= 0 {
		c.timeout = 5 * time.Second
	}
	c.http = httpclient.New(c.timeout, 512)
	return c, nil
}

// Close closes the connections that are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Apply makes a batch of writes.
func (c *Client) Apply(ctx context.Context, b api.Batch) (a api.Answer, err error) {
	retried, err := c.post(ctx, b, b, &a, "resources", b.Resource, "batch")
	a.Retried = retried
	return a, err
}

// Allocate takes numbers of a sequence: first to last, or the next n.
func (c *Client) Allocate(ctx context.Context, resource string, s fence.Stamp, w api.SequenceWrite) (r api.RangeAnswer, err error) {
	_, err = c.post(ctx, api.Batch{Resource: resource, Stamp: s}, api.RangeBody{First: w.First, Last: w.Last, N: w.N}, &r, "resources", resource, "sequences", w.Name)
	return r, err
}

// Seal raises the resource's mark to the stamp's token.
func (c *Client) Seal(ctx context.Context, resource string, s fence.Stamp) error {
	_, err := c.post(ctx, api.Batch{Resource: resource, Stamp: s}, nil, nil, "resources", resource, "seal")
	return err
}

// Advance raises a mark to any token; it is for operators.
func (c *Client) Advance(ctx context.Context, resource string, s fence.Stamp) error {
	_, err := c.post(ctx, api.Batch{Resource: resource, Stamp: s}, nil, nil, "resources", resource, "advance")
	return err
}

// Sealer returns a resource of the ledger as a sink that tenure.Lead can seal.
func (c *Client) Sealer(resource string) fence.Sealer { return sealer{c, resource} }

type sealer struct {
	c        *Client
	resource string
}

func (s sealer) Seal(ctx context.Context, stamp fence.Stamp) error {
	return s.c.Seal(ctx, s.resource, stamp)
}

// Resource returns a resource and its mark.
func (c *Client) Resource(ctx context.Context, name string) (api.ResourceBody, error) {
	return get[api.ResourceBody](ctx, c, nil, "resources", name)
}

// Resources lists the resources by name.
func (c *Client) Resources(ctx context.Context, after string, limit int) (api.Page[api.Resource], error) {
	return get[api.Page[api.Resource]](ctx, c, paging(after, limit), "resources")
}

// Sequence returns the state of a sequence.
func (c *Client) Sequence(ctx context.Context, resource, name string) (api.Sequence, error) {
	return get[api.Sequence](ctx, c, nil, "resources", resource, "sequences", name)
}

// Allocations lists what was taken of a sequence, oldest first.
func (c *Client) Allocations(ctx context.Context, resource, name, after string, limit int) (api.Page[api.Allocation], error) {
	return get[api.Page[api.Allocation]](ctx, c, paging(after, limit), "resources", resource, "sequences", name, "allocations")
}

// Checkpoint returns a checkpoint.
func (c *Client) Checkpoint(ctx context.Context, resource, name string) (api.Checkpoint, error) {
	return get[api.Checkpoint](ctx, c, nil, "resources", resource, "checkpoints", name)
}

// Record returns a record.
func (c *Client) Record(ctx context.Context, resource, key string) (api.Record, error) {
	return get[api.Record](ctx, c, nil, "resources", resource, "records", key)
}

// Records lists the records of a resource by key.
func (c *Client) Records(ctx context.Context, resource, after string, limit int) (api.Page[api.Record], error) {
	return get[api.Page[api.Record]](ctx, c, paging(after, limit), "resources", resource, "records")
}

// Ticks lists the log of a resource, oldest first.
func (c *Client) Ticks(ctx context.Context, resource, after string, limit int) (api.Page[api.Tick], error) {
	return get[api.Page[api.Tick]](ctx, c, paging(after, limit), "resources", resource, "ticks")
}

// Jobs lists the jobs that are due before an instant, the next first. beforeMS 0 means all.
func (c *Client) Jobs(ctx context.Context, resource string, beforeMS int64, after string, limit int) (api.Jobs, error) {
	query := paging(after, limit)
	if beforeMS != 0 {
		query.Set("before_ms", strconv.FormatInt(beforeMS, 10))
	}
	return get[api.Jobs](ctx, c, query, "resources", resource, "jobs")
}

// Job returns a job.
func (c *Client) Job(ctx context.Context, resource, key string) (api.Job, error) {
	return get[api.Job](ctx, c, nil, "resources", resource, "jobs", key)
}

// Firings lists the firings of a resource, or those that were not delivered yet,
// oldest first.
func (c *Client) Firings(ctx context.Context, resource string, pendingOnly bool, after string, limit int) (api.Page[api.Firing], error) {
	query := paging(after, limit)
	if pendingOnly {
		query.Set("pending", "true")
	}
	return get[api.Page[api.Firing]](ctx, c, query, "resources", resource, "firings")
}

// Rejections lists refused writes, newest first.
func (c *Client) Rejections(ctx context.Context, after string, limit int) (api.Rejections, error) {
	return get[api.Rejections](ctx, c, paging(after, limit), "rejections")
}

// Shared returns a shared record.
func (c *Client) Shared(ctx context.Context, deployment, space, key string) (api.SharedRecord, error) {
	return get[api.SharedRecord](ctx, c, nil, "shared", deployment, space, key)
}

// PutShared replaces a shared record and returns its new version. The record must have the
// given version; 0: it must not exist; nil: any.
func (c *Client) PutShared(ctx context.Context, deployment, space, key string, value json.RawMessage, version *uint64) (uint64, error) {
	data, err := json.Marshal(api.SharedWrite{Value: value})
	if err != nil {
		return 0, &api.RequestError{Field: "value", Rule: err.Error()}
	}
	return c.share(ctx, http.MethodPut, deployment, space, key, data, version)
}

// DeleteShared deletes a shared record, of the given version if there is one.
func (c *Client) DeleteShared(ctx context.Context, deployment, space, key string, version *uint64) error {
	_, err := c.share(ctx, http.MethodDelete, deployment, space, key, nil, version)
	return err
}

func (c *Client) share(ctx context.Context, method, deployment, space, key string, body []byte, version *uint64) (uint64, error) {
	headers := http.Header{"Content-Type": {"application/json"}}
	api.SetPrecondition(headers, version)
	var a api.SharedAnswer
	_, err := c.call(ctx, method, []string{"shared", deployment, space, key}, nil, headers, body, &a)
	return a.Version, err
}

// Accept accepts the state of a ledger that has lost data: see ledger.Ledger.Accept.
func (c *Client) Accept(ctx context.Context, replaces string) (now api.Identity, err error) {
	data, err := json.Marshal(api.AcceptBody{Replaces: replaces})
	if err != nil {
		return now, err
	}
	headers := http.Header{"Content-Type": {"application/json"}}
	if c.holder != "" {
		headers.Set(api.HeaderHolder, url.PathEscape(c.holder))
	}
	_, err = c.call(ctx, http.MethodPost, []string{"accept"}, nil, headers, data, &now)
	return now, err
}

// Seen returns the identity in the last answer; zero: none yet.
func (c *Client) Seen() api.Identity {
	if i := c.seen.Load(); i != nil {
		return *i
	}
	return api.Identity{}
}

// saw records the identity in an answer. The request carried the last identity, so if the id
// differs, an operator has accepted the new ledger.
func (c *Client) saw(now api.Identity) {
	for {
		last := c.seen.Load()
		if last != nil && last.ID == now.ID && last.Revision >= now.Revision {
			return
		}
		if c.seen.CompareAndSwap(last, &now) {
			return
		}
	}
}

// Healthy is an error unless the ledger can read and write, and has lost nothing that this
// client has seen.
func (c *Client) Healthy(ctx context.Context) error {
	_, err := get[struct{}](ctx, c, nil, "healthz")
	return err
}

func paging(after string, limit int) url.Values {
	v := url.Values{}
	if after != "" {
		v.Set("after", after)
	}
	if limit > 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
	return v
}

func get[T any](ctx context.Context, c *Client, query url.Values, path ...string) (v T, err error) {
	_, err = c.call(ctx, http.MethodGet, path, query, nil, nil, &v)
	if errors.Is(err, api.ErrUnknown) {
		// A read changes nothing, so its outcome does not matter.
		return v, fmt.Errorf("%w: %s", api.ErrUnavailable, strings.TrimPrefix(err.Error(), api.ErrUnknown.Error()+": "))
	}
	return v, err
}

func (c *Client) post(ctx context.Context, b api.Batch, body, into any, path ...string) (retried bool, err error) {
	stamp := make(http.Header)
	if err := httpfence.Format(b.Stamp, stamp.Set); err != nil {
		return false, err
	}
	var data []byte
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			return false, &api.RequestError{Field: "writes", Rule: err.Error()}
		}
	}
	stamp.Set("Content-Type", "application/json")
	if holder := cmp.Or(b.Holder, c.holder); holder != "" {
		stamp.Set(api.HeaderHolder, url.PathEscape(holder))
	}
	h, err := c.call(ctx, http.MethodPost, path, nil, stamp, data, into)
	return h.Get(api.HeaderRetried) == "true", err
}

// maxAnswer is larger than any page of the ledger, in bytes.
const maxAnswer = 2 << 30

func (c *Client) call(ctx context.Context, method string, path []string, query url.Values, headers http.Header, body []byte, into any) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	target := c.base
	for _, p := range path {
		target += "/" + url.PathEscape(p)
	}
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	// http.Transport retries a POST only if it has not sent a byte of it.
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, &api.RequestError{Field: "path", Rule: err.Error()}
	}
	maps.Copy(req.Header, headers)
	if seen := c.Seen(); seen.ID != "" {
		req.Header.Set(api.HeaderIdentity, seen.String())
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if httpclient.NotSent(err) {
			return nil, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
		}
		return nil, fmt.Errorf("%w: %w", api.ErrUnknown, err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%w: the answer was cut off: %w", api.ErrUnknown, err)
	}
	if resp.StatusCode != http.StatusOK {
		return resp.Header, api.FromProblem(resp.StatusCode, resp.Header.Get("Content-Type"), data)
	}
	if now, err := api.ParseIdentity(resp.Header.Get(api.HeaderIdentity)); err == nil && now.ID != "" {
		c.saw(now)
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			return nil, fmt.Errorf("%w: the answer cannot be read: %w", api.ErrUnknown, err)
		}
	}
	return resp.Header, nil
}
