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

// policyOf reads the policy of a group and the attributes of a node.
func (s *Service) policyOf(ctx context.Context, group, node string) (policy, store.Attributes, error) {
	all, err := s.attributes(ctx, operator.Group(group), operator.Node(node))
	if err != nil {
		return policy{}, store.Attributes{}, err
	}
	return operator.ParsePolicy(all[0]), all[1], nil
}

// policies yields the policies of all groups.
func (s *Service) policies(yield func(policy, error) bool) {
	ctx, cancel := s.call(s.ctx)
	defer cancel()
	s.operations().Policies(ctx, "", "")(yield)
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
