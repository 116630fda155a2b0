package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/lab/labapi"
)

// cut is what keeps a node from something, at its proxies.
type cut struct {
	fleet *Fleet
	name  string
	drops []drop
}

// drop is one direction of a connection that nothing gets through.
type drop struct {
	at     string // URL of the proxy's toxics
	stream string
}

// The directions of a proxy, seen from whoever connects to it.
const (
	upstream   = "upstream"
	downstream = "downstream"
)

// ours is how the names of what this package puts into proxies begin.
const ours = "chaos-"

// cutting prepares a cut; nothing is cut yet. Nodes are cut off what from says: off
// Peers means off every node that is not named beside them. The others are cut off the
// nodes.
func (f *Fleet) cutting(targets []Target, from From, way Way) (*cut, error) {
	file, err := f.file()
	if err != nil {
		return nil, err
	}
	if way != Up && way != Down && way != Both {
		return nil, fmt.Errorf("%w: way %q: both, up or down", ErrCannot, way)
	}
	c := &cut{fleet: f}
	for _, t := range targets {
		if err := c.cutOff(file, t, targets, from, way); err != nil {
			return nil, err
		}
		if len(c.drops) == 0 || file.Proxies.API == "" {
			return nil, fmt.Errorf("%w: there is no proxy between %s and the %s: was the fleet started with --direct?", ErrCannot, t.ID, from)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	c.name = fmt.Sprintf("%s%d-%d-", ours, os.Getpid(), f.count)
	return c, nil
}

// cutOff adds what cuts one of the targets off.
func (c *cut) cutOff(file labapi.FleetFile, t Target, targets []Target, from From, way Way) error {
	if t.kind != isNode {
		for _, n := range file.Nodes {
			proxy := n.Proxies.Ledger
			if t.kind == isMember {
				proxy = n.Proxies.Engines[t.ID]
			}
			c.add(file, proxy, way, downstream, upstream) // what it sends are answers
		}
		return nil
	}
	switch from {
	case Engine:
		if file.Engine.PID == 0 {
			return fmt.Errorf("%w: the nodes of a fleet on %s have no engine apart from themselves", ErrCannot, file.Backend)
		}
		for _, proxy := range t.proxies.Engines {
			c.add(file, proxy, way, upstream, downstream)
		}
	case Ledger:
		c.add(file, t.proxies.Ledger, way, upstream, downstream)
	case Peers:
		if len(t.proxies.Peers) == 0 || file.Proxies.API == "" {
			return fmt.Errorf("%w: %s has no proxies before its peers: it needs Raft, and no --direct", ErrCannot, t.ID)
		}
		before := len(c.drops)
		for _, n := range file.Nodes {
			if slices.ContainsFunc(targets, func(t Target) bool { return t.ID == n.ID }) {
				continue
			}
			c.add(file, t.proxies.Peers[n.ID], way, upstream, downstream)
			c.add(file, n.Proxies.Peers[t.ID], way, downstream, upstream)
		}
		if len(c.drops) == before {
			return fmt.Errorf("%w: all nodes are named: there is nobody to cut them off from", ErrCannot)
		}
	default:
		return fmt.Errorf("%w: from %q: engine, ledger or peers", ErrCannot, from)
	}
	return nil
}

// add adds a proxy, if there is one, and says in which of its directions the target
// sends, and in which it is answered.
func (c *cut) add(file labapi.FleetFile, proxy string, way Way, sends, answered string) {
	if proxy == "" {
		return
	}
	at := toxics(file, proxy)
	if way != Down {
		c.drops = append(c.drops, drop{at, sends})
	}
	if way != Up {
		c.drops = append(c.drops, drop{at, answered})
	}
}

func toxics(file labapi.FleetFile, proxy string) string {
	return strings.TrimRight(file.Proxies.API, "/") + "/proxies/" + proxy + "/toxics"
}

// make drops everything silently, also on connections that are open already. A call that
// is under way is not given up: it could take effect after it was undone.
func (c *cut) make(ctx context.Context) error {
	for _, d := range c.drops {
		body := map[string]any{"name": c.name + d.stream, "type": "timeout", "stream": d.stream, "toxicity": 1, "attributes": map[string]any{"timeout": 0}}
		if err := c.fleet.call(context.WithoutCancel(ctx), http.MethodPost, d.at, nil, body, nil); err != nil {
			return fmt.Errorf("the proxy does not cut: %w", err)
		}
		if err := cause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// heal lets everything through again. Connections that were cut are closed.
func (c *cut) heal(ctx context.Context) error {
	var all error
	for _, d := range c.drops {
		all = errors.Join(all, c.fleet.remove(ctx, d.at+"/"+c.name+d.stream))
	}
	return all
}

// remove takes something out of a proxy, and tries again while the proxy does not
// answer. What is gone already is gone.
func (f *Fleet) remove(ctx context.Context, toxic string) error {
	for {
		err := f.call(ctx, http.MethodDelete, toxic, nil, nil, nil)
		var a *answerError
		if err == nil || errors.As(err, &a) && a.status == http.StatusNotFound {
			return nil
		}
		if f.fleetEnded() || !pause(ctx, pollEvery) {
			return fmt.Errorf("%w; curl -X DELETE %s heals it", err, toxic)
		}
	}
}

// unheard says which proxy lets nothing through although what it leads to answers; empty:
// none was found. It asks the first only: all are cut alike.
func (c *cut) unheard(ctx context.Context) string {
	proxy := strings.TrimSuffix(c.drops[0].at, "/toxics")
	var at struct {
		Name     string `json:"name"`
		Listen   string `json:"listen"`
		Upstream string `json:"upstream"`
	}
	if c.fleet.call(ctx, http.MethodGet, proxy, nil, nil, &at) != nil || !reacts(ctx, at.Upstream) || reacts(ctx, at.Listen) || ctx.Err() != nil {
		return ""
	}
	return "nothing comes through " + at.Name
}

// reacts reports whether anybody says something, or hangs up, when spoken to: what is no
// HTTP server does not understand the question.
func reacts(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime/2)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("GET /healthz HTTP/1.0\r\n\r\n")); err != nil {
		return false
	}
	_, err = conn.Read(make([]byte, 1))
	return err == nil || !errors.Is(err, os.ErrDeadlineExceeded)
}
