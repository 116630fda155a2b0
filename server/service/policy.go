package service

import (
	"context"
	"time"

	rules "github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

// policy has the rules of a group.
type policy = operator.Policy

// operations are what operators do, on the engine of this instance.
func (s *Service) operations() operator.Store {
	return operator.Store{Store: s.store, Call: s.cfg.CallTimeout}
}

// attributes reads attributes as they are now.
func (s *Service) attributes(ctx context.Context, names ...string) (all []store.Attributes, err error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	if r, ok := s.store.(interface {
		Rules(context.Context, ...string) (uint64, []store.Attributes, error)
	}); ok {
		_, all, err = r.Rules(ctx, names...)
		return all, err
	}
	for _, name := range names {
		a, err := s.store.Attributes(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// policiesOf reads the policies of groups and the attributes of a node.
func (s *Service) policiesOf(ctx context.Context, node string, groups ...string) ([]policy, store.Attributes, error) {
	names := []string{operator.Node(node)}
	for _, g := range groups {
		names = append(names, operator.Group(g))
	}
	all, err := s.attributes(ctx, names...)
	if err != nil {
		return nil, store.Attributes{}, err
	}
	policies := make([]policy, len(groups))
	for i := range groups {
		policies[i] = operator.ParsePolicy(all[1+i])
	}
	return policies, all[0], nil
}

// policy reads the policy of a group.
func (s *Service) policy(ctx context.Context, group string) (policy, error) {
	all, err := s.attributes(ctx, operator.Group(group))
	if err != nil {
		return policy{}, err
	}
	return operator.ParsePolicy(all[0]), nil
}

// admits returns the problem that keeps a session, or a node without one, from beginning to
// lead a group. It gives an early answer: the store enforces the same rules.
func (s *Service) admits(pol policy, node store.Attributes, group string, l store.Session) *httpapi.Problem {
	bar := operator.Check(rules.Claim{
		Group: group, Node: l.Candidate.ID, TTL: l.TTL, Now: time.Now(), Declared: s.cfg.Declared, MaxTTL: s.cfg.MaxTTL,
	}, pol.Attributes, node)
	if bar == nil {
		return nil
	}
	return barred(bar)
}
