// Package guard enforces the rules that operators set: policies of groups, and cordons and
// drains of nodes. lease.New, the service and the tenure command use it.
package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/store"
)

// Config sets what a guard does not read from the store. The zero value is complete.
type Config struct {
	// Declared: only groups that an operator has declared can be led.
	Declared bool
	// MaxTTL is the longest TTL of a session that may begin to lead. 0: any.
	MaxTTL time.Duration

	// Plant has the bugs of the planted build.
	Plant plant.Set
}

func barError(b *policy.Bar) *store.BarError {
	return &store.BarError{Code: b.Code, Group: b.Group, Detail: b.Detail, Left: b.Left, TTL: b.TTL, MinTTL: b.MinTTL, MaxTTL: b.MaxTTL}
}

// Guard returns the store with the rules enforced. Open, Acquire and a Release to a successor
// return a store.BarError if a policy, a cool-down or a cordon forbids them; the error of a Release
// is a store.ErrSuccessor as well. Once SetAttributes has returned for a rule, nothing is granted
// against it. Existing grants are not affected.
//
// A store that is not a store.Ruled is returned unchanged. These are store/remote, whose service
// enforces the rules, and a store that Guard has returned.
//
// The guard caches the rules, and the store compares their version when it grants. So rules cost
// no reads while they do not change.
func Guard(s store.Store, cfg Config) store.Store {
	r, ok := s.(store.Ruled)
	if !ok {
		return s
	}
	return &guard{Store: s, ruled: r, cfg: cfg, cached: map[string]store.Attributes{}}
}

type guard struct {
	store.Store // without Under: a guard is not a store.Ruled
	ruled       store.Ruled
	cfg         Config

	mu      sync.Mutex
	version uint64                      // of the rules; 0: there are none
	cached  map[string]store.Attributes // rules of that version
}

const (
	// maxCached bounds the rules that a guard caches.
	maxCached = 1 << 16
	// ruleTries bounds the tries of a grant while the rules keep changing.
	ruleTries = 3
)

// Open implements store.Store. A cordoned node gets no session, so no leader chooses it as its successor.
func (g *guard) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	return under(ctx, g, store.Session{Candidate: c}, nil, func(s store.Store) (store.Session, error) { return s.Open(ctx, c, ttl, o) })
}

// Acquire implements store.Store.
func (g *guard) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	to, err := g.ruled.Describe(ctx, id)
	if err != nil {
		return nil, err
	}
	return under(ctx, g, to, seen, func(s store.Store) ([]store.Record, error) { return s.Acquire(ctx, id, seen...) })
}

// Release implements store.Store.
func (g *guard) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	release := func(s store.Store) ([]store.Record, error) { return s.Release(ctx, id, to, why, held...) }
	if to == "" {
		return release(g.Store)
	}
	next, err := g.ruled.Describe(ctx, to)
	switch {
	case errors.Is(err, store.ErrSessionDead):
		return release(g.Store) // it returns the right error
	case err != nil:
		return nil, err
	}
	released, err := under(ctx, g, next, held, release)
	if bar := (*store.BarError)(nil); errors.As(err, &bar) {
		err = fmt.Errorf("%w: %w", store.ErrSuccessor, err)
	}
	return released, err
}

// under makes a call for a session if the rules allow it now and when the call takes effect.
func under[T any](ctx context.Context, g *guard, to store.Session, records []store.Record, do func(store.Store) (T, error)) (T, error) {
	var none T
	for try := range ruleTries {
		stale := g.cfg.Plant.Has(plant.GuardStale)
		version, err := g.allow(ctx, to, records, try > 0 || stale)
		if err != nil {
			return none, err
		}
		s := g.ruled.Under(version)
		if stale {
			s = g.ruled
		}
		if got, err := do(s); !errors.Is(err, store.ErrRules) {
			return got, err
		}
	}
	return none, store.ErrRules
}

// allow returns the version of the rules that allow the call, or a store.BarError. A cached rule
// may have been removed, so allow reads the rules again before it refuses.
func (g *guard) allow(ctx context.Context, to store.Session, records []store.Record, fresh bool) (uint64, error) {
	names := []string{policy.Node(to.Candidate.ID)}
	for _, r := range records {
		names = append(names, policy.Group(r.Group))
	}
	if !fresh {
		if version, rules, ok := g.recall(names); ok && g.check(to, records, rules) == nil {
			return version, nil
		}
	}
	version, rules, err := g.ruled.Rules(ctx, names...)
	if err != nil {
		return 0, err
	}
	g.mu.Lock()
	if g.version != version || len(g.cached) >= maxCached {
		g.version, g.cached = version, map[string]store.Attributes{}
	}
	for _, a := range rules {
		g.cached[a.Name] = a
	}
	g.mu.Unlock()
	return version, g.check(to, records, rules)
}

// recall returns rules from the cache, if it has them all. At version 0 there are no rules.
func (g *guard) recall(names []string) (version uint64, rules []store.Attributes, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range names {
		a, ok := g.cached[name]
		if !ok && g.version != 0 {
			return 0, nil, false
		}
		rules = append(rules, a)
	}
	return g.version, rules, true
}

// check compares a grant with the rules of its node and groups. Without groups it checks only the
// node.
func (g *guard) check(to store.Session, records []store.Record, rules []store.Attributes) error {
	claim := policy.Claim{Node: to.Candidate.ID, TTL: to.TTL, Now: time.Now(), Declared: g.cfg.Declared, MaxTTL: g.cfg.MaxTTL}
	node := rules[0].Values
	var bars []*store.BarError
	if b := claim.Cordon(node); b != nil && len(records) == 0 {
		bars = append(bars, barError(b))
	}
	for i, r := range records {
		claim.Group = r.Group
		if b := claim.Check(rules[1+i].Values, node); b != nil {
			bars = append(bars, barError(b))
		}
	}
	if len(bars) == 0 {
		return nil
	}
	bars[0].Others = bars[1:]
	return bars[0]
}

// Retire implements store.Retirer.
func (g *guard) Retire(ctx context.Context, seen store.Record) error {
	r, ok := g.ruled.(store.Retirer)
	if !ok {
		return fmt.Errorf("guard: this store cannot remove records: %w", store.ErrInvalid)
	}
	return r.Retire(ctx, seen)
}

// Rules reads rules from the store, without the cache.
func (g *guard) Rules(ctx context.Context, names ...string) (uint64, []store.Attributes, error) {
	return g.ruled.Rules(ctx, names...)
}
