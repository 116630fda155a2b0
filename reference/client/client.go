package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/httpclient"
	"github.com/tenurehq/tenure/reference/wait"
)

// Config configures a client. A zero field has its default; URLs is required.
type Config struct {
	// URLs of the nodes, such as http://127.0.0.1:7410. At least one.
	URLs []string
	// Timeout bounds one try of a call. Default 5s.
	Timeout time.Duration
	// Patience bounds a call with all its tries, if the context has no deadline. Default 30s.
	Patience time.Duration
	// Credential is sent as a bearer token, for Resign and Transfer from other hosts.
	Credential string
}

// Clients wait between tries for a random time up to a bound that doubles. So clients that
// lost their leader together do not come back together.
const (
	firstWait = 10 * time.Millisecond
	mostWait  = 500 * time.Millisecond
)

// Client calls a fleet. It is safe for concurrent use.
type Client struct {
	urls     []string
	timeout  time.Duration
	patience time.Duration
	secret   string
	http     *http.Client
	turn     atomic.Uint32 // which node the next read begins with

	mu     sync.Mutex
	leader string      // URL, empty: not known
	token  fence.Token // the highest that any answer had
}

// New returns a client. It does not connect yet.
func New(cfg Config) (*Client, error) {
	if len(cfg.URLs) == 0 {
		return nil, errors.New("fleet: no node is given; URLs needs at least one, such as http://127.0.0.1:7410")
	}
	c := &Client{timeout: cfg.Timeout, patience: cfg.Patience, secret: cfg.Credential}
	for _, raw := range cfg.URLs {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("fleet: %q is not the URL of a node, such as http://127.0.0.1:7410", raw)
		}
		c.urls = append(c.urls, strings.TrimRight(u.String(), "/"))
	}
	if c.timeout <= 0 {
		c.timeout = 5 * time.Second
	}
	if c.patience <= 0 {
		c.patience = 30 * time.Second
	}
	c.http = httpclient.New(c.timeout, 512)
	// It would follow a redirect although the outcome may be unknown.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// Close closes the connections that are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request and how it may be retried.
type call struct {
	method string
	path   string
	header http.Header
	body   []byte
	// leader: only the leader can answer it. Otherwise any node can.
	leader bool
	// again: it may be retried although its outcome is unknown.
	again bool
}

type answer struct {
	header http.Header
	body   []byte
}

// do makes the call until it has an outcome or ctx ends.
func (c *Client) do(ctx context.Context, r call) (answer, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.patience, fmt.Errorf("no node did it within %v", c.patience))
		defer cancel()
	}
	var last error
	bound, hops := firstWait, 0
	for ctx.Err() == nil {
		at, err := c.place(ctx, r.leader)
		if err == nil {
			var a answer
			a, err = c.try(ctx, at, r)
			if err == nil {
				return a, nil
			}
		}
		var no *ProblemError
		if errors.As(err, &no) || errors.Is(err, ErrUnknown) {
			if errors.Is(err, ErrUnknown) {
				c.forget(at)
			}
			return answer{}, err
		}
		// The error of an earlier attempt says more than the end of the context.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		after, moved := c.learn(at, err)
		// Two nodes that name each other must not send the call in a circle.
		if moved && hops < 2 {
			hops++
			continue
		}
		hops = 0
		if !wait.For(ctx, max(after, rand.N(bound))) {
			break
		}
		bound = min(2*bound, mostWait)
	}
	return answer{}, gaveUp(ctx, last)
}

// learn reads from a refusal where the leader is, and how long to wait before the next try.
// moved: the next try can be made at once.
func (c *Client) learn(at string, err error) (after time.Duration, moved bool) {
	var r *refusal
	if !errors.As(err, &r) {
		c.forget(at)
		return 0, false
	}
	if r.leader != "" && r.leader != at {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leader = r.leader
		return 0, true
	}
	if r.code == api.CodeBusy {
		return min(r.after, time.Second), false // it leads, and asks for time
	}
	c.forget(at)
	return 0, false
}

// maxAnswer is larger than any answer of a node, in bytes.
const maxAnswer = 16 << 20

// try makes the call once, at one node. A call that may be retried is never ErrUnknown.
func (c *Client) try(ctx context.Context, at string, r call) (answer, error) {
	a, err := c.once(ctx, at, r)
	if r.again {
		err = definite(err)
	}
	return a, err
}

func (c *Client) once(ctx context.Context, at string, r call) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	// http.Transport retries a write only if it has not sent a byte of it.
	req, err := http.NewRequestWithContext(ctx, r.method, at+"/v1"+r.path, bytes.NewReader(r.body))
	if err != nil {
		return answer{}, &ProblemError{Status: http.StatusBadRequest, Detail: err.Error()}
	}
	maps.Copy(req.Header, r.header)
	resp, err := c.http.Do(req)
	if err != nil {
		var op *net.OpError
		if !connected.Load() || errors.As(err, &op) && op.Op == "dial" {
			return answer{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return answer{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("%w: the answer was cut off: %w", ErrUnknown, err)
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return answer{}, fromAnswer(resp, body)
	}
	return answer{header: resp.Header, body: body}, nil
}

func decode[T any](a answer) (v T, err error) {
	if err := json.Unmarshal(a.body, &v); err != nil {
		return v, fmt.Errorf("%w: the answer cannot be read: %w", ErrUnknown, err)
	}
	return v, nil
}
