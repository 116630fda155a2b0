package mem

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// world drives a State with chosen operations and knows, independently of it,
// who must be alive.
type world struct {
	t      testing.TB
	choose func(n int) int // from 0 to n-1
	s      *State
	now    clock.Instant

	deadlines map[lease.SessionID]clock.Instant // of those not known to be dead
	ids       []lease.SessionID                 // all, dead or alive, and one that never was
	groups    []string
	owners    map[string]map[fence.Token]lease.SessionID
	records   []lease.Record // seen at some time: late copies come from here
	trace     []string
}

func newWorld(t testing.TB, choose func(int) int) *world {
	w := &world{
		t: t, choose: choose, s: NewState(Options{}),
		deadlines: make(map[lease.SessionID]clock.Instant),
		ids:       []lease.SessionID{"nobody"},
		owners:    make(map[string]map[fence.Token]lease.SessionID),
	}
	for _, g := range []string{"a", "b", "c", "d"} {
		w.groups = append(w.groups, g)
		w.records = append(w.records, lease.Record{Group: g})
		w.owners[g] = make(map[fence.Token]lease.SessionID)
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

func (w *world) id() lease.SessionID { return w.ids[w.choose(len(w.ids))] }

func (w *world) alive(id lease.SessionID) bool { return w.deadlines[id] > w.now }

// record is a present one or, as often, an old one.
func (w *world) record() lease.Record {
	if w.choose(2) == 0 {
		return w.records[w.choose(len(w.records))]
	}
	return w.s.viewOf(w.groups[w.choose(len(w.groups))]).Record
}

func (w *world) step() {
	const ttl = 100
	w.now += clock.Instant(w.choose(30))
	before := make(map[string]lease.View)
	for _, g := range w.groups {
		before[g] = w.s.viewOf(g)
	}
	var seen []lease.Record // what the call says it saw
	var err error
	changes := false // the call may change records
	var said string
	switch w.choose(8) {
	case 0:
		var n lease.Session
		scope := []lease.Scope{{"*"}, {"a", "b"}, {"c*"}}[w.choose(3)]
		n, err = w.s.Open(w.now, tenure.Candidate{ID: "x", Priority: w.choose(3)}, ttl*time.Nanosecond, lease.OpenOptions{Scope: scope})
		said = fmt.Sprintf("open %v: %s %v", scope, n.ID, err)
		if _, used := w.deadlines[n.ID]; used {
			w.fail("S1: id %s was used again", n.ID)
		}
		w.deadlines[n.ID] = w.now + clock.Instant(n.TTL)
		w.ids = append(w.ids, n.ID)
	case 1, 2:
		id := w.id()
		_, err = w.s.KeepAlive(w.now, id)
		said = fmt.Sprintf("keep-alive %s: %v", id, err)
		if w.alive(id) != (err == nil) {
			w.fail("S1, S5: at %d: %s, but alive is %v (deadline %d)", w.now, said, w.alive(id), w.deadlines[id])
		}
		if err == nil {
			w.deadlines[id] = w.now + clock.Instant(w.s.Limits().MinTTL)
		}
	case 3:
		id := w.id()
		err = w.s.Close(w.now, id, "")
		said = fmt.Sprintf("close %s: %v", id, err)
		w.deadlines[id] = 0
	case 4, 5:
		id := w.id()
		for range 1 + w.choose(3) {
			seen = append(seen, w.record())
		}
		_, err = w.s.Acquire(w.now, id, seen...)
		changes = true
		said = fmt.Sprintf("acquire %s %v: %v", id, brief(seen), err)
		if err == nil && !w.alive(id) {
			w.fail("a dead session was granted: %s", said)
		}
	case 6:
		id, to, r := w.id(), lease.SessionID(""), w.record()
		if w.choose(2) == 0 {
			to = w.id()
		}
		seen = append(seen, r)
		_, err = w.s.Release(w.now, id, r, to, "")
		changes = true
		said = fmt.Sprintf("release %s %v to %q: %v", id, brief(seen), to, err)
		if err == nil && (before[r.Group].Holder != id || to != "" && (!w.alive(to) || to == id)) {
			w.fail("released by another or to nobody: %s", said)
		}
	case 7:
		w.s.Restart(w.now)
		said = "restart"
		for id := range w.deadlines {
			if w.alive(id) {
				w.deadlines[id] = w.now + clock.Instant(w.s.Limits().MinTTL)
			}
		}
	}
	w.trace = append(w.trace, fmt.Sprintf("%d: %s", w.now, said))
	if err != nil && !lease.Definite(err) {
		w.fail("an answer that is not definite: %v", err)
	}
	w.check(before, seen, changes && err == nil)
}

func brief(records []lease.Record) (s []string) {
	for _, r := range records {
		s = append(s, fmt.Sprintf("%s@%d", r.Group, r.Version))
	}
	return s
}

// check asserts S1 to S4 after a call that saw these records and, if granted,
// changed all of them.
func (w *world) check(before map[string]lease.View, seen []lease.Record, granted bool) {
	sessions, err := w.s.Sessions(w.now, lease.Scope{"*"}, lease.Page{})
	if err != nil {
		w.fail("%v", err)
	}
	living := make(map[lease.SessionID]bool)
	for _, n := range sessions {
		living[n.ID] = true
		if !w.alive(n.ID) {
			w.fail("S1: %s is listed at %d, its deadline was %d", n.ID, w.now, w.deadlines[n.ID])
		}
	}
	for id := range w.deadlines {
		if w.alive(id) && !living[id] {
			w.fail("S5: %s is not listed at %d, its deadline is %d", id, w.now, w.deadlines[id])
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
		v, err := w.s.Read(w.now, g)
		if err != nil {
			w.fail("%v", err)
		}
		old := before[g]
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
	w.invariants()
}

// invariants asserts I1 to I3, which State says of itself.
func (w *world) invariants() {
	s := w.s
	if len(s.queue) != len(s.sessions) || len(s.line) != len(s.sessions) {
		w.fail("I1: %d sessions, %d in the queue, %d in line", len(s.sessions), len(s.queue), len(s.line))
	}
	for i, n := range s.queue {
		if n.at != i || s.sessions[n.ID] != n || n.deadline <= w.now {
			w.fail("I1: session %s at place %d of the queue", n.ID, i)
		}
		if n.due > n.deadline {
			w.fail("I3: session %s is due at %d, after its deadline %d", n.ID, n.due, n.deadline)
		}
	}
	for _, g := range s.groups {
		if h := g.holder; h != nil && (s.sessions[h.ID] != h || h.holds[g.slot] != g) {
			w.fail("I2: %q is held by %s", g.rec.Group, h.ID)
		}
	}
}

// S1 to S5 and I1 to I3 hold after every step of any sequence of calls, late
// copies among them.
func TestInvariants(t *testing.T) {
	seeds, steps := 100, 300
	if testing.Short() {
		seeds = 20
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t, random.IntN)
			w.s.limits.MinTTL = 100
			for range steps {
				w.step()
			}
		})
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
		})
		w.s.limits.MinTTL = 100
		for range 1000 {
			if len(input) == 0 {
				break
			}
			w.step()
		}
	})
}

// Two states that are told the same answer the same, and report changes in the
// same order.
func TestDeterministic(t *testing.T) {
	run := func() string {
		random := rand.New(rand.NewPCG(7, 7))
		w := newWorld(t, random.IntN)
		w.s.limits.MinTTL = 100
		var said string
		for i := range 500 {
			w.step()
			said += fmt.Sprintln(w.s.Changed(), w.trace[len(w.trace)-1])
			if i%100 == 50 {
				w.s.Restore(w.now, w.s.Snapshot())
				said += fmt.Sprintln(w.s.Changed())
				for id := range w.deadlines {
					if w.alive(id) {
						w.deadlines[id] = w.now + 100
					}
				}
			}
		}
		return said
	}
	if a, b := run(), run(); a != b {
		t.Errorf("two runs of one seed differ:\n%s\n%s", a, b)
	}
}

func BenchmarkKeepAlive(b *testing.B) {
	s := NewState(Options{})
	var ids []lease.SessionID
	for range 1000 {
		ids = append(ids, open(b, s, 0, "a"))
	}
	var now clock.Instant
	i := 0
	for b.Loop() {
		now += second / 1000
		_, _ = s.KeepAlive(now, ids[i%len(ids)])
		i++
	}
}

func BenchmarkRead(b *testing.B) {
	s := NewState(Options{})
	acquire(b, s, 0, open(b, s, 0, "a"), "g")
	for b.Loop() {
		_, _ = s.Read(1, "g")
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	s := NewState(Options{})
	id := open(b, s, 0, "a")
	r := lease.Record{Group: "g"}
	for b.Loop() {
		granted, _ := s.Acquire(1, id, r)
		r, _ = s.Release(1, id, granted[0], "", "")
	}
}
