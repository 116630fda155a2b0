package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/store"
)

// cutOff cuts processes off silently: nothing is refused, nothing arrives. It has an effect
// when a keep-alive or a write of a node failed or its term ended. For named processes it
// also has one when a proxy lets nothing through although the process behind it answers,
// or when a node on the other side of a split missed something.
func cutOff(f *Fleet, s Spec, targets []inspect.Target) (*procedure, error) {
	c, err := f.newCut(targets, s.From, s.Way)
	if err != nil {
		return nil, err
	}
	from, sides, named := string(s.From), targets, s.Kind == Partition
	switch {
	case targets[0].Kind != inspect.IsNode:
		from, sides = "nodes", nil
	case named && s.From == Peers:
		if sides, err = f.Nodes(); err != nil {
			return nil, err
		}
	}
	var all []cutNode
	blocked := ""
	return &procedure{
		heal: c.heal, healed: "reaches the " + from + " again",
		set: func(ctx context.Context) (string, clock.Instant, error) {
			for _, t := range sides {
				before, err := f.Metrics(ctx, t)
				if err != nil {
					return "", 0, err
				}
				all = append(all, cutNode{t, before})
			}
			way := map[Way]string{Both: "both ways", Up: "one way: what it sends does not arrive", Down: "one way: no answer arrives"}[s.Way]
			begun := now()
			return fmt.Sprintf("cut off the %s, %s, for %v", from, way, s.For), begun, c.make(ctx)
		},
		felt: func(ctx context.Context, healed bool) string {
			if named && !healed && blocked == "" {
				blocked = c.blocked(ctx)
			}
			return joinWords(blocked, f.missed(ctx, all, s.From, named))
		},
	}, nil
}

// cutNode is a node that was cut off, with its metrics from before.
type cutNode struct {
	node   inspect.Target
	before inspect.Metrics
}

// missed returns what nodes have missed since they were cut off, by their metrics.
func (f *Fleet) missed(ctx context.Context, all []cutNode, from From, withIDs bool) string {
	var found []string
	for _, n := range all {
		now, err := f.Metrics(ctx, n.node)
		if err != nil {
			continue
		}
		failed := now.Grown(n.before, "tenure_renew_failures_total", "reason", "keep-alives failed")
		if from == Ledger {
			failed = now.Grown(n.before, "tenure_fleet_writes_total", "outcome", "writes failed", "ok")
		}
		ended := now.Grown(n.before, "tenure_terms_ended_total", "reason", "terms ended", string(store.Resigned), string(store.Transferred))
		missed := joinWords(failed, ended, now.Refused(n.before))
		if missed != "" && withIDs {
			missed = n.node.ID + ": " + missed
		}
		found = append(found, missed)
	}
	return joinWords(found...)
}

// flap cuts a connection of the leader and restores it, for half to one and a half TTL each
// time, at random by the seed. It has an effect as cutOff has.
func flap(f *Fleet, s Spec, targets []inspect.Target) (*procedure, error) {
	l := &flapping{fleet: f, Spec: s, target: targets[0], random: rand.New(rand.NewPCG(s.Seed, 0))}
	p := &procedure{healed: "reaches the " + string(s.From) + " for good", hold: l.hold, heal: l.restore, felt: l.felt}
	whose := "its"
	if s.Follow {
		p.shown, whose = Measured, "the leader's" // other nodes than the target may be affected
	}
	if _, err := f.newCut(targets, s.From, s.Way); err != nil {
		return nil, err
	}
	p.set = func(ctx context.Context) (string, clock.Instant, error) {
		begun, err := l.sever(ctx)
		return fmt.Sprintf("%s connection to the %s comes and goes every %v or so, for %v (seed %d)", whose, s.From, f.TTL, s.For, s.Seed), begun, err
	}
	return p, nil
}

// flapping is a connection that is cut and restored, at one node at a time.
type flapping struct {
	Spec
	fleet   *Fleet
	target  inspect.Target
	random  *rand.Rand
	cut     *cut
	current Fault // the cut that is in effect; without a beginning there is none

	mu    sync.Mutex
	cuts  int
	nodes []cutNode
}

// sever cuts the target off.
func (l *flapping) sever(ctx context.Context) (clock.Instant, error) {
	c, err := l.fleet.newCut([]inspect.Target{l.target}, l.From, l.Way)
	if err != nil {
		return 0, err
	}
	before, err := l.fleet.Metrics(ctx, l.target)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	l.cuts++
	if !slices.ContainsFunc(l.nodes, func(n cutNode) bool { return n.node.ID == l.target.ID }) {
		l.nodes = append(l.nodes, cutNode{l.target, before})
	}
	l.mu.Unlock()
	l.cut, l.current = c, Fault{Name: l.Kind, Target: l.target.ID, Token: l.target.Token, Begun: now()}
	return l.current.Begun, c.make(ctx)
}

// restore lets everything through again.
func (l *flapping) restore(ctx context.Context) error {
	if l.cut == nil {
		return nil
	}
	if err := l.cut.heal(ctx); err != nil {
		return err
	}
	if l.current.Begun > 0 && l.Each != nil {
		l.current.Healed = now()
		l.Each(l.current, nil)
	}
	l.current = Fault{}
	return nil
}

func (l *flapping) hold(ctx context.Context, begun clock.Instant) error {
	f := l.fleet
	left := func() time.Duration { return begun.Add(l.For).Sub(now()) }
	// wait waits for half to one and a half TTL; false: the fault is over.
	wait := func() (time.Duration, bool) {
		d := min(left(), time.Duration((0.5+l.random.Float64())*float64(f.TTL)))
		return d, inspect.Sleep(ctx, d) && left() > 0
	}
	for {
		down, more := wait()
		if !more {
			return nil
		}
		rctx, cancel := context.WithTimeoutCause(ctx, healTime, errSlow)
		err := l.restore(rctx)
		cancel()
		if err != nil {
			return err
		}
		f.say(now(), "%s reaches the %s after %v", l.target.ID, l.From, down.Round(time.Millisecond))
		if _, more := wait(); !more {
			return nil
		}
		if l.Follow {
			if l.target, err = f.Leader(ctx, 0); err != nil || left() <= 0 {
				return err
			}
		}
		if _, err := l.sever(ctx); err != nil {
			return err
		}
		f.say(now(), "%s is cut off again", l.target.ID)
	}
}

// felt returns what the nodes that were cut off have missed.
func (l *flapping) felt(ctx context.Context, healed bool) string {
	l.mu.Lock()
	cuts, all := l.cuts, slices.Clone(l.nodes)
	l.mu.Unlock()
	found := l.fleet.missed(ctx, all, l.From, l.Follow)
	if found == "" || !healed {
		return found
	}
	return joinWords(fmt.Sprintf("cuts: %d", cuts), found)
}

// cut blocks connections at the proxies of nodes.
type cut struct {
	fleet *Fleet
	name  string
	drops []drop
}

// drop is one direction of a connection that nothing passes.
type drop struct {
	at     string // URL of the proxy's toxics
	stream string
}

// The directions of a proxy, seen from whoever connects to it.
const (
	upstream   = "upstream"
	downstream = "downstream"
)

// ours is how the names of our toxics begin.
const ours = "chaos-"

// newCut prepares a cut. Nodes are cut off what from says: off Peers means off every node
// that is not a target too. The ledger and members of the engine are cut off all nodes.
func (f *Fleet) newCut(targets []inspect.Target, from From, way Way) (*cut, error) {
	file, err := f.File()
	if err != nil {
		return nil, err
	}
	if way != Up && way != Down && way != Both {
		return nil, fmt.Errorf("%w: way %q is not both, up or down", inspect.ErrCannot, way)
	}
	c := &cut{fleet: f}
	for _, t := range targets {
		before := len(c.drops)
		if err := c.add(file, t, targets, from, way); err != nil {
			return nil, err
		}
		if len(c.drops) == before || file.Proxies.API == "" {
			return nil, fmt.Errorf("%w: there is no proxy between %s and the %s; was the fleet started with --direct, or are all nodes targets?", inspect.ErrCannot, t.ID, from)
		}
	}
	c.name = fmt.Sprintf("%s%d-%d-", ours, os.Getpid(), f.cuts.Add(1))
	return c, nil
}

// add adds what cuts one of the targets off.
func (c *cut) add(file labapi.FleetFile, t inspect.Target, targets []inspect.Target, from From, way Way) error {
	// drop adds a proxy, if there is one. The target sends in one of its directions.
	drop := func(proxy, sends, receives string) {
		if way != Down && proxy != "" {
			c.drops = append(c.drops, drop{inspect.Toxics(file, proxy), sends})
		}
		if way != Up && proxy != "" {
			c.drops = append(c.drops, drop{inspect.Toxics(file, proxy), receives})
		}
	}
	switch {
	case t.Kind == inspect.IsMember:
		for _, n := range file.Nodes {
			drop(n.Proxies.Engines[t.ID], downstream, upstream) // it sends answers
		}
	case t.Kind == inspect.IsLedger:
		for _, n := range file.Nodes {
			drop(n.Proxies.Ledger, downstream, upstream)
		}
	case from == Engine && file.Engine.PID == 0:
		return fmt.Errorf("%w: the nodes of a fleet on %s have no separate engine", inspect.ErrCannot, file.Backend)
	case from == Engine:
		for _, proxy := range t.Proxies.Engines {
			drop(proxy, upstream, downstream)
		}
	case from == Ledger:
		drop(t.Proxies.Ledger, upstream, downstream)
	case from == Peers:
		for _, n := range file.Nodes {
			if !slices.ContainsFunc(targets, func(t inspect.Target) bool { return t.ID == n.ID }) {
				drop(t.Proxies.Peers[n.ID], upstream, downstream)
				drop(n.Proxies.Peers[t.ID], downstream, upstream)
			}
		}
	default:
		return fmt.Errorf("%w: from %q is not engine, ledger or peers", inspect.ErrCannot, from)
	}
	return nil
}

// make drops everything silently, also on open connections. A call that has begun is not
// cancelled: it could take effect after the healing.
func (c *cut) make(ctx context.Context) error {
	for _, d := range c.drops {
		body := map[string]any{"name": c.name + d.stream, "type": "timeout", "stream": d.stream, "toxicity": 1, "attributes": map[string]any{"timeout": 0}}
		if err := c.fleet.Call(context.WithoutCancel(ctx), inspect.CallTime, http.MethodPost, d.at, nil, body, nil); err != nil {
			return fmt.Errorf("cut at the proxy: %w", err)
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// heal lets everything through again. Connections that were cut are closed.
func (c *cut) heal(ctx context.Context) (err error) {
	for _, d := range c.drops {
		err = errors.Join(err, c.fleet.remove(ctx, d.at+"/"+c.name+d.stream))
	}
	return err
}

// remove removes a toxic from a proxy, and retries while the proxy does not answer.
func (f *Fleet) remove(ctx context.Context, toxic string) (err error) {
	if inspect.Poll(ctx, time.Hour, inspect.PollEvery, func() bool {
		err = f.Call(ctx, inspect.CallTime, http.MethodDelete, toxic, nil, nil, nil)
		if a, ok := errors.AsType[*inspect.AnswerError](err); ok && a.Status == http.StatusNotFound {
			err = nil
		}
		return err == nil || f.Ended()
	}) && err == nil {
		return nil
	}
	return fmt.Errorf("%w; curl -X DELETE %s heals it", err, toxic)
}

// blocked names a proxy that lets nothing through although the server behind it answers. It
// tries the first only: all are cut alike.
func (c *cut) blocked(ctx context.Context) string {
	var proxy struct {
		Name     string `json:"name"`
		Listen   string `json:"listen"`
		Upstream string `json:"upstream"`
	}
	at := strings.TrimSuffix(c.drops[0].at, "/toxics")
	if c.fleet.Call(ctx, inspect.CallTime, http.MethodGet, at, nil, nil, &proxy) != nil || !inspect.Reacts(ctx, proxy.Upstream) || inspect.Reacts(ctx, proxy.Listen) || ctx.Err() != nil {
		return ""
	}
	return "nothing comes through " + proxy.Name
}
