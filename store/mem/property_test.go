package mem

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// handClock moves only when a test moves it. Its timers never fire: the engine expires
// leases with every call. Stores read it beside the test, when they revoke a lease.
type handClock struct{ now atomic.Int64 }

func (c *handClock) Now() clock.Instant    { return clock.Instant(c.now.Load()) }
func (c *handClock) NewTimer() clock.Timer { return stillTimer{} }

type stillTimer struct{}

func (stillTimer) C() <-chan struct{} { return nil }
func (stillTimer) Set(clock.Instant)  {}
func (stillTimer) Stop()              {}

const worldTTL = 100 * time.Nanosecond

// world makes chosen calls to two clients of one engine and knows, independently of them,
// who must be alive.
type world struct {
	t       testing.TB
	choose  func(n int) int // from 0 to n-1
	clock   *handClock
	driver  *Driver
	clients []*kv.Store

	deadlines map[store.SessionID]clock.Instant // of those not known to be dead
	ids       []store.SessionID                 // all, dead or alive, and one that never was
	groups    []string
	owners    map[string]map[fence.Token]store.SessionID
	records   []store.Record // seen at some time: late copies come from here
	trace     []string
}

func newWorld(t testing.TB, choose func(int) int, o Options) *world {
	w := &world{
		t: t, choose: choose, clock: &handClock{},
		deadlines: make(map[store.SessionID]clock.Instant),
		ids:       []store.SessionID{"nobody"},
		owners:    make(map[string]map[fence.Token]store.SessionID),
	}
	w.clock.now.Store(1)
	o.Clock, o.MinTTL = w.clock, worldTTL
	w.driver = NewDriver(o)
	t.Cleanup(w.driver.Close)
	for range 2 {
		s, err := w.driver.Open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		w.clients = append(w.clients, s)
	}
	for _, g := range []string{"a", "b", "c", "d"} {
		w.groups = append(w.groups, g)
		w.records = append(w.records, store.Record{Group: g})
		w.owners[g] = make(map[fence.Token]store.SessionID)
	}
	return w
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	if len(w.trace) > 30 {
		w.trace = w.trace[len(w.trace)-30:]
	}
	for _, line := range w.trace {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

func (w *world) id() store.SessionID { return w.ids[w.choose(len(w.ids))] }

func (w *world) alive(id store.SessionID) bool { return w.deadlines[id] > w.clock.Now() }

func (w *world) read(group string) store.View {
	v, err := w.clients[w.choose(2)].Read(context.Background(), group)
	if err != nil {
		w.fail("read %q: %v", group, err)
	}
	return v
}

// record is a present one or, as often, an old one.
func (w *world) record() store.Record {
	if w.choose(2) == 0 {
		return w.records[w.choose(len(w.records))]
	}
	return w.read(w.groups[w.choose(len(w.groups))]).Record
}

// some are up to three records of different groups.
func (w *world) some() (seen []store.Record) {
	used := map[string]bool{}
	for range 1 + w.choose(min(3, w.clients[0].Caps().Batch)) {
		if r := w.record(); !used[r.Group] {
			used[r.Group] = true
			seen = append(seen, r)
		}
	}
	return seen
}

func (w *world) step() {
	ctx := context.Background()
	s := w.clients[w.choose(2)]
	w.clock.now.Add(int64(w.choose(30)))
	before := make(map[string]store.View)
	for _, g := range w.groups {
		before[g] = w.read(g)
	}
	var seen []store.Record // what the call says it saw
	var err error
	changes := false // the call may change records
	var said string
	switch w.choose(9) {
	case 0:
		var n store.Session
		scope := []store.Scope{{"*"}, {"a", "b"}, {"c*"}}[w.choose(3)]
		n, err = s.Open(ctx, tenure.Candidate{ID: "x", Priority: w.choose(3)}, worldTTL, store.OpenOptions{Scope: scope})
		said = fmt.Sprintf("open %v: %s %v", scope, n.ID, err)
		if _, used := w.deadlines[n.ID]; used {
			w.fail("S1: id %s was used again", n.ID)
		}
		w.deadlines[n.ID] = w.clock.Now().Add(n.TTL)
		w.ids = append(w.ids, n.ID)
	case 1, 2:
		id := w.id()
		_, err = s.KeepAlive(ctx, id)
		said = fmt.Sprintf("keep-alive %s: %v", id, err)
		if w.alive(id) != (err == nil) {
			w.fail("S1, S5: at %d: %s, but alive is %v (deadline %d)", w.clock.Now(), said, w.alive(id), w.deadlines[id])
		}
		if err == nil {
			w.deadlines[id] = w.clock.Now().Add(worldTTL)
		}
	case 3:
		id := w.id()
		err = s.End(ctx, id, "")
		said = fmt.Sprintf("close %s: %v", id, err)
		w.deadlines[id] = 0
	case 4, 5:
		id := w.id()
		seen = w.some()
		_, err = s.Acquire(ctx, id, seen...)
		changes = true
		said = fmt.Sprintf("acquire %s %v: %v", id, brief(seen), err)
		if err == nil && !w.alive(id) {
			w.fail("a dead session was granted: %s", said)
		}
	case 6:
		id, to := w.id(), store.SessionID("")
		if w.choose(2) == 0 {
			to = w.id()
		}
		seen = w.some()
		_, err = s.Release(ctx, id, to, "", seen...)
		changes = true
		said = fmt.Sprintf("release %s %v to %q: %v", id, brief(seen), to, err)
		for _, r := range seen {
			if err == nil && (before[r.Group].Holder != id || to != "" && (!w.alive(to) || to == id)) {
				w.fail("released by another or to nobody: %s", said)
			}
		}
	case 7:
		w.driver.Do(func(now clock.Instant, e *Engine) { e.Restart(now) })
		said = "restart"
		for id := range w.deadlines {
			if w.alive(id) {
				w.deadlines[id] = w.clock.Now().Add(worldTTL)
			}
		}
	case 8:
		id := w.id()
		had := w.some()
		err = s.End(ctx, id, "", had...)
		said = fmt.Sprintf("close %s if %v: %v", id, brief(had), err)
		for _, r := range had {
			if err == nil && w.alive(id) && before[r.Group].Version != r.Version {
				w.fail("closed although %q had changed: %s", r.Group, said)
			}
		}
		if err == nil {
			w.deadlines[id] = 0
		}
	}
	w.trace = append(w.trace, fmt.Sprintf("%d: %s", w.clock.Now(), said))
	if err != nil && !store.Definite(err) {
		w.fail("an answer that is not definite: %v", err)
	}
	w.check(before, seen, changes && err == nil)
}

func brief(records []store.Record) (s []string) {
	for _, r := range records {
		s = append(s, fmt.Sprintf("%s@%d", r.Group, r.Version))
	}
	return s
}

// check asserts S1 to S5 after a call that saw these records and, if granted, changed all
// of them.
func (w *world) check(before map[string]store.View, seen []store.Record, granted bool) {
	sessions, err := w.clients[w.choose(2)].Sessions(context.Background(), store.Scope{"*"}, store.Page{})
	if err != nil {
		w.fail("%v", err)
	}
	living := make(map[store.SessionID]bool)
	for _, n := range sessions {
		living[n.ID] = true
		if !w.alive(n.ID) {
			w.fail("S1: %s is listed at %d, its deadline was %d", n.ID, w.clock.Now(), w.deadlines[n.ID])
		}
	}
	for id := range w.deadlines {
		if w.alive(id) && !living[id] {
			w.fail("S5: %s is not listed at %d, its deadline is %d", id, w.clock.Now(), w.deadlines[id])
		}
	}
	changed := make(map[string]bool)
	for _, r := range seen {
		changed[r.Group] = granted
		if granted && before[r.Group].Version != r.Version {
			w.fail("S4: %q changed from version %d, seen was %d", r.Group, before[r.Group].Version, r.Version)
		}
	}
	for _, g := range w.groups {
		v, old := w.read(g), before[g]
		if led := v.State == tenure.Led; led != (v.Holder != "" && living[v.Holder]) {
			w.fail("S2: %q is %v, its holder %q lives: %v", g, v.State, v.Holder, living[v.Holder])
		}
		if v.Version < old.Version || v.Token < old.Token {
			w.fail("S3: %q went from version %d token %d to %d and %d", g, old.Version, old.Token, v.Version, v.Token)
		}
		if moved := v.Version != old.Version; moved != changed[g] {
			w.fail("S4: %q went from version %d to %d, changed by the call: %v", g, old.Version, v.Version, changed[g])
		}
		if v.Holder != "" {
			if owner, ok := w.owners[g][v.Token]; ok && owner != v.Holder {
				w.fail("S3: token %d of %q belongs to %s and to %s", v.Token, g, owner, v.Holder)
			}
			w.owners[g][v.Token] = v.Holder
			if v.Version != old.Version && v.Token != old.Token+1 {
				w.fail("S3: grant of %q from token %d to %d", g, old.Token, v.Token)
			}
		}
		w.records = append(w.records, v.Record)
	}
	if len(w.records) > 64 {
		w.records = w.records[len(w.records)-64:]
	}
	w.driver.Do(w.invariants)
}

// invariants asserts I1 and I2, which Engine says of itself.
func (w *world) invariants(now clock.Instant, e *Engine) {
	if len(e.queue) != len(e.leases) || len(e.keys) != len(e.items) {
		w.fail("I1, I2: %d leases, %d in the queue; %d items, %d keys", len(e.leases), len(e.queue), len(e.items), len(e.keys))
	}
	for i, l := range e.queue {
		if l.at != i || e.leases[l.id] != l || l.deadline <= now || l.due > l.deadline {
			w.fail("I1: lease %s at place %d of the queue is due at %d, its deadline is %d", l.id, i, l.due, l.deadline)
		}
	}
	for i, k := range e.keys {
		if _, there := e.items[k]; !there || i > 0 && e.keys[i-1] >= k {
			w.fail("I2: key %q at place %d", k, i)
		}
	}
}

// modes are those in which the engine expires sessions.
func modes() map[string]Options {
	return map[string]Options{"values": {}, "small batches": {Keys: 14}, "one key": {Keys: 1}}
}

// S1 to S5, I1 and I2 hold after every step of any sequence of calls, late copies among
// them, whichever client makes them.
func TestInvariants(t *testing.T) {
	seeds, steps := 60, 300
	if testing.Short() {
		seeds = 20
	}
	for name, o := range modes() {
		for seed := range uint64(seeds) {
			t.Run(fmt.Sprint(name, " ", seed), func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				w := newWorld(t, random.IntN, o)
				for range steps {
					w.step()
				}
			})
		}
	}
}

// The same holds for sequences that the fuzzer chooses.
func FuzzInvariants(f *testing.F) {
	f.Add([]byte("open, take, release, and again: 0123456789"))
	f.Fuzz(func(t *testing.T, input []byte) {
		w := newWorld(t, func(n int) int {
			if len(input) == 0 {
				return 0
			}
			b := input[0]
			input = input[1:]
			return int(b) % n
		}, Options{})
		for range 1000 {
			if len(input) == 0 {
				break
			}
			w.step()
		}
	})
}
