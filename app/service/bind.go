package service

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/service/access"
	"github.com/tenurehq/tenure/app/steer"
	"github.com/tenurehq/tenure/lease"
)

// fits returns the problem that keeps a session from beginning to lead a group: whether
// the group is there and has the node among its members, a cool-down, a cordon, and the
// TTL that the session has.
func (s *Service) fits(pol policy, node lease.Attributes, group string, l lease.Session) *httpapi.Problem {
	if p := pol.admits(group, l.Candidate.ID, time.Now()); p != nil {
		return p
	}
	if p := cordoned(node, l.Candidate.ID); p != nil {
		return p
	}
	return s.lasts(pol, l.TTL)
}

// lasts compares the TTL of an open session with the bounds of a group.
func (s *Service) lasts(pol policy, ttl time.Duration) *httpapi.Problem {
	least, most := s.bounds(pol)
	if !steer.Lasts(ttl, least, most) {
		return ttlProblem(ttl.Milliseconds(), least, most)
	}
	return nil
}

// terms reads what is laid down for a group and for a node.
func (s *Service) terms(ctx context.Context, group, node string) (policy, lease.Attributes, error) {
	var pol policy
	var polErr error
	var both sync.WaitGroup
	both.Go(func() { pol, polErr = s.policies.get(ctx, group) })
	attributes, err := s.node(ctx, node)
	both.Wait()
	return pol, attributes, errors.Join(polErr, err)
}

// binding holds callers of the store's routes to what binds all others.
type binding struct{ s *Service }

// Opens implements storeapi.Policy.
func (b binding) Opens(ctx context.Context, candidate string, ttl time.Duration, o lease.OpenOptions) error {
	s := b.s
	if most := s.cfg.MaxTTL; ttl > most {
		return ttlProblem(ttl.Milliseconds(), s.store.Caps().MinTTL, most)
	}
	attributes, err := s.node(ctx, candidate)
	if err != nil {
		return err
	}
	if p := cordoned(attributes, candidate); p != nil {
		return p
	}
	return s.census.room(ctx, candidate, o)
}

// Opened implements storeapi.Policy.
func (b binding) Opened(l lease.Session) { b.s.census.opened(l) }

// Begins implements storeapi.Policy.
func (b binding) Begins(ctx context.Context, l lease.Session, groups ...string) error {
	s := b.s
	if err := s.room(access.From(ctx), l.Candidate.ID, len(groups)); err != nil {
		return err
	}
	if len(groups) == 1 {
		pol, node, err := s.terms(ctx, groups[0], l.Candidate.ID)
		if err != nil {
			return err
		}
		if p := s.fits(pol, node, groups[0], l); p != nil {
			return p
		}
		return nil
	}
	node, err := s.node(ctx, l.Candidate.ID)
	if err != nil {
		return err
	}
	policies, err := s.policies.fresh(ctx, groups)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if p := s.fits(policies[g], node, g, l); p != nil {
			return p
		}
	}
	return nil
}

// allowed checks a right to groups for the store's routes, and that the credentials with
// which the call began still hold, for a stream outlives many.
func (s *Service) allowed(r *http.Request, verb access.Verb, scope lease.Scope) error {
	id := access.From(r.Context())
	if err := s.gate.Recheck(id, verb, access.SomeGroup); err != nil {
		return err
	}
	for _, p := range scope {
		if !s.may(id, verb, p) {
			return denied(verb, p)
		}
	}
	return nil
}
