package service

import (
	"context"
	"fmt"
	"net/http"
	"time"

	rules "github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
)

// policy is what is laid down for a group.
type policy = operator.Policy

// hand is what operators do, on this instance's engine.
func (s *Service) hand() operator.Store {
	return operator.Store{Store: s.created, Call: s.cfg.CallTimeout}
}

func (s *Service) checkPolicy(g GroupPolicy) error {
	if err := g.Check(s.store.Caps(), s.cfg.MaxTTL); err != nil {
		return bad("bad_policy", "%s", err)
	}
	return nil
}

// laid reads attributes as they are now.
func (s *Service) laid(ctx context.Context, names ...string) ([]lease.Attributes, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	if r, ok := s.store.(interface {
		Rules(context.Context, ...string) (uint64, []lease.Attributes, error)
	}); ok {
		_, all, err := r.Rules(ctx, names...)
		return all, err
	}
	all := make([]lease.Attributes, len(names))
	for i, name := range names {
		var err error
		if all[i], err = s.store.Attributes(ctx, name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// policiesOf reads the policies of groups, and what is laid down for a node.
func (s *Service) policiesOf(ctx context.Context, node string, groups ...string) ([]policy, lease.Attributes, error) {
	names := []string{operator.Node(node)}
	for _, g := range groups {
		names = append(names, operator.Group(g))
	}
	all, err := s.laid(ctx, names...)
	if err != nil {
		return nil, lease.Attributes{}, err
	}
	policies := make([]policy, len(groups))
	for i := range groups {
		policies[i] = operator.ParsePolicy(all[1+i])
	}
	return policies, all[0], nil
}

// policy reads the policy of a group.
func (s *Service) policy(ctx context.Context, group string) (policy, error) {
	all, err := s.laid(ctx, operator.Group(group))
	if err != nil {
		return policy{}, err
	}
	return operator.ParsePolicy(all[0]), nil
}

// admits returns the problem that keeps a session, or a node that has none yet, from beginning
// to lead a group. It makes for an early answer: the store enforces the same.
func (s *Service) admits(pol policy, node lease.Attributes, group string, l lease.Session) *httpapi.Problem {
	bar := operator.Check(rules.Claim{
		Group: group, Node: l.Candidate.ID, TTL: l.TTL, Now: time.Now(), Declared: s.cfg.Declared, MaxTTL: s.cfg.MaxTTL,
	}, pol.Attributes, node)
	if bar == nil {
		return nil
	}
	return barred(bar)
}

// barred says a bar as a problem.
func barred(bar *lease.BarError) *httpapi.Problem {
	p := &httpapi.Problem{Status: http.StatusConflict, Code: bar.Code, Detail: bar.Detail}
	switch bar.Code {
	case rules.NoGroup:
		p.Status, p.Detail = http.StatusNotFound, bar.Detail+created(bar.Group)
	case rules.NotAMember:
		p.Status = http.StatusForbidden
	case rules.TTLBounds:
		return ttlProblem(bar.TTL.Milliseconds(), bar.MinTTL, bar.MaxTTL)
	}
	if bar.Left > 0 {
		p.Retryable, p.RetryAfter = true, bar.Left
		p.More = map[string]any{"group": bar.Group, "retry_after_ms": max(bar.Left.Milliseconds(), 1)}
	}
	return p
}

func unknownGroup(group, why string) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusNotFound, Code: "unknown_group",
		Detail: fmt.Sprintf("there is no group %q: %s", clip(group), why) + created(group),
	}
}

func created(group string) string {
	return "; an operator creates it with PUT /v1/groups/" + clip(group)
}

func clip(s string) string {
	const most = 100
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
