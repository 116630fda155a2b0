package kv

import (
	"context"
	"errors"
	"iter"
	"math"
	"time"

	"github.com/tenurehq/tenure/store"
)

// A Driver is the thin layer that one engine needs. It knows keys, values and versions,
// and nothing about elections.
//
// Keys are short ASCII paths such as "record/billing". A key's version grows with every
// write of it; after a delete it starts anew, above every version it had before.
//
// After an error the outcome of a Commit is unknown: it may have taken effect. The exceptions
// are the errors that store.Permanent reports.
type Driver interface {
	// Caps must not call the engine.
	Caps() Caps
	// Commit applies the writes if all conditions hold, as one atomic step, and then
	// reads. Reads are linearizable and happen after the step, at one moment or one after
	// the other in the order of the keys.
	Commit(ctx context.Context, t Txn) (Result, error)
	// List returns up to limit items whose keys begin with prefix and come after the
	// given key, in the order of keys. It is linearizable.
	List(ctx context.Context, prefix, after string, limit int) ([]Item, error)
	// Watch yields hints about changes below the prefixes: see Change. With a positive
	// tick it also yields a Tick at least that often. It ends with an error in bounded
	// time when the driver can no longer reach the engine.
	Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[Change, error]
	// Incarnation shows whether the engine lost data: see the type.
	Incarnation(ctx context.Context) (Incarnation, error)
}

// A Leaser is a Driver whose engine expires keys by itself. Caps.Native must be set.
type Leaser interface {
	// Grant begins a lease. The engine uses the wanted id if it can; granting an id that
	// lives already succeeds and changes nothing, so a call can be retried.
	Grant(ctx context.Context, want string, ttl time.Duration) (id string, granted time.Duration, err error)
	// Renew extends a living lease and then reads keys. The reads prove that the engine
	// still had its quorum after it renewed. A dead lease is ErrNoLease.
	Renew(ctx context.Context, id string, read []string) (time.Duration, Result, error)
	// Revoke ends a lease and deletes its keys. A dead lease is no error.
	Revoke(ctx context.Context, id string) error
}

// ErrNoLease means that the lease is certainly dead.
var ErrNoLease = errors.New("kv: no such lease")

// Item is the value of a key. Version 0 means that there is none.
type Item struct {
	Key     string
	Value   []byte
	Version uint64
	Created uint64 // version of the first write since the key was missing
}

// Any is the condition that a key exists, whatever its version.
const Any = math.MaxUint64

// Cond is a condition: the key has this version. 0 is missing.
type Cond struct {
	Key     string `json:"key"`
	Version uint64 `json:"version"`
}

// Holds reports whether the condition holds for a key that has the version.
func (c Cond) Holds(version uint64) bool {
	return version == c.Version || c.Version == Any && version != 0
}

// Write sets a key, or deletes it where Value is nil.
type Write struct {
	Key   string
	Value []byte
	Lease string // the key is deleted when this lease ends
	Quiet bool   // need not be announced to watchers
}

// Txn is one atomic step. Caps.Keys bounds it.
type Txn struct {
	If   []Cond
	Then []Write
	Read []string // read in any case
	Else []string // read only if a condition failed
}

// Result is the outcome of a Txn.
type Result struct {
	OK       bool     // the conditions held, the writes were made
	Versions []uint64 // of the writes, 0 for deletes
	Items    []Item   // of Read and then, if not OK, of Else
	Index    uint64   // of the engine, which only grows: see Incarnation. 0: unknown
	// Incarnation is the ID of the incarnation that answered. "": unknown; then Began must be 0.
	Incarnation string
}

// Change is a hint that something changed.
type Change struct {
	// Key that changed. "" means that anything may have changed: a watch yields it
	// first, once it is established, and again after every possible gap.
	Key string
	// Item is the new state of the key, if the driver delivers values in the order of
	// their changes (Caps.Ordered). A deleted key has version 0.
	Item *Item
	// Tick: nothing changed, but time has passed.
	Tick bool
}

// Caps say what an engine can do.
type Caps struct {
	// Engine is its name, such as "etcd".
	Engine         string
	MinTTL, MaxTTL time.Duration
	// Step: TTLs are rounded up to a multiple of it. 0: they are not rounded.
	Step time.Duration
	// Lateness is how long after its TTL a session's end may become visible, in addition to
	// the observers' period.
	Lateness time.Duration
	// Keys bounds the conditions of a Txn, its writes and its reads, each by itself. 1 means
	// that a Commit has at most one condition and one write, on the same key.
	Keys int
	// Native: the driver is a Leaser.
	Native bool
	// Ordered: Watch delivers values, in the order of their changes.
	Ordered bool
	// Loses says when the engine can lose acknowledged writes; "": never.
	Loses string
	// Prefix is the engine's prefix of the driver's keys, for messages.
	Prefix string
}

// Store returns the capabilities of a store over the driver.
func (c Caps) Store() store.Caps {
	batch := 1
	if c.Keys > 1 {
		// A grant writes the record, a term that moves to the history, and the grant key.
		batch = max(1, (c.Keys-8)/3)
	}
	return store.Caps{
		Engine: c.Engine, MinTTL: c.MinTTL, MaxTTL: c.MaxTTL, Step: c.Step, Batch: batch,
		Observed: !c.Native, Lateness: c.Lateness, Loses: c.Loses,
	}
}

// Incarnation identifies one continuous history of the engine's data. A restore or a failover
// that may have lost data starts another one, with another ID. Up to the index Began its data is
// that of the incarnation before: a client that has seen a higher index knows that data was lost.
type Incarnation struct {
	ID    string
	Began uint64
	Index uint64
}
