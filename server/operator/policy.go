// Package operator has the operations of operators on any store.Store: policies of groups,
// cordons of nodes, cool-downs, and requests to leaders. The service and the command use it
// both, so they write and read the same rules.
//
// # Limitations
//
// This package only writes rules. guard.Guard enforces them, for every candidate that uses it.
package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/store"
)

// MaxReason is the most bytes of a reason.
const MaxReason = 256

// Group names the attributes of a group.
func Group(group string) string { return policy.Group(group) }

// Node names the attributes of a node.
func Node(node string) string { return policy.Node(node) }

// Policy has the rules of a group.
type Policy struct {
	policy.Policy
	Attributes store.Attributes
}

// ParsePolicy decodes the attributes of a group.
func ParsePolicy(a store.Attributes) Policy { return Policy{policy.Parse(a.Values), a} }

// Group returns the name of the group.
func (p Policy) Group() string { return strings.TrimPrefix(p.Attributes.Name, Group("")) }

// Exists reports whether the group was declared and not deleted.
func (p Policy) Exists() bool { return p.Declared && !p.Deleted }

// Gone reports whether a view of the group should not be listed: it was deleted, and nobody
// leads it.
func (p Policy) Gone(v store.View) bool { return p.Deleted && v.State != tenure.Led }

// GroupPolicy is the JSON form of a policy.
type GroupPolicy struct {
	MinTTLMS  int64    `json:"min_ttl_ms,omitempty" doc:"shorter TTLs are refused"`
	MaxTTLMS  int64    `json:"max_ttl_ms,omitempty" doc:"longer TTLs are refused; 0 is the bound of the deployment"`
	BackoffMS int64    `json:"backoff_ms,omitempty" doc:"how long a refused candidate should wait before it retries"`
	Members   []string `json:"members,omitempty" doc:"the nodes that may lead; empty: every node"`
	Fenced    *bool    `json:"fenced,omitempty" doc:"whether its resources check the term; default true"`

	MayBeVacant bool `json:"may_be_vacant,omitempty" doc:"do not report the group while nobody leads it, such as between the runs of a scheduled job"`
}

// Wire returns the JSON form of the policy.
func (p Policy) Wire() *GroupPolicy {
	return &GroupPolicy{
		MinTTLMS: p.MinTTL.Milliseconds(), MaxTTLMS: p.MaxTTL.Milliseconds(), BackoffMS: p.Backoff.Milliseconds(),
		Members: p.Members, Fenced: &p.Fenced, MayBeVacant: p.MayBeVacant,
	}
}

// Values returns the attributes of the policy, with the cool-downs of the old attributes.
func (g GroupPolicy) Values(old map[string]string) map[string]string {
	out := make(map[string]string)
	for k, v := range old {
		if strings.HasPrefix(k, policy.KeyCool) {
			out[k] = v
		}
	}
	out[policy.KeyDeclared] = policy.Yes
	number := func(key string, ms int64) {
		if ms > 0 {
			out[key] = strconv.FormatInt(ms, 10)
		}
	}
	number(policy.KeyMinTTL, g.MinTTLMS)
	number(policy.KeyMaxTTL, g.MaxTTLMS)
	number(policy.KeyBackoff, g.BackoffMS)
	out[policy.KeyMembers] = strings.Join(g.Members, ",")
	if g.Fenced != nil && !*g.Fenced {
		out[policy.KeyFenced] = policy.No
	}
	if g.MayBeVacant {
		out[policy.KeyMayBeVacant] = policy.Yes
	}
	return out
}

// Deleted returns the attributes of a group that nobody can lead until it is declared again.
func Deleted() map[string]string { return map[string]string{policy.KeyDeleted: policy.Yes} }

// Check returns an error if the policy is invalid for an engine with these limits, in a
// deployment with this longest TTL.
func (g GroupPolicy) Check(limits store.Caps, maxTTL time.Duration) error {
	most := maxTTL.Milliseconds()
	switch {
	case g.MinTTLMS < 0 || g.MinTTLMS > most || g.MaxTTLMS < 0 || g.MaxTTLMS > most:
		return fmt.Errorf("the bounds of the TTL (min_ttl_ms, max_ttl_ms) must be from 0 to %d ms, the longest TTL of this deployment", most)
	case g.MaxTTLMS > 0 && g.MinTTLMS > g.MaxTTLMS:
		return fmt.Errorf("min_ttl_ms = %d must not be above max_ttl_ms = %d", g.MinTTLMS, g.MaxTTLMS)
	case g.BackoffMS < 0 || g.BackoffMS > time.Hour.Milliseconds():
		return errors.New("backoff_ms must be from 0 to an hour")
	}
	if slow := limits.MinTTL.Milliseconds(); g.MaxTTLMS > 0 && g.MaxTTLMS < slow {
		return fmt.Errorf("max_ttl_ms = %d: the shortest TTL of this engine is %d", g.MaxTTLMS, slow)
	}
	for i, m := range g.Members {
		if !store.ValidName(m) || slices.Contains(g.Members[:i], m) {
			return fmt.Errorf("members: %.100q is not a valid node name, or is listed twice", m)
		}
	}
	return nil
}

// Cordoned returns whether a node is cordoned, and why, from its attributes.
func Cordoned(a store.Attributes) (why string, is bool) {
	why, is = a.Values[policy.KeyCordon]
	return why, is
}

// Store is a store whose calls have a timeout.
type Store struct {
	store.Store
	// Call is the timeout of each call.
	Call time.Duration
}

// VersionError: the attributes do not have the wanted version.
type VersionError struct{ Have uint64 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("it was changed and has version %d now: read it again, then write it again", e.Have)
}

// Change changes attributes by compare-and-set, with retries, if they have the wanted version;
// 0: any version.
func (s Store) Change(ctx context.Context, name string, want uint64, f func(map[string]string) error) (store.Attributes, error) {
	for try := 0; ; try++ {
		a, err := s.read(ctx, name)
		if err != nil {
			return a, err
		}
		if want > 0 && a.Version != want {
			return a, &VersionError{a.Version}
		}
		values := make(map[string]string, len(a.Values)+1)
		maps.Copy(values, a.Values)
		if err := f(values); err != nil {
			return a, err
		}
		a.Values = values
		written, err := s.write(ctx, a)
		if err == nil || try == 4 || !errors.Is(err, store.ErrConflict) {
			return written, err
		}
	}
}

func (s Store) read(ctx context.Context, name string) (store.Attributes, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	return s.Attributes(ctx, name)
}

// write is not cancelled with its caller, so that it has an outcome.
func (s Store) write(ctx context.Context, a store.Attributes) (store.Attributes, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Call)
	defer cancel()
	return s.SetAttributes(ctx, a)
}

// Cordon keeps a node from beginning to lead. An empty why removes the cordon.
func (s Store) Cordon(ctx context.Context, node, why string) (store.Attributes, error) {
	return s.Change(ctx, Node(node), 0, func(values map[string]string) error {
		if values[policy.KeyCordon] = why; why == "" {
			delete(values, policy.KeyCordon)
		}
		return nil
	})
}

// Cool sets a cool-down: until then the node may not lead the group again. It removes
// cool-downs that have passed. Warm removes the one that it returns.
func (s Store) Cool(ctx context.Context, group, node string, d time.Duration) (until string, err error) {
	_, err = s.Change(ctx, Group(group), 0, func(values map[string]string) error {
		now := time.Now()
		for k, v := range values {
			if ms, err := strconv.ParseInt(v, 10, 64); strings.HasPrefix(k, policy.KeyCool) && (err != nil || ms < now.UnixMilli()) {
				delete(values, k)
			}
		}
		until = strconv.FormatInt(now.Add(d).UnixMilli(), 10)
		values[policy.KeyCool+node] = until
		return nil
	})
	return until, err
}

// Warm removes a cool-down, unless another was set since: a leader that refused still leads.
func (s Store) Warm(ctx context.Context, group, node, until string) error {
	_, err := s.Change(ctx, Group(group), 0, func(values map[string]string) error {
		if values[policy.KeyCool+node] == until {
			delete(values, policy.KeyCool+node)
		}
		return nil
	})
	return err
}
