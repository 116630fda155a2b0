package store

import (
	"context"
	"time"

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

// Retirer is a Store that can remove the records of groups whose names come and go, such as
// "tenants--42" (see Prefix). Without it a store keeps a record of every name that was ever used.
//
// Tokens do not repeat, because the removed names of a prefix share token floors: before a record is
// removed, its floor is raised to its token, and a group without a record starts above the floor.
// The number of floors per prefix is bounded, so an unused name costs nothing.
//
// A type that wraps a Retirer must pass Retire on.
type Retirer interface {
	// Retire removes the record of a vacant group if its version is still the one seen. Its
	// history goes too, first, even if the call fails later. A record that changed or is held
	// is a ConflictError; a group without a prefix is ErrInvalid. Removing what is not there
	// succeeds. Watches yield a view with version 0. If the outcome is unknown, repeat the call.
	Retire(ctx context.Context, seen Record) error
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

	Others []*BarError // of the same batch
}

// For returns what keeps the node from leading one group of the batch that was refused. nil:
// nothing does.
func (e *BarError) For(group string) *BarError {
	for _, b := range append(e.Others[:len(e.Others):len(e.Others)], e) {
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
