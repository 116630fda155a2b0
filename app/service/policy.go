package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/steer"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// policy is what is laid down for a group.
type policy struct {
	steer.Policy
	readAt           clock.Instant
	declaredRequired bool
}

// hand is what operators do, on this instance's engine.
func (s *Service) hand() steer.Store {
	return steer.Store{Store: s.created, Call: s.cfg.CallTimeout}
}

func (s *Service) checkPolicy(g GroupPolicy) error {
	if err := g.Check(s.store.Caps(), s.cfg.MaxTTL); err != nil {
		return bad("bad_policy", "%s", err)
	}
	return nil
}

// policies reads them, and remembers them for a moment.
type policies struct {
	s    *Service
	mu   sync.Mutex
	kept map[string]policy
}

func newPolicies(s *Service) *policies { return &policies{s: s, kept: make(map[string]policy)} }

// get reads the policy of a group.
func (p *policies) get(ctx context.Context, group string) (policy, error) {
	ctx, cancel := p.s.call(ctx)
	defer cancel()
	asked := p.s.clock.Now()
	a, err := p.s.store.Attributes(ctx, steer.Group(group))
	if err != nil {
		return policy{}, err
	}
	pol := policy{Policy: steer.ParsePolicy(a), readAt: asked, declaredRequired: p.s.cfg.Declared}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.kept) >= sessionsKept {
		clear(p.kept)
	}
	p.kept[group] = pol
	return pol, nil
}

// forget drops what is remembered of a group whose attributes are being written.
func (p *policies) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.kept, strings.TrimPrefix(name, "group/"))
}

// many reads the policies of many groups; those read a moment ago are taken as they were.
func (p *policies) many(ctx context.Context, groups []string) (map[string]policy, error) {
	out := make(map[string]policy, len(groups))
	now := p.s.clock.Now()
	var missing []string
	p.mu.Lock()
	for _, g := range groups {
		if pol, ok := p.kept[g]; ok && now.Sub(pol.readAt) < cachedPolicy {
			out[g] = pol
		} else {
			missing = append(missing, g)
		}
	}
	p.mu.Unlock()
	read, err := p.fresh(ctx, missing)
	maps.Copy(out, read)
	return out, err
}

// fresh reads the policies of many groups, for somebody who is about to begin to lead them.
func (p *policies) fresh(ctx context.Context, groups []string) (map[string]policy, error) {
	out := make(map[string]policy, len(groups))
	var mu sync.Mutex
	var failed error
	var all sync.WaitGroup
	for part := range slices.Chunk(groups, max(1, (len(groups)+policyReads-1)/policyReads)) {
		all.Go(func() {
			for _, g := range part {
				pol, err := p.get(ctx, g)
				mu.Lock()
				if out[g] = pol; err != nil {
					failed = err
				}
				stop := failed != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	all.Wait()
	return out, failed
}

// admits returns the problem that keeps a node from beginning to lead the group.
func (p policy) admits(group, node string, now time.Time) *httpapi.Problem {
	switch {
	case p.Deleted:
		return unknownGroup(group, "it was deleted")
	case p.declaredRequired && !p.Declared:
		return unknownGroup(group, "this deployment wants groups to be created first")
	}
	var bar *steer.BarError
	if errors.As(p.Bar(group, node, now), &bar) {
		return barred(group, bar)
	}
	return nil
}

// barred says a bar as a problem.
func barred(group string, bar *steer.BarError) *httpapi.Problem {
	p := &httpapi.Problem{Status: http.StatusConflict, Code: bar.Code, Detail: bar.Detail}
	if bar.Code == steer.NotAMember {
		p.Status = http.StatusForbidden
	}
	if bar.Left > 0 {
		p.Retryable, p.RetryAfter = true, bar.Left
		p.More = map[string]any{"group": group, "retry_after_ms": max(bar.Left.Milliseconds(), 1)}
	}
	return p
}

func unknownGroup(group, why string) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusNotFound, Code: "unknown_group",
		Detail: fmt.Sprintf("there is no group %q: %s; an operator creates it with PUT /v1/groups/%s", clip(group), why, clip(group)),
	}
}

func clip(s string) string {
	const most = 100
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// node reads what is laid down for a node.
func (s *Service) node(ctx context.Context, node string) (lease.Attributes, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	return s.store.Attributes(ctx, steer.Node(node))
}

func cordoned(a lease.Attributes, node string) *httpapi.Problem {
	if why, is := steer.Cordoned(a); is {
		return barred("", steer.CordonError(node, why))
	}
	return nil
}

// change writes attributes by compare-and-set until it gets through.
func (s *Service) change(ctx context.Context, name string, f func(map[string]string) error) error {
	defer s.policies.forget(name)
	_, err := s.hand().Change(ctx, name, 0, f)
	return err
}

func (s *Service) attributes(ctx context.Context, name string) (lease.Attributes, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	return s.store.Attributes(ctx, name)
}
