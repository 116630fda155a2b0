package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/tenurehq/tenure/app/fleet/api"
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

// cutting prepares a cut; nothing is cut yet.
func (f *Fleet) cutting(target Leader, from From, way Way) (*cut, error) {
	file, err := f.file()
	if err != nil {
		return nil, err
	}
	if way != Up && way != Down && way != Both {
		return nil, fmt.Errorf("%w: way %q: both, up or down", ErrCannot, way)
	}
	c := &cut{fleet: f}
	proxy := ""
	switch from {
	case Engine:
		if file.Engine.PID == 0 {
			return nil, fmt.Errorf("%w: the nodes of a fleet on %s have no engine apart from themselves", ErrCannot, file.Backend)
		}
		proxy = target.proxies.Engine
	case Ledger:
		proxy = target.proxies.Ledger
	case Peers:
		if len(target.proxies.Peers) == 0 || file.Proxies.API == "" {
			return nil, fmt.Errorf("%w: %s has no proxies before its peers: it needs Raft, and no --direct", ErrCannot, target.ID)
		}
		for _, n := range file.Nodes {
			if n.ID == target.ID {
				for _, to := range n.Proxies.Peers {
					c.add(toxics(file, to), way, upstream, downstream)
				}
			} else if from := n.Proxies.Peers[target.ID]; from != "" {
				c.add(toxics(file, from), way, downstream, upstream) // what the target sends here are answers
			}
		}
	default:
		return nil, fmt.Errorf("%w: from %q: engine, ledger or peers", ErrCannot, from)
	}
	switch {
	case from == Peers:
	case proxy == "" || file.Proxies.API == "":
		return nil, fmt.Errorf("%w: %s has no proxy before its %s: was the fleet started with --direct?", ErrCannot, target.ID, from)
	default:
		c.add(toxics(file, proxy), way, upstream, downstream)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	c.name = fmt.Sprintf("%s%d-%d-", ours, os.Getpid(), f.count)
	return c, nil
}

// add adds a proxy, and says in which of its directions the node sends, and in which it
// is answered.
func (c *cut) add(at string, way Way, sends, answered string) {
	if way != Down {
		c.drops = append(c.drops, drop{at, sends})
	}
	if way != Up {
		c.drops = append(c.drops, drop{at, answered})
	}
}

func toxics(file api.FleetFile, proxy string) string {
	return strings.TrimRight(file.Proxies.API, "/") + "/proxies/" + proxy + "/toxics"
}

// make drops everything silently, also on connections that are open already.
func (c *cut) make(ctx context.Context) error {
	for _, d := range c.drops {
		body := map[string]any{"name": c.name + d.stream, "type": "timeout", "stream": d.stream, "toxicity": 1, "attributes": map[string]any{"timeout": 0}}
		if err := c.fleet.call(ctx, http.MethodPost, d.at, nil, body, nil); err != nil {
			return fmt.Errorf("the proxy does not cut: %w", err)
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
		if !pause(ctx, look) {
			return fmt.Errorf("%w; curl -X DELETE %s heals it", err, toxic)
		}
	}
}
