package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

var _ kv.Driver = (*Driver)(nil)

// Caps implements kv.Driver. A transaction has conditions, writes and two operations on lastKey.
// Reads that do not fit into it follow in another transaction.
func (d *Driver) Caps() kv.Caps {
	return kv.Caps{Engine: "consul", MinTTL: time.Second, MaxTTL: 24 * time.Hour, Lateness: time.Second, Keys: (maxOps - 2) / 2, Prefix: d.cfg.Prefix + "/"}
}

func (d *Driver) key(k string) string { return d.cfg.Prefix + "/" + k }

// pair is a key in Consul with its value.
type pair struct {
	Key                      string
	Value                    []byte
	CreateIndex, ModifyIndex uint64
}

func (d *Driver) item(p pair) kv.Item {
	return kv.Item{Key: strings.TrimPrefix(p.Key, d.cfg.Prefix+"/"), Value: p.Value, Version: p.ModifyIndex, Created: p.CreateIndex}
}

// operation is one step of a transaction.
type operation struct{ KV verb }

type verb struct {
	Verb    string
	Key     string
	Value   []byte `json:",omitempty"`
	Flags   uint64 `json:",omitempty"`
	Index   uint64 `json:",omitempty"`
	Session string `json:",omitempty"`
}

// errConflict means that a condition of the transaction does not hold.
var errConflict = errors.New("consul: a condition does not hold")

// transact runs operations and returns one pair for each. The first operations are conditions. A
// missing or deleted key has ModifyIndex 0.
func (d *Driver) transact(ctx context.Context, conditions int, ops []operation) ([]pair, error) {
	var out struct {
		Results []struct{ KV pair }
		Errors  []struct {
			OpIndex int
			What    string
		}
	}
	// The parameter makes read-only transactions linearizable. Others always are.
	a, err := d.each(ctx, request{what: "commit", method: http.MethodPut, path: "txn", query: url.Values{"consistent": {""}}, body: ops, into: &out})
	if err != nil {
		return nil, err
	}
	for _, e := range out.Errors {
		switch {
		case strings.Contains(e.What, "Permission denied"):
			return nil, fmt.Errorf("consul: %w: %s", store.ErrDenied, e.What)
		case strings.Contains(e.What, "unknown KV operation"), strings.Contains(e.What, "unknown KV verb"):
			return nil, &store.ArgumentError{Field: "Consul", Value: strings.Join(d.cfg.Addresses, ","), Rule: "must be version 1.14 or newer (" + e.What + ")"}
		case e.OpIndex < conditions:
			err = errConflict
		default:
			d.bound.drop()
			return nil, fmt.Errorf("consul: commit: %s", e.What)
		}
	}
	if err != nil || a.status != http.StatusOK {
		return nil, cmp.Or(err, errors.New("consul: commit: refused without a reason"))
	}
	pairs := make([]pair, len(ops))
	for i, o := range ops {
		if o.KV.Verb == "delete" || o.KV.Verb == "check-not-exists" {
			continue // Consul returns no result for these
		}
		if len(out.Results) == 0 || out.Results[0].KV.Key != o.KV.Key {
			// Consul leaves out keys that the token may not read.
			return nil, fmt.Errorf("consul: %w: the ACL token cannot read key %q", store.ErrDenied, o.KV.Key)
		}
		pairs[i] = out.Results[0].KV
		out.Results = out.Results[1:]
	}
	return pairs, nil
}

// Commit implements kv.Driver with one transaction, and another one for the reads if a condition
// fails.
func (d *Driver) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	ops, err := d.operations(ctx, t)
	if err != nil {
		return kv.Result{}, err
	}
	reads := min(len(t.Read), maxOps-len(ops))
	for _, key := range t.Read[:reads] {
		ops = append(ops, d.get(key))
	}
	pairs, err := d.transact(ctx, len(t.If), ops)
	if errors.Is(err, errConflict) {
		r, err := d.Commit(ctx, kv.Txn{Read: slices.Concat(t.Read, t.Else)})
		r.OK = false
		return r, err
	}
	if err != nil {
		return kv.Result{}, err
	}
	last := pairs[len(t.If)]
	r := kv.Result{OK: true, Index: last.ModifyIndex}
	if last.ModifyIndex != 0 {
		r.Incarnation = fmt.Sprintf("keys since index %d", last.CreateIndex)
	}
	for _, p := range pairs[len(t.If)+1:][:len(t.Then)] {
		r.Versions = append(r.Versions, p.ModifyIndex)
	}
	for _, p := range pairs[len(pairs)-reads:] {
		r.Items = append(r.Items, d.item(p))
	}
	if rest := t.Read[reads:]; len(rest) > 0 {
		var more kv.Result
		more, err = d.Commit(ctx, kv.Txn{Read: rest})
		r.Items = append(r.Items, more.Items...)
	}
	return r, err
}

// lastKey is written with every commit. Its version is the index of the engine: after a restored
// snapshot the Raft index continues, but this key has an older version. Its CreateIndex is the
// incarnation: it changes if keys were deleted, or exported and imported.
const lastKey = "last"

// operations returns the conditions of a commit, a read of lastKey, and the writes.
func (d *Driver) operations(ctx context.Context, t kv.Txn) ([]operation, error) {
	var ops []operation
	missing := map[string]bool{}
	for _, c := range t.If {
		v := verb{Verb: "check-index", Key: d.key(c.Key), Index: c.Version}
		switch c.Version {
		case 0:
			missing[c.Key] = true
			v = verb{Verb: "check-not-exists", Key: d.key(c.Key)}
		case kv.Any:
			v = verb{Verb: "get", Key: d.key(c.Key)} // fails if it is missing
		}
		ops = append(ops, operation{v})
	}
	ops = append(ops, d.get(lastKey))
	for _, w := range t.Then {
		// Random flags make every write a change. Otherwise Consul keeps the index of a key if its
		// value stays the same, as that of a beat does.
		v := verb{Verb: "set", Key: d.key(w.Key), Value: w.Value, Flags: rand.Uint64()}
		switch {
		case w.Value == nil:
			// Not delete-cas, which succeeds if the key is missing.
			v = verb{Verb: "delete", Key: d.key(w.Key)}
		case len(d.cfg.Checks) > 0 && strings.HasPrefix(w.Key, beatAt):
			// An existing beat keeps its lock.
			session, err := d.bound.hold(ctx, d, missing[w.Key])
			if err != nil {
				return nil, err
			}
			if missing[w.Key] {
				v.Verb, v.Session = "lock", session
			}
		}
		ops = append(ops, operation{v})
	}
	if len(t.Then) > 0 {
		ops = append(ops, operation{verb{Verb: "set", Key: d.key(lastKey), Flags: rand.Uint64()}})
	}
	return ops, nil
}

func (d *Driver) get(key string) operation {
	return operation{verb{Verb: "get-or-empty", Key: d.key(key)}}
}

// List implements kv.Driver. Consul has no paging: List gets all names, then reads one page.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]kv.Item, error) {
	var names []string
	if _, err := d.below(ctx, prefix, request{query: url.Values{"keys": {""}, "consistent": {""}}, into: &names}); err != nil {
		return nil, err
	}
	at, found := slices.BinarySearch(names, d.key(after))
	if found {
		at++
	}
	names = names[at:min(len(names), at+limit)]
	for i, n := range names {
		names[i] = strings.TrimPrefix(n, d.cfg.Prefix+"/")
	}
	r, err := d.Commit(ctx, kv.Txn{Read: names})
	return slices.DeleteFunc(r.Items, func(i kv.Item) bool { return i.Version == 0 }), err
}

// below reads the keys with a prefix. It returns the index after which to wait for a change.
func (d *Driver) below(ctx context.Context, prefix string, r request) (index uint64, err error) {
	r.what, r.method, r.path = "list "+prefix, http.MethodGet, "kv/"+d.key(prefix)
	a, err := d.each(ctx, r)
	if err != nil {
		return 0, err
	}
	if a.header.Get("X-Consul-Results-Filtered-By-Acls") == "true" {
		return 0, fmt.Errorf("consul: %w: the ACL token cannot read all keys below %q", store.ErrDenied, d.key(prefix))
	}
	index, err = strconv.ParseUint(a.header.Get("X-Consul-Index"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("consul: list %s: the answer has no index: %w", prefix, err)
	}
	return max(index, 1), nil // with 0 Consul would not wait
}

// Incarnation implements kv.Driver: see lastKey.
func (d *Driver) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	r, err := d.Commit(ctx, kv.Txn{})
	if err == nil && r.Incarnation == "" { // the first use
		_, werr := d.Commit(ctx, kv.Txn{Then: []kv.Write{{Key: lastKey, Value: []byte{}}}})
		r, err = d.Commit(ctx, kv.Txn{})
		err = cmp.Or(werr, err)
	}
	return kv.Incarnation{ID: r.Incarnation, Index: r.Index}, err
}

// beatAt is the prefix of the keys that kv renews while a session is alive.
const beatAt = "beat/"
