package service

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/app/service/access"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

const (
	// censusKept is how old a count of the candidates may be.
	censusKept = 2 * time.Second
	// censusShare bounds what counting costs: at most one part in so many of the time.
	censusShare = 20
)

// census knows how many stand for each group, for the quota. An engine lists all of its
// sessions or none, so all are counted at once, once in a while; those that are opened here
// meanwhile are added.
type census struct {
	s *Service

	mu    sync.Mutex
	until clock.Instant  // how long what is known will do
	names map[string]int // sessions by the names, and by the patterns, of their scope
	nodes map[string][]lease.Session
}

func newCensus(s *Service) *census {
	return &census{s: s, names: make(map[string]int), nodes: make(map[string][]lease.Session)}
}

// room returns a problem (429) if there are as many candidates for one of the groups in
// scope as there may be. An opening that is retried needs no more room.
func (c *census) room(ctx context.Context, node string, o lease.OpenOptions) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.s.clock.Now(); now >= c.until {
		fresh := newCensus(c.s)
		err := c.s.sessions.each(ctx, lease.Scope{"*"}, func(l lease.Session) bool {
			fresh.add(l, 1)
			return true
		})
		if err != nil {
			return err
		}
		c.names, c.nodes = fresh.names, fresh.nodes
		took := c.s.clock.Now().Sub(now)
		c.until = now.Add(max(censusKept, censusShare*took))
	}
	digest := lease.InstanceDigest(o.Instance)
	if slices.ContainsFunc(c.nodes[node], func(l lease.Session) bool { return l.Instance == digest && slices.Equal(l.Scope, o.Scope) }) {
		return nil
	}
	for _, p := range o.Scope {
		if err := c.s.gate.Room(access.CandidateIn, c.stand(p), 1); err != nil {
			return err
		}
	}
	return nil
}

// stand counts the sessions that stand for a group, or for all that begin so.
func (c *census) stand(pattern string) int {
	n := c.names[pattern]
	for end := len(strings.TrimSuffix(pattern, "*")); end >= 0; end-- {
		if broader := pattern[:end] + "*"; broader != pattern {
			n += c.names[broader]
		}
	}
	return n
}

// add adds a session, or takes one away.
func (c *census) add(l lease.Session, n int) {
	for _, p := range l.Scope {
		c.names[p] += n
	}
	node := l.Candidate.ID
	c.nodes[node] = slices.DeleteFunc(c.nodes[node], func(o lease.Session) bool { return o.ID == l.ID })
	if n > 0 {
		c.nodes[node] = append(c.nodes[node], l)
	} else if len(c.nodes[node]) == 0 {
		delete(c.nodes, node)
	}
}

func (c *census) counts(l lease.Session) bool {
	return slices.ContainsFunc(c.nodes[l.Candidate.ID], func(o lease.Session) bool { return o.ID == l.ID })
}

// opened adds a session, and reports those of other processes with the same node id.
func (c *census) opened(l lease.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts(l) {
		return
	}
	for _, other := range c.nodes[l.Candidate.ID] {
		if c.s.duplicates.met(other, l) {
			break
		}
	}
	c.add(l, 1)
}

// closed takes a session away.
func (c *census) closed(l lease.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts(l) {
		c.add(l, -1)
	}
}
