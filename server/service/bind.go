package service

import (
	"context"
	"net/http"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
)

// binding holds callers of the store's routes to the quotas and bounds that bind all others.
// The store holds them to what operators lay down.
type binding struct{ s *Service }

// Opens implements storeapi.Policy.
func (b binding) Opens(ctx context.Context, candidate string, ttl time.Duration, o lease.OpenOptions) error {
	s := b.s
	if most := s.cfg.MaxTTL; ttl > most {
		return ttlProblem(ttl.Milliseconds(), s.store.Caps().MinTTL, most)
	}
	return s.sessions.room(candidate, o)
}

// Opened implements storeapi.Policy.
func (b binding) Opened(l lease.Session) { b.s.sessions.opened(l, b.s.clock.Now(), 0, 0) }

// Begins implements storeapi.Policy.
func (b binding) Begins(ctx context.Context, l lease.Session, groups ...string) error {
	return b.s.room(auth.From(ctx), l.Candidate.ID, len(groups))
}

// allowed checks a right to groups for the store's routes, and that the credentials with
// which the call began still hold, for a stream outlives many.
func (s *Service) allowed(r *http.Request, verb auth.Verb, scope lease.Scope) error {
	id := auth.From(r.Context())
	if err := s.gate.Recheck(id, verb, auth.SomeGroup); err != nil {
		return err
	}
	for _, p := range scope {
		if !s.may(id, verb, p) {
			return denied(verb, p)
		}
	}
	return nil
}
