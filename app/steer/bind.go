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
// ErrBusy, and later it may succeed, or an ErrInvalid where the TTL of the session is out of
// the bounds of the group. It knows the sessions that were opened through it. Groups that are
// declared through it are listed.
type Bound struct {
	*Register

	mu     sync.Mutex
	opened map[lease.SessionID]lease.Session
}

var _ lease.Store = (*Bound)(nil)

// Bind returns s as a Bound.
func Bind(s Store) *Bound {
	return &Bound{Register: NewRegister(s), opened: make(map[lease.SessionID]lease.Session)}
}

// maxBound bounds what a Bound remembers; a process has few sessions.
const maxBound = 1 << 10

// Open implements lease.Store.
func (b *Bound) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	session, err := b.Store.Open(ctx, c, ttl, o)
	if err == nil {
		b.mu.Lock()
		if len(b.opened) >= maxBound {
			clear(b.opened)
		}
		b.opened[session.ID] = lease.Session{Candidate: tenure.Candidate{ID: c.ID}, TTL: session.TTL}
		b.mu.Unlock()
	}
	return session, err
}

// Acquire implements lease.Store.
func (b *Bound) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	b.mu.Lock()
	session, known := b.opened[id]
	b.mu.Unlock()
	for _, r := range seen {
		if !known {
			break
		}
		if err := b.laid.bar(ctx, r.Group, session.Candidate.ID, session.TTL); err != nil {
			return nil, err
		}
	}
	return b.Store.Acquire(ctx, id, seen...)
}

// Lasts reports whether the TTL that a session was granted is within bounds.
func Lasts(ttl, least, most time.Duration) bool {
	return ttl >= least && (most == 0 || ttl < most+time.Second) // engines may count in seconds
}
