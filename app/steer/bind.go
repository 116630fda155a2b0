package steer

import (
	"context"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

// Bound is an engine on which whoever begins to lead is held to policies, cool-downs and
// cordons, as the service holds its callers: Acquire answers a BarError, which is an
// ErrBusy, and later it may succeed. It knows the sessions that were opened through it.
type Bound struct {
	lease.Store
	laid Store

	mu    sync.Mutex
	nodes map[lease.SessionID]string
}

var _ lease.Store = (*Bound)(nil)

// Bind returns s as a Bound.
func Bind(s Store) *Bound {
	return &Bound{Store: s.Store, laid: s, nodes: make(map[lease.SessionID]string)}
}

// maxBound bounds what a Bound remembers; a process has few sessions.
const maxBound = 1 << 10

// Open implements lease.Store.
func (b *Bound) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, scope lease.Scope) (lease.Session, error) {
	session, err := b.Store.Open(ctx, c, ttl, scope)
	if err == nil {
		b.mu.Lock()
		if len(b.nodes) >= maxBound {
			clear(b.nodes)
		}
		b.nodes[session.ID] = c.ID
		b.mu.Unlock()
	}
	return session, err
}

// Acquire implements lease.Store.
func (b *Bound) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	b.mu.Lock()
	node, known := b.nodes[id]
	b.mu.Unlock()
	for _, r := range seen {
		if !known {
			break
		}
		if err := b.laid.Bar(ctx, r.Group, node); err != nil {
			return nil, err
		}
	}
	return b.Store.Acquire(ctx, id, seen...)
}
