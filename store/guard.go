package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/internal/policy"
)

// Ruled is a Store that can make its grants depend on the rules: what operators lay down in
// the attributes of "group/..." and "node/...". A type that wraps a Ruled must pass these
// methods on, or nothing enforces the rules.
type Ruled interface {
	Store
	// Rules reads the version of the rules and then the attributes of the names. Each
	// acknowledged SetAttributes of a rule has changed the version. 0: there are no rules.
	Rules(ctx context.Context, names ...string) (version uint64, laid []Attributes, err error)
	// Under returns the same store, but its Open, its Acquire, and its Release to a
	// successor succeed only while the rules have that version: ErrRules otherwise.
	Under(version uint64) Store
	// Describe returns a session as it was opened, from memory if the store has seen it.
	// The session may have ended since. ErrSessionDead: it has.
	Describe(ctx context.Context, id SessionID) (Session, error)
}

// GuardConfig sets what a guard does not read from the store. The zero value is complete.
type GuardConfig struct {
	// Declared: only groups that an operator has declared can be led.
	Declared bool
	// MaxTTL is the longest TTL of a session that may begin to lead. 0: any.
	MaxTTL time.Duration

	planted plant.Set // see Planted, of the planted build
}

// BarError: a rule keeps a node from leading. It is an ErrBusy, because it may be lifted, so
// a campaign goes on. A TTL out of the bounds of a group is an ErrInvalid, and ends it.
type BarError struct {
	// Code is "cordoned", "not_a_member", "cooling_down", "unknown_group" or
	// "ttl_out_of_bounds".
	Code   string
	Group  string // "": every group
	Detail string
	Left   time.Duration // until it ends by itself; 0: it does not
	// TTL is out of these bounds, with "ttl_out_of_bounds". A bound of 0 is none.
	TTL, MinTTL, MaxTTL time.Duration

	others []*BarError // of the same batch
}

func barError(b *policy.Bar) *BarError {
	return &BarError{Code: b.Code, Group: b.Group, Detail: b.Detail, Left: b.Left, TTL: b.TTL, MinTTL: b.MinTTL, MaxTTL: b.MaxTTL}
}

// For returns what keeps the node from leading one group of the batch that was refused. nil:
// nothing does.
func (e *BarError) For(group string) *BarError {
	for _, b := range append(e.others[:len(e.others):len(e.others)], e) {
		if b.Group == group || b.Group == "" {
			return b
		}
	}
	return nil
}

func (e *BarError) Error() string { return e.Detail }

// Unwrap: nothing was done.
func (e *BarError) Unwrap() error {
	if e.Code == policy.TTLBounds {
		return ErrInvalid
	}
	return ErrBusy
}

// Guard returns the store with the rules enforced. Open, Acquire and a Release to a successor
// answer a BarError when a policy, a cool-down or a cordon forbids them; from a Release it is
// an ErrSuccessor as well. Nothing is granted against a rule that was acknowledged before.
// What was granted already is left alone.
//
// A store that is no Ruled is returned as it is: store/remote, whose service enforces the
// rules, and what Guard returns.
//
// Limitations: in a store with one key per transaction, a grant is taken back if the rules
// changed while it was made. If the store fails just then, the grant may stay. If the caller
// has given up meanwhile and a retry elsewhere has read the grant, the retry leads, and the
// group is taken from it: another may lead while the retry still believes that it does.
//
// It keeps the rules that it has read, and the store compares their version when it grants.
// So rules cost no reads as long as they do not change.
func Guard(s Store, cfg GuardConfig) Store {
	r, ok := s.(Ruled)
	if !ok {
		return s
	}
	return &guard{Store: s, ruled: r, cfg: cfg, laid: map[string]Attributes{}}
}

type guard struct {
	Store // without Under: a guard is no Ruled
	ruled Ruled
	cfg   GuardConfig

	mu      sync.Mutex
	version uint64                // of the rules; 0: there are none
	laid    map[string]Attributes // rules of that version
}

const (
	// guardKept bounds the rules that a guard keeps.
	guardKept = 1 << 16
	// ruleTries is how often a grant is tried while the rules keep changing.
	ruleTries = 3
)

// Open implements Store. A cordoned node gets no session, so nobody takes it for a successor.
func (g *guard) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o OpenOptions) (Session, error) {
	return under(ctx, g, Session{Candidate: c}, nil, func(s Store) (Session, error) { return s.Open(ctx, c, ttl, o) })
}

// Acquire implements Store.
func (g *guard) Acquire(ctx context.Context, id SessionID, seen ...Record) ([]Record, error) {
	to, err := g.ruled.Describe(ctx, id)
	if err != nil {
		return nil, err
	}
	return under(ctx, g, to, seen, func(s Store) ([]Record, error) { return s.Acquire(ctx, id, seen...) })
}

// Release implements Store.
func (g *guard) Release(ctx context.Context, id, to SessionID, why Reason, held ...Record) ([]Record, error) {
	release := func(s Store) ([]Record, error) { return s.Release(ctx, id, to, why, held...) }
	if to == "" {
		return release(g.Store)
	}
	next, err := g.ruled.Describe(ctx, to)
	switch {
	case errors.Is(err, ErrSessionDead):
		return release(g.Store) // which knows what to answer
	case err != nil:
		return nil, err
	}
	released, err := under(ctx, g, next, held, release)
	if bar := (*BarError)(nil); errors.As(err, &bar) {
		err = fmt.Errorf("%w: %w", ErrSuccessor, err)
	}
	return released, err
}

// under makes a call for a session if the rules allow it, and still do when it takes effect.
func under[T any](ctx context.Context, g *guard, to Session, records []Record, do func(Store) (T, error)) (T, error) {
	var none T
	for try := range ruleTries {
		stale := g.cfg.planted.Has(plant.GuardStale)
		version, err := g.allow(ctx, to, records, try > 0 || stale)
		if err != nil {
			return none, err
		}
		s := g.ruled.Under(version)
		if stale {
			s = g.ruled
		}
		if got, err := do(s); !errors.Is(err, ErrRules) {
			return got, err
		}
	}
	return none, ErrRules
}

// allow returns the version of the rules that allow the call, or a BarError. What was kept
// may be lifted by now, so only rules that were read just now forbid anything.
func (g *guard) allow(ctx context.Context, to Session, records []Record, fresh bool) (uint64, error) {
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
	if g.version != version || len(g.laid) >= guardKept {
		g.version, g.laid = version, map[string]Attributes{}
	}
	for _, a := range rules {
		g.laid[a.Name] = a
	}
	g.mu.Unlock()
	return version, g.check(to, records, rules)
}

// recall returns rules from memory, if all are there. Where there are no rules, all are.
func (g *guard) recall(names []string) (version uint64, rules []Attributes, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range names {
		a, ok := g.laid[name]
		if !ok && g.version != 0 {
			return 0, nil, false
		}
		rules = append(rules, a)
	}
	return g.version, rules, true
}

// check compares a grant with the rules of its node and of its groups. Without groups it is
// about the node alone.
func (g *guard) check(to Session, records []Record, rules []Attributes) error {
	claim := policy.Claim{Node: to.Candidate.ID, TTL: to.TTL, Now: time.Now(), Declared: g.cfg.Declared, MaxTTL: g.cfg.MaxTTL}
	node := rules[0].Values
	var bars []*BarError
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
	bars[0].others = bars[1:]
	return bars[0]
}

// Rules reads rules as they are now, past what is kept.
func (g *guard) Rules(ctx context.Context, names ...string) (uint64, []Attributes, error) {
	return g.ruled.Rules(ctx, names...)
}
