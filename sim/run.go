package sim

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// Config describes one run. Equal configurations give equal runs.
type Config struct {
	Seed       uint64
	Candidates int           // default 5
	Duration   time.Duration // of virtual time, default 10 minutes
	// Calm leaves only one fault: the leader is killed again and again. It measures
	// what an election costs.
	Calm  bool
	Plant plant.Set
	// Trace, if set, gets every event.
	Trace func(format string, args ...any)
}

// Violation is a guarantee that did not hold.
type Violation struct {
	Seed      uint64
	Guarantee string
	At        time.Duration
	Detail    string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d, %v: %s broken: %s", v.Seed, v.At.Round(time.Microsecond), v.Guarantee, v.Detail)
}

// Result is the result of one run.
type Result struct {
	Violation *Violation
	Virtual   time.Duration
	Events    int
	Calls     int // to the store
	Terms     int
	Writes    int // that took effect at the fenced sinks
	Refused   int // by the fenced sinks
	// StaleFenced and StaleUnfenced count writes of an older leader that took
	// effect after a newer one's.
	StaleFenced, StaleUnfenced int
	// Overlaps counts terms that began while the context of an older term, in a paused
	// process, was not cancelled yet. That term would not have passed Check.
	Overlaps int
	Overruns int
	Faults   map[string]int
	Endings  map[string]int
	Tries    []int           // acquires per vacancy
	Vacant   []time.Duration // how long each vacancy lasted
	Busiest  int             // calls of one process in ten seconds, in percent of what is allowed
	Hash     uint64
}

// pickTiming draws the timing of a run. Margins hide bugs, so half of the runs
// have none.
func (w *world) pickTiming() lease.Timing {
	var t lease.Timing
	switch x := w.rand.Float64(); {
	case w.cfg.Calm || x < 0.7:
		t = lease.Default()
	case x < 0.85:
		t = lease.Timing{TTL: 4 * time.Second}.Resolve()
	default:
		t = lease.WAN()
	}
	if !w.cfg.Calm && w.chance(0.5) {
		t.Margin = 0
	}
	if !w.cfg.Calm && w.chance(0.2) {
		t.Grace = t.TTL / 16
	}
	return t
}

// Run runs one world to its end.
func Run(cfg Config) *Result {
	if cfg.Candidates == 0 {
		cfg.Candidates = 5
	}
	if cfg.Duration == 0 {
		cfg.Duration = 10 * time.Minute
	}
	w := &world{
		cfg:       cfg,
		rand:      newRand(cfg.Seed),
		trace:     cfg.Trace,
		sinks:     map[string]*sink{},
		coolDowns: map[string]time.Duration{},
		result:    &Result{Faults: map[string]int{}, Endings: map[string]int{}, Hash: 14695981039346656037 ^ cfg.Seed},
	}
	if !cfg.Calm {
		w.kind = kindOf(cfg.Seed)
	}
	w.timing = w.pickTiming()
	w.pickTraits()
	w.groups = []string{"billing", "mail", "index"}[:1]
	if !cfg.Calm && w.chance(0.3) {
		w.groups = []string{"billing", "mail", "index"}[:2+w.rand.IntN(2)]
	}
	if w.kind == drill {
		w.groups = w.groups[:1]
	}
	w.pickGroups()
	w.buildShards()
	w.pickEngine()
	w.store = newStore(w)
	for _, g := range w.groups {
		w.sinks[g] = &sink{w: w, group: g, given: map[uint64]bool{}}
	}
	if w.kind == served {
		w.buildService()
	} else {
		for i := range cfg.Candidates {
			w.nodes = append(w.nodes, newNode(w, fmt.Sprintf("n%d", i+1)))
		}
	}
	w.pickNodes()
	for _, n := range w.processes() {
		w.after(w.between(0, time.Second), n.start)
	}
	w.after(0, w.periodicChecks)
	switch {
	case cfg.Calm:
		w.calm()
	case w.kind == drill:
		w.runDrills()
	default:
		w.runFaults()
	}
	for _, n := range w.processes() {
		n.kill()
	}
	for _, c := range w.idle {
		c.stop()
	}
	w.result.Virtual = time.Duration(w.now)
	return w.result
}

// expiry bounds how long a session lives after its last keep-alive. With observed expiry, the
// observers add the drift, and read eight times in a TTL, of which one read may fail.
func (w *world) expiry() time.Duration {
	ttl := w.timing.TTL
	if w.caps.Native {
		return ttl + ttl/50
	}
	return ttl + ttl/25 + 3*ttl/8
}

// recovery bounds how long after the last fault a group can be without a leader
// (G7): the dead session expires, a keep-alive notices a silent watch, and calls and
// pauses take as long as they can.
func (w *world) recovery() time.Duration {
	t := w.timing
	d := w.expiry() + t.TTL/10 + 7*t.Beat + 2*t.CallTimeout + 2*t.BackoffMax + 12*time.Second
	if w.kind == served {
		d += w.orphaned()
	}
	return d
}

// runFaults injects faults, ends them all, and checks that the world recovers. Then it
// kills the leader once more and checks how long the failover takes without other faults.
func (w *world) runFaults() {
	clean := w.expiry() + time.Second
	if w.has(epochRaised) {
		clean += operatorDelay // the sinks may refuse a token that is two epochs above their mark
	}
	if w.kind == served {
		clean += w.timing.TTL // clients retry after a pause
	}
	end := instant(w.cfg.Duration)
	check := end.add(-clean - time.Second)
	w.healAt = check.add(-w.recovery())
	w.pickDeck()
	w.faulty = true
	var next func()
	next = func() {
		if w.now >= w.healAt {
			return
		}
		w.injectRandom()
		w.after(w.between(200*time.Millisecond, 16*time.Second), next)
	}
	w.after(5*time.Second, next)
	w.at(w.healAt, w.heal)
	w.run(check)
	if w.result.Violation != nil {
		return
	}
	if w.lenient {
		w.run(end)
		return
	}
	w.allLed("after the last fault, within " + w.recovery().String())
	w.checkPlaced()
	victim := w.leader(w.groups[0])
	if victim == nil {
		return
	}
	victim.crash()
	w.log("FAULT    the last crash: %s", victim.name)
	w.run(w.now.add(clean))
	for _, g := range w.groups {
		if n := w.leader(g); !w.movedNow(g) && (n == nil || n == victim) {
			w.broken("G7", "group %s has no leader %v after a clean crash", g, clean)
		}
	}
	w.run(end)
}

// heal ends every fault.
func (w *world) heal() {
	w.faulty = false
	w.armed = nil
	w.log("HEAL")
	w.store.start()
	if w.rewound {
		w.raiseEpoch()
	}
	w.store.slow, w.store.disk, w.store.lag, w.store.refuseWatches = 0, 0, 0, 0
	for _, g := range w.groups {
		w.sinks[g].slow, w.sinks[g].full = 0, false
	}
	for _, n := range w.processes() {
		w.lift(n.candidate.ID)
		w.reconnect(n)
		n.sinkLink.heal()
		n.preWrite, n.hang, n.deposed, n.loseNext = 0, 0, false, false
		if !n.up {
			n.start()
		}
		if n.unhealthy {
			n.unhealthy = false
			n.deliver(machine.Event{Kind: machine.OnHealth})
		}
	}
}

// allLed checks G7, and that each leader writes.
func (w *world) allLed(when string) {
	for _, g := range w.groups {
		n := w.leader(g)
		if w.movedNow(g) {
			continue
		}
		if n == nil {
			l, holder := w.store.grants[g], "nobody"
			if o := w.store.owner(l.holder); o != nil && w.store.alive(l.holder) {
				holder = o.name
			}
			w.broken("G7", "group %s has no leader %s: at the store it is held by %s, token %d", g, when, holder, l.top)
			return
		}
		t, s := n.term(g), w.sinks[g]
		if ago := time.Duration(w.now - s.lastAt); s.lastBy != t.token || ago > 4*time.Second {
			w.broken("G7", "group %s is led by %s with token %d %s, but the last write, %v ago, had token %d", g, n.name, t.token, when, ago, s.lastBy)
		}
	}
}

// calm kills the leader again and again, and restarts it.
func (w *world) calm() {
	w.healAt = never
	var next func()
	next = func() {
		if n := w.leader(w.groups[0]); n != nil {
			n.crash()
			w.result.Faults["crash and restart"]++
			w.after(w.between(time.Second, 10*time.Second), n.start)
		}
		w.after(w.between(15*time.Second, 25*time.Second), next)
	}
	w.after(20*time.Second, next)
	w.run(instant(w.cfg.Duration))
}
