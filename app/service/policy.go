package service

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// Policies, cool-downs and cordons lie in the store's attributes, as text that people can
// read: of the group under "group/NAME", of the node under "node/NAME".
const (
	keyDeclared = "declared"
	keyDeleted  = "deleted"
	keyMinTTL   = "min_ttl_ms"
	keyMaxTTL   = "max_ttl_ms"
	keyBackoff  = "backoff_ms"
	keyMembers  = "members"
	keyFenced   = "fenced"
	keyCool     = "cool/" // and a node: until when, in ms since 1970
	keyCordon   = "cordon"
	keyWish     = "ttl/" // and a group: the TTL that the node wished for, in ms

	yes, no = "yes", "no"
)

// policy is what is laid down for a group.
type policy struct {
	attributes       lease.Attributes
	declared         bool
	deleted          bool
	minTTL, maxTTL   time.Duration // 0: the deployment's
	backoff          time.Duration
	members          []string // none: everybody
	fenced           bool
	readAt           clock.Instant
	declaredRequired bool
}

func millis(v string) time.Duration {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || n > int64(24*time.Hour/time.Millisecond) {
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

func parsePolicy(a lease.Attributes) policy {
	p := policy{
		attributes: a,
		declared:   a.Values[keyDeclared] == yes,
		deleted:    a.Values[keyDeleted] == yes,
		minTTL:     millis(a.Values[keyMinTTL]),
		maxTTL:     millis(a.Values[keyMaxTTL]),
		backoff:    millis(a.Values[keyBackoff]),
		fenced:     a.Values[keyFenced] != no,
	}
	if m := a.Values[keyMembers]; m != "" {
		p.members = strings.Split(m, ",")
	}
	return p
}

// wire is the policy as operators see it.
func (p policy) wire() *GroupPolicy {
	return &GroupPolicy{
		MinTTLMS: p.minTTL.Milliseconds(), MaxTTLMS: p.maxTTL.Milliseconds(), BackoffMS: p.backoff.Milliseconds(),
		Members: p.members, Fenced: &p.fenced,
	}
}

// values writes a policy over the attributes; cool-downs stay.
func (g GroupPolicy) values(old map[string]string) map[string]string {
	out := make(map[string]string)
	for k, v := range old {
		if strings.HasPrefix(k, keyCool) {
			out[k] = v
		}
	}
	out[keyDeclared] = yes
	number := func(key string, ms int64) {
		if ms > 0 {
			out[key] = strconv.FormatInt(ms, 10)
		}
	}
	number(keyMinTTL, g.MinTTLMS)
	number(keyMaxTTL, g.MaxTTLMS)
	number(keyBackoff, g.BackoffMS)
	out[keyMembers] = strings.Join(g.Members, ",")
	if g.Fenced != nil && !*g.Fenced {
		out[keyFenced] = no
	}
	return out
}

func (s *Service) checkPolicy(g GroupPolicy) error {
	most := s.cfg.MaxTTL.Milliseconds()
	switch {
	case g.MinTTLMS < 0 || g.MinTTLMS > most || g.MaxTTLMS < 0 || g.MaxTTLMS > most:
		return bad("bad_policy", "min_ttl_ms and max_ttl_ms must be from 0 to %d, the bound of this deployment", most)
	case g.MaxTTLMS > 0 && g.MinTTLMS > g.MaxTTLMS:
		return bad("bad_policy", "min_ttl_ms = %d must not be above max_ttl_ms = %d", g.MinTTLMS, g.MaxTTLMS)
	case g.BackoffMS < 0 || g.BackoffMS > time.Hour.Milliseconds():
		return bad("bad_policy", "backoff_ms must be from 0 to an hour")
	}
	if slow := s.store.Limits().MinTTL.Milliseconds(); g.MaxTTLMS > 0 && g.MaxTTLMS < slow {
		return bad("bad_policy", "max_ttl_ms = %d: this engine grants no less than %d", g.MaxTTLMS, slow)
	}
	for i, m := range g.Members {
		if !lease.ValidName(m) || slices.Contains(g.Members[:i], m) {
			return bad("bad_policy", "members: %q is no name of a node, or is there twice", clip(m))
		}
	}
	return nil
}

// cooling returns until when a node is not to lead the group again. The wall clock
// decides, here: a cool-down is a wish for calm, nothing depends on its length.
func (p policy) cooling(node string) time.Time {
	ms, err := strconv.ParseInt(p.attributes.Values[keyCool+node], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
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
	a, err := p.s.store.Attributes(ctx, "group/"+group)
	if err != nil {
		return policy{}, err
	}
	pol := parsePolicy(a)
	pol.readAt, pol.declaredRequired = asked, p.s.cfg.Declared
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.kept) >= sessionsKept {
		clear(p.kept)
	}
	p.kept[group] = pol
	return pol, nil
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
	var mu sync.Mutex
	var failed error
	var all sync.WaitGroup
	for part := range slices.Chunk(missing, max(1, (len(missing)+policyReads-1)/policyReads)) {
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
	case p.deleted:
		return unknownGroup(group, "it was deleted")
	case p.declaredRequired && !p.declared:
		return unknownGroup(group, "this deployment wants groups to be created first")
	case len(p.members) > 0 && !slices.Contains(p.members, node):
		return &httpapi.Problem{
			Status: http.StatusForbidden, Code: "not_a_member",
			Detail: fmt.Sprintf("node %q is not among the members of group %q: an operator can add it to the policy", node, group),
		}
	}
	if until := p.cooling(node); now.Before(until) {
		left := until.Sub(now)
		return &httpapi.Problem{
			Status: http.StatusConflict, Code: "cooling_down", Retryable: true, RetryAfter: left,
			Detail: fmt.Sprintf("node %q was asked to step down and is not to lead group %q for another %v", node, group, left.Round(time.Millisecond)),
			More:   map[string]any{"group": group, "retry_after_ms": max(left.Milliseconds(), 1)},
		}
	}
	return nil
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
	return s.store.Attributes(ctx, "node/"+node)
}

func cordoned(a lease.Attributes, node string) *httpapi.Problem {
	why, ok := a.Values[keyCordon]
	if !ok {
		return nil
	}
	return &httpapi.Problem{
		Status: http.StatusConflict, Code: "cordoned",
		Detail: fmt.Sprintf("node %q is cordoned (%s): it may not begin to lead until an operator lifts that", node, clip(why)),
	}
}

// change writes attributes by compare-and-set until it gets through.
func (s *Service) change(ctx context.Context, name string, f func(map[string]string) error) (lease.Attributes, error) {
	for try := 0; ; try++ {
		a, err := s.attributes(ctx, name)
		if err != nil {
			return a, err
		}
		values := make(map[string]string, len(a.Values)+1)
		for k, v := range a.Values {
			values[k] = v
		}
		if err := f(values); err != nil {
			return a, err
		}
		a.Values = values
		cctx, cancel := s.call(ctx)
		written, err := s.store.SetAttributes(cctx, a)
		cancel()
		if err == nil || try == 4 || !isConflict(err) {
			return written, err
		}
	}
}

func (s *Service) attributes(ctx context.Context, name string) (lease.Attributes, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	return s.store.Attributes(ctx, name)
}
