package mem

import (
	"container/heap"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store/kv"
)

// Engine is a key-value engine without a lock and a clock. Its methods take the current time,
// which must not go back. It is not safe for concurrent use.
//
// I1: every lease is in queue once, and its deadline is after the last time that was passed.
// I2: keys is sorted and lists exactly the keys of items.
type Engine struct {
	data
	plant   plant.Set
	queue   queue
	keys    []string
	changed []kv.Change
}

// data is what a real engine would have on disk.
type data struct {
	index  uint64
	items  map[string]item
	leases map[string]*leased
}

type item struct {
	kv.Item
	lease string
}

type leased struct {
	id       string
	ttl      time.Duration
	deadline clock.Instant
	due      clock.Instant // its order in the queue: a renewal changes only the deadline
	at       int
	keys     map[string]bool
}

// NewEngine returns an empty engine.
func NewEngine(p plant.Set) *Engine {
	return &Engine{data: data{items: map[string]item{}, leases: map[string]*leased{}}, plant: p}
}

// Commit applies the writes if all conditions hold, and reads.
func (e *Engine) Commit(now clock.Instant, t kv.Txn) kv.Result {
	e.Expire(now)
	r := kv.Result{OK: true}
	for _, c := range t.If {
		v := e.items[c.Key].Version
		if v != c.Version && !(c.Version == kv.Any && v != 0) {
			r.OK = false
		}
	}
	reads := t.Read
	if r.OK {
		for _, w := range t.Then {
			if w.Lease != "" && e.leases[w.Lease] == nil {
				r.OK = false // the lease is dead: as if its keys were gone
			}
		}
	}
	if !r.OK {
		reads = append(reads[:len(reads):len(reads)], t.Else...)
	} else if len(t.Then) > 0 {
		e.index++
		for _, w := range t.Then {
			r.Versions = append(r.Versions, e.write(w))
		}
	}
	for _, key := range reads {
		i := e.items[key].Item
		i.Key = key
		r.Items = append(r.Items, i)
	}
	r.Index, r.Incarnation = e.index, e.incarnation().ID
	return r
}

// write makes one write at the current index.
func (e *Engine) write(w kv.Write) uint64 {
	old, had := e.items[w.Key]
	if had && old.lease != "" {
		delete(e.leases[old.lease].keys, w.Key)
	}
	if w.Value == nil {
		if had {
			e.remove(w.Key, w.Quiet)
		}
		return 0
	}
	i := item{Item: kv.Item{Key: w.Key, Value: slices.Clone(w.Value), Version: e.index, Created: e.index}, lease: w.Lease}
	if had {
		i.Created = old.Created
	} else {
		at, _ := slices.BinarySearch(e.keys, w.Key)
		e.keys = slices.Insert(e.keys, at, w.Key)
	}
	if w.Lease != "" {
		e.leases[w.Lease].keys[w.Key] = true
	}
	e.items[w.Key] = i
	if !w.Quiet {
		e.changed = append(e.changed, kv.Change{Key: w.Key, Item: &i.Item})
	}
	return e.index
}

func (e *Engine) remove(key string, quiet bool) {
	delete(e.items, key)
	at, _ := slices.BinarySearch(e.keys, key)
	e.keys = slices.Delete(e.keys, at, at+1)
	if !quiet {
		e.changed = append(e.changed, kv.Change{Key: key, Item: &kv.Item{Key: key}})
	}
}

// Changed returns the changes since the last call, in order.
func (e *Engine) Changed() []kv.Change {
	c := e.changed
	e.changed = nil
	return c
}

// List returns items in the order of their keys.
func (e *Engine) List(now clock.Instant, prefix, after string, limit int) []kv.Item {
	e.Expire(now)
	from, found := slices.BinarySearch(e.keys, max(prefix, after))
	if found && e.keys[from] == after {
		from++
	}
	var out []kv.Item
	for _, key := range e.keys[from:] {
		if !strings.HasPrefix(key, prefix) || len(out) == limit {
			break
		}
		out = append(out, e.items[key].Item)
	}
	return out
}

// Grant starts a lease. If it is already alive, nothing changes.
func (e *Engine) Grant(now clock.Instant, id string, ttl time.Duration) time.Duration {
	e.Expire(now)
	if l := e.leases[id]; l != nil {
		return l.ttl
	}
	l := &leased{id: id, ttl: ttl, keys: map[string]bool{}}
	e.extend(now, l)
	l.due = l.deadline
	e.leases[id] = l
	heap.Push(&e.queue, l)
	return ttl
}

// Lives reports whether the lease is alive.
func (e *Engine) Lives(now clock.Instant, id string) bool {
	e.Expire(now)
	return e.leases[id] != nil
}

func (e *Engine) extend(now clock.Instant, l *leased) {
	ttl := l.ttl
	if e.plant.Has(plant.ExpireEarly) {
		ttl /= 2
	}
	l.deadline = max(l.deadline, now.Add(ttl))
}

// Renew extends a living lease.
func (e *Engine) Renew(now clock.Instant, id string) (time.Duration, error) {
	e.Expire(now)
	l := e.leases[id]
	if l == nil {
		return 0, kv.ErrNoLease
	}
	e.extend(now, l)
	return l.ttl, nil
}

// Revoke ends a lease.
func (e *Engine) Revoke(now clock.Instant, id string) {
	e.Expire(now)
	if l := e.leases[id]; l != nil {
		e.end(l)
	}
}

// Expire ends the leases that have expired, in the order of their deadlines.
func (e *Engine) Expire(now clock.Instant) {
	for len(e.queue) > 0 && e.queue[0].due <= now {
		l := e.queue[0]
		if l.due < l.deadline {
			l.due = l.deadline
			heap.Fix(&e.queue, 0)
			continue
		}
		e.end(l)
	}
}

func (e *Engine) end(l *leased) {
	heap.Remove(&e.queue, l.at)
	delete(e.leases, l.id)
	e.index++
	for _, key := range slices.Sorted(maps.Keys(l.keys)) {
		e.remove(key, false)
	}
}

// NextExpiry returns when the next lease ends if nobody renews it.
func (e *Engine) NextExpiry() clock.Instant {
	for len(e.queue) > 0 {
		l := e.queue[0]
		if l.due == l.deadline {
			return l.deadline
		}
		l.due = l.deadline
		heap.Fix(&e.queue, 0)
	}
	return clock.Never
}

// Restart gives each lease its whole TTL again, as a restart of an engine does.
func (e *Engine) Restart(now clock.Instant) {
	e.Expire(now)
	for _, l := range e.leases {
		e.extend(now, l)
	}
}

// Snapshot is a backup of the stored data.
type Snapshot struct{ data data }

// Snapshot returns a copy of the stored data.
func (e *Engine) Snapshot() *Snapshot { return &Snapshot{e.data.clone()} }

// Restore replaces the stored data with a backup, and gives its leases their full TTL.
func (e *Engine) Restore(now clock.Instant, s *Snapshot) {
	e.data = s.data.clone()
	e.keys = slices.Sorted(maps.Keys(e.items))
	e.queue = nil
	for _, id := range slices.Sorted(maps.Keys(e.leases)) {
		l := e.leases[id]
		l.deadline = 0
		e.extend(now, l)
		l.due = l.deadline
		heap.Push(&e.queue, l)
	}
	e.changed = []kv.Change{{}}
}

func (d *data) clone() data {
	c := data{index: d.index, items: maps.Clone(d.items), leases: map[string]*leased{}}
	for id, l := range d.leases {
		m := *l
		m.keys = maps.Clone(l.keys)
		c.leases[id] = &m
	}
	return c
}

// Get reads a key without expiring leases, for tests.
func (e *Engine) Get(key string) kv.Item { return e.items[key].Item }

// Index is the number of changes so far.
func (e *Engine) Index() uint64 { return e.index }

func (e *Engine) incarnation() kv.Incarnation { return kv.Incarnation{ID: "memory", Index: e.index} }

// queue is a heap of leases by due, then by id.
type queue []*leased

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].due != q[j].due {
		return q[i].due < q[j].due
	}
	return q[i].id < q[j].id
}
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}
func (q *queue) Push(x any) {
	l := x.(*leased)
	l.at = len(*q)
	*q = append(*q, l)
}
func (q *queue) Pop() any {
	last := len(*q) - 1
	l := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return l
}
