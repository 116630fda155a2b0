package service

import (
	"context"
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
}

func newCensus(s *Service) *census { return &census{s: s, names: make(map[string]int)} }

// room returns a problem (429) if there are as many candidates for one of the groups in
// scope as there may be.
func (c *census) room(ctx context.Context, scope lease.Scope) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.s.clock.Now(); now >= c.until {
		names := make(map[string]int)
		err := c.s.sessions.each(ctx, lease.Scope{"*"}, func(l lease.Session) bool {
			for _, p := range l.Scope {
				names[p]++
			}
			return true
		})
		if err != nil {
			return err
		}
		c.names = names
		took := c.s.clock.Now().Sub(now)
		c.until = now.Add(max(censusKept, censusShare*took))
	}
	for _, p := range scope {
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

// opened adds a session.
func (c *census) opened(l lease.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range l.Scope {
		c.names[p]++
	}
}
