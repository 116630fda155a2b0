package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// Range is a range of numbers that only this caller has.
type Range struct {
	Token       fence.Token
	First, Last uint64
}

// Next takes the next n numbers. After ErrUnknown numbers may have been taken that nobody
// uses; calling again is safe and skips them.
func (c *Client) Next(ctx context.Context, n int) (Range, error) {
	if n < 1 || n > api.MaxNext {
		return Range{}, &ProblemError{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: fmt.Sprintf("n is %d: 1 to %d", n, api.MaxNext)}
	}
	path := "/next"
	if n > 1 {
		path += "?n=" + strconv.Itoa(n)
	}
	a, err := c.do(ctx, call{method: http.MethodPost, path: path, leader: true})
	if err != nil {
		return Range{}, err
	}
	v, err := decode[api.Next](a)
	if err != nil {
		return Range{}, err
	}
	if v.Last == 0 {
		v.Last = v.Seq
	}
	c.seen(v.Token)
	return Range{Token: v.Token, First: v.Seq, Last: v.Last}, nil
}

// Resign ends the leader's term. of is the token of that term, so that a newer leader is not
// deposed by mistake; 0 means any leader.
func (c *Client) Resign(ctx context.Context, of fence.Token) (api.Ended, error) {
	return c.end(ctx, "/resign", of)
}

// Transfer asks the leader to hand over to a candidate. of is as for Resign.
func (c *Client) Transfer(ctx context.Context, to string, of fence.Token) (api.Ended, error) {
	return c.end(ctx, "/transfer?to="+url.QueryEscape(to), of)
}

func (c *Client) end(ctx context.Context, path string, of fence.Token) (api.Ended, error) {
	r := call{method: http.MethodPost, path: path, leader: true, header: http.Header{}}
	if c.secret != "" {
		r.header.Set("Authorization", "Bearer "+c.secret)
	}
	if of != 0 {
		r.header.Set("If-Match", ledgerapi.ETag(uint64(of)))
	}
	a, err := c.do(ctx, r)
	if err != nil {
		return api.Ended{}, err
	}
	return decode[api.Ended](a)
}

// Failovers returns the recorded changes of leader, oldest first.
func (c *Client) Failovers(ctx context.Context) (api.Failovers, error) {
	return read[api.Failovers](ctx, c, "/failovers")
}

// Get reads a record, from any node.
func (c *Client) Get(ctx context.Context, key string) (api.Record, error) {
	return read[api.Record](ctx, c, "/records/"+url.PathEscape(key))
}

// Put writes a record, through any node, and returns its version. With a version, the record
// must have that version now; 0: it must not exist. ErrVersion: it has another. A record needs
// no leader.
func (c *Client) Put(ctx context.Context, key string, value json.RawMessage, version *uint64) (uint64, error) {
	h := http.Header{"Content-Type": {"application/json"}}
	ledgerapi.SetPrecondition(h, version)
	a, err := c.do(ctx, call{method: http.MethodPut, path: "/records/" + url.PathEscape(key), header: h, body: value})
	if err != nil {
		return 0, err
	}
	v, err := decode[api.Record](a)
	return v.Version, err
}

// PutJob adds or replaces a job.
func (c *Client) PutJob(ctx context.Context, job api.Job) (api.JobAnswer, error) {
	body, err := json.Marshal(job)
	if err != nil {
		return api.JobAnswer{}, &ProblemError{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: err.Error()}
	}
	a, err := c.do(ctx, call{method: http.MethodPost, path: "/jobs", leader: true, body: body, header: http.Header{"Content-Type": {"application/json"}}})
	if err != nil {
		return api.JobAnswer{}, err
	}
	return decode[api.JobAnswer](a)
}

// Job reads a job, from any node.
func (c *Client) Job(ctx context.Context, key string) (api.Job, error) {
	return read[api.Job](ctx, c, "/jobs/"+url.PathEscape(key))
}

// read asks any node. A read changes nothing, so its outcome is never unknown.
func read[T any](ctx context.Context, c *Client, path string) (v T, err error) {
	a, err := c.do(ctx, call{method: http.MethodGet, path: path, again: true})
	if err != nil {
		return v, err
	}
	v, err = decode[T](a)
	return v, definite(err)
}
