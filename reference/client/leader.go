package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// Leader is who leads, according to the nodes. It is a hint whom to call.
type Leader struct {
	ID    string
	URL   string
	Token fence.Token
}

// Leader asks all nodes at once who leads, until one is known or ctx ends. It ignores a node
// that leads with a lower token than this client has seen.
func (c *Client) Leader(ctx context.Context) (Leader, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.patience, fmt.Errorf("nobody led for %v", c.patience))
		defer cancel()
	}
	bound := firstWait
	for {
		l, err := c.ask(ctx)
		if err == nil {
			c.mu.Lock()
			c.leader, c.token = l.URL, max(c.token, l.Token)
			c.mu.Unlock()
			return l, nil
		}
		if ctx.Err() != nil || !wait.For(ctx, bound/2+rand.N(bound)) {
			return Leader{}, gaveUp(ctx, err)
		}
		bound = min(2*bound, 10*firstWait)
	}
}

// A node may take askPatience to answer, and askBeyond longer than the first answer, so that
// a paused node does not delay the caller.
const (
	askPatience = time.Second
	askBeyond   = 100 * time.Millisecond
)

// ask asks all nodes once. It returns with the first that leads.
func (c *Client) ask(ctx context.Context) (Leader, error) {
	ctx, cancel := context.WithTimeout(ctx, min(askPatience, c.timeout))
	defer cancel()
	type said struct {
		url    string
		status api.Status
		err    error
	}
	answers := make(chan said, len(c.urls))
	for _, u := range c.urls {
		go func() {
			s, err := c.Status(ctx, u)
			answers <- said{u, s, err}
		}()
	}
	c.mu.Lock()
	floor := c.token
	c.mu.Unlock()
	var named Leader
	heard := false
	var last error
	beyond := time.AfterFunc(askPatience, cancel)
	defer beyond.Stop()
	for i := range c.urls {
		a := <-answers
		if a.err == nil && !heard {
			heard = true
			beyond.Reset(askBeyond)
		}
		switch s := a.status; {
		case a.err != nil:
			last = a.err
		case s.FenceToken < floor:
		case s.Role == api.Leader:
			cancel()
			for range len(c.urls) - i - 1 {
				<-answers // wait for every goroutine
			}
			return Leader{ID: s.NodeID, URL: a.url, Token: s.FenceToken}, nil
		case s.LeaderAddress != "" && s.FenceToken > named.Token:
			named = Leader{ID: s.Leader, URL: s.LeaderAddress, Token: s.FenceToken}
		}
	}
	if named.URL != "" && !slices.Contains(c.urls, named.URL) {
		return named, nil // a node that this client was not told about
	}
	if last == nil {
		last = fmt.Errorf("%w: none of %d nodes leads", ErrUnavailable, len(c.urls))
	}
	return Leader{}, last
}

// Status asks one node once.
func (c *Client) Status(ctx context.Context, url string) (api.Status, error) {
	a, err := c.try(ctx, url, call{method: http.MethodGet, path: "/status", again: true})
	if err != nil {
		return api.Status{}, err
	}
	v, err := decode[api.Status](a)
	return v, definite(err)
}

// place returns the node to call: the leader, or the next node in turn.
func (c *Client) place(ctx context.Context, leader bool) (string, error) {
	if !leader {
		return c.urls[int(c.turn.Add(1)-1)%len(c.urls)], nil
	}
	c.mu.Lock()
	at := c.leader
	c.mu.Unlock()
	if at != "" {
		return at, nil
	}
	l, err := c.ask(ctx)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader, c.token = l.URL, max(c.token, l.Token)
	return l.URL, nil
}

// forget removes the cached leader, unless another was found meanwhile.
func (c *Client) forget(url string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader == url {
		c.leader = ""
	}
}

func (c *Client) seen(t fence.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = max(c.token, t)
}
