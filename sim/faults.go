package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// fault is one kind of fault. do reports whether it had an effect: a process that is
// down cannot be paused.
type fault struct {
	name   string
	weight int
	do     func(w *world, n *node) bool
}

// faults are the faults of all worlds, with their relative weights.
var faults = []fault{
	{"crash and restart", 10, (*world).crash},
	{"pause, short", 6, func(w *world, n *node) bool { return w.pause(n, 0, w.timing.TTL/2, false) }},
	{"pause, long", 8, func(w *world, n *node) bool { return w.pause(n, w.timing.TTL, 3*w.timing.TTL, false) }},
	{"pause between check and write", 10, (*world).pauseBeforeWrite},
	{"suspend", 4, func(w *world, n *node) bool { return w.pause(n, w.timing.TTL/2, 3*w.timing.TTL, true) }},
	{"partition", 10, func(w *world, n *node) bool { return w.cut(n, true, true) }},
	{"requests lost", 5, func(w *world, n *node) bool { return w.cut(n, true, false) }},
	{"answers lost", 5, func(w *world, n *node) bool { return w.cut(n, false, true) }},
	{"flapping", 3, (*world).flap},
	{"slow answers, then a cut", 6, (*world).slowThenCut},
	{"slow requests", 3, (*world).slowRequests},
	{"loss", 4, (*world).loss},
	{"doubled and late messages", 6, (*world).doubling},
	{"store outage", 3, (*world).outage},
	{"store rewound", 2, (*world).rewind},
	{"watch goes deaf", 4, (*world).silenceWatch},
	{"step-down asked", 4, func(w *world, n *node) bool { return w.ask(n, store.StepDown) }},
	{"transfer asked", 4, func(w *world, n *node) bool { return w.ask(n, store.Transfer) }},
	{"session closed by force", 3, (*world).force},
	{"unhealthy", 4, (*world).makeUnhealthy},
	{"work hangs", 4, (*world).hangWork},
	{"resign", 4, (*world).resign},
	{"transfer", 4, (*world).transfer},
	{"withdraw", 6, (*world).leave},
	{"sink restart", 4, (*world).restartSink},
	{"cut off from the sink", 4, (*world).cutSink},
	{"acquire of a group that is led", 3, (*world).acquireHeld},
	{"wall clock set", 3, (*world).setWall},
	{"implausible token", 2, (*world).slip},
	{"acquire of a led group", 2, (*world).acquireLed},
}

// until shortens a fault so that it ends before healAt.
func (w *world) until(d time.Duration) time.Duration {
	return max(time.Millisecond, min(d, time.Duration(w.healAt-w.now)))
}

// injectRandom draws a fault and a process: mostly the leader, and sometimes at a change
// of leader, because well-timed faults find more bugs than many faults.
func (w *world) injectRandom() {
	f := w.deck[w.rand.IntN(len(w.deck))]
	switch x := w.rand.Float64(); {
	case x < 0.6:
		w.inject(f, w.leader(w.groups[w.rand.IntN(len(w.groups))]))
	case x < 0.8:
		all := w.processes()
		w.inject(f, all[w.rand.IntN(len(all))])
	case len(w.armed) < 8:
		w.armed = append(w.armed, func(n *node) { w.inject(f, n) })
	}
}

// pickDeck repeats each fault by its weight.
func (w *world) pickDeck() {
	add := func(f *fault) {
		if w.kind == sharded && notSharded[f.name] {
			return
		}
		for range f.weight {
			w.deck = append(w.deck, f)
		}
	}
	for i := range faults {
		add(&faults[i])
	}
	for i := range servedFaults {
		if w.kind == served {
			add(&servedFaults[i])
		}
	}
	for i := range shardFaults {
		if w.kind == sharded {
			add(&shardFaults[i])
		}
	}
	for t, f := range traitFaults {
		if f != nil && w.has(trait(t)) {
			add(f)
		}
	}
}

func (w *world) inject(f *fault, n *node) {
	if n == nil || !n.up || w.now >= w.healAt {
		return
	}
	if n.serves != nil {
		f = &instanceFaults[w.rand.IntN(len(instanceFaults))]
	}
	if f.do(w, n) {
		w.result.Faults[f.name]++
		w.mix(4, uint64(len(f.name)))
		w.log("FAULT    %s: %s", f.name, n.name)
	}
}

// atChange injects a fault that waits for a change of leader.
func (w *world) atChange(n *node) {
	if len(w.armed) == 0 {
		return
	}
	f := w.armed[0]
	w.armed = w.armed[1:]
	starts := n.starts
	w.after(w.between(0, 20*time.Millisecond), func() {
		if n.starts == starts {
			f(n)
		}
	})
}

// leader is the process with a term of the group that has not ended.
func (w *world) leader(group string) *node {
	for _, n := range w.nodes {
		if n.term(group) != nil {
			return n
		}
	}
	return nil
}

func (n *node) term(group string) *term {
	for _, t := range n.terms {
		if t.group == group && !t.ended && n.up {
			return t
		}
	}
	return nil
}

func (n *node) anyTerm() *term {
	for _, t := range n.terms {
		if !t.ended {
			return t
		}
	}
	return nil
}

func (w *world) crash(n *node) bool {
	n.crash()
	w.after(w.until(w.between(500*time.Millisecond, 20*time.Second)), func() {
		if !n.up {
			n.start()
		}
	})
	return true
}

func (w *world) pause(n *node, least, most time.Duration, suspend bool) bool {
	if n.paused {
		return false
	}
	n.pause(w.until(w.between(least, most)), suspend)
	return true
}

func (w *world) pauseBeforeWrite(n *node) bool {
	if n.anyTerm() == nil {
		return false
	}
	n.preWrite = w.until(w.between(w.timing.TTL+500*time.Millisecond, 2*w.timing.TTL))
	if w.chance(0.3) {
		// Restart the sink during the pause: it must not lose the mark.
		w.after(n.preWrite-200*time.Millisecond, func() { w.restartSink(n) })
	}
	return true
}

// acquireLed makes a process acquire a led group, with the current record.
func (w *world) acquireLed(leader *node) bool {
	t := leader.anyTerm()
	n := w.nodes[w.rand.IntN(len(w.nodes))]
	if t == nil || n == leader || w.store.down || !w.store.alive(n.sess) || !w.store.alive(t.session) {
		return false
	}
	v, err := w.store.admin.Read(background, t.group)
	if err != nil || v.Holder != t.session {
		return false
	}
	n.try(v.Record)
	return true
}

func (w *world) cut(n *node, out, in bool) bool {
	n.link.cutOut, n.link.cutIn = out, in
	for _, st := range w.store.streams {
		if st.n == n && in {
			if w.chance(0.5) {
				st.held = true
			} else {
				st.lose(5 * time.Second)
			}
		}
	}
	w.after(w.until(w.between(500*time.Millisecond, 3*w.timing.TTL)), func() { w.reconnect(n) })
	return true
}

func (w *world) reconnect(n *node) {
	n.link.heal()
	for _, st := range w.store.streams {
		if st.n == n {
			st.heal()
		}
	}
}

func (w *world) flap(n *node) bool {
	for i := range 6 {
		w.after(time.Duration(i)*w.timing.TTL*3/4, func() {
			if w.now < w.healAt {
				w.cut(n, true, true)
			}
		})
	}
	return true
}

func (w *world) slowThenCut(n *node) bool {
	n.link.slowIn = w.between(100*time.Millisecond, 2*w.timing.CallTimeout)
	w.after(w.until(w.between(time.Second, w.timing.TTL)), func() {
		n.link.slowIn = 0
		if w.now < w.healAt {
			w.cut(n, true, true)
		}
	})
	return true
}

func (w *world) slowRequests(n *node) bool {
	n.link.slowOut = w.between(100*time.Millisecond, 2*w.timing.CallTimeout)
	w.after(w.until(w.between(time.Second, 2*w.timing.TTL)), func() { n.link.slowOut = 0 })
	return true
}

func (w *world) loss(n *node) bool {
	n.link.lossy = 0.1 + 0.6*w.rand.Float64()
	w.after(w.until(w.between(time.Second, 3*w.timing.TTL)), func() { n.link.lossy = 0 })
	return true
}

func (w *world) doubling(*node) bool {
	for _, o := range w.processes() {
		o.link.doubling = 0.3
		o.link.lossy = max(o.link.lossy, 0.05)
	}
	w.after(w.until(w.between(time.Second, 4*w.timing.TTL)), func() {
		for _, o := range w.processes() {
			o.link.doubling, o.link.lossy = 0, 0
		}
	})
	return true
}

func (w *world) outage(*node) bool {
	if w.store.down {
		return false
	}
	w.store.stop()
	w.after(w.until(w.between(200*time.Millisecond, 5*w.timing.TTL/2)), w.store.start)
	return true
}

// rewind restores a backup. The operator waits for two TTLs before raising the epoch, so
// that no old leader trusts its lease any more.
func (w *world) rewind(n *node) bool {
	wait := w.between(2*w.timing.TTL, 3*w.timing.TTL)
	if len(w.cordons) > 0 {
		return false
	}
	if w.store.backup == nil {
		w.store.backup = w.store.engine.Snapshot()
		return false
	}
	if w.rewound || w.now.add(wait+time.Second) > w.healAt || w.store.down {
		return false
	}
	if w.chance(0.5) {
		// Its watch does not show the older record.
		w.silenceWatch(n)
	}
	w.rewound = true
	w.store.rewind()
	// An operator compares the deployment with the sinks, and so notices the loss in any case.
	w.after(w.between(0, w.timing.TTL/4), w.suspect)
	w.after(wait, w.raiseWhenUp)
	return true
}

func (w *world) suspect() {
	switch {
	case !w.rewound:
	case w.store.down:
		w.after(10*time.Millisecond, w.suspect)
	default:
		for _, g := range w.groups {
			if top := w.store.grants[g].top; top > 0 {
				_ = w.store.admin.Suspect(background, g, top)
			}
		}
	}
}

func (w *world) raiseWhenUp() {
	if w.store.down {
		w.after(100*time.Millisecond, w.raiseWhenUp)
	} else if w.rewound {
		w.raiseEpoch()
	}
}

func (w *world) raiseEpoch() {
	w.rewound = false
	w.store.epoch++
	w.log("OPERATOR raises the epoch to %d", w.store.epoch)
	if _, err := w.store.admin.RaiseEpoch(background, w.store.epoch); err != nil {
		w.broken("G7", "the epoch cannot be raised to %d: %v", w.store.epoch, err)
	}
	if w.raised++; w.raised == 2 {
		w.count(raisedAgain)
	}
}

func (w *world) silenceWatch(n *node) bool {
	bit := false
	for _, st := range w.store.streams {
		if st.n == n && st.open && !st.silent {
			st.silent, bit = true, true
			w.after(w.until(w.between(w.timing.TTL, 5*w.timing.TTL)), func() { st.heal() })
		}
	}
	return bit
}

func (w *world) anyone() string {
	return w.nodes[w.rand.IntN(len(w.nodes))].candidate.ID
}

func (w *world) ask(n *node, verb store.Verb) bool {
	t := n.anyTerm()
	if t == nil || w.store.down {
		return false
	}
	to := ""
	coolDown := w.between(0, 10*time.Second)
	if verb == store.Transfer {
		to = w.anyone()
	}
	return w.askOf(t, verb, to, coolDown)
}

// askOf stores a request for the holder of a term.
func (w *world) askOf(t *term, verb store.Verb, to string, coolDown time.Duration) bool {
	w.asked++
	id := fmt.Sprintf("r%d", w.asked)
	r := store.Request{ID: id, Verb: verb, Group: t.group, To: to, Reason: id, CoolDown: coolDown, TTL: 2 * w.timing.TTL}
	w.coolDowns[string(verb)+": "+id] = coolDown
	return w.store.admin.Ask(background, t.session, r) == nil
}

// force closes a leader's session by force. G3 does not apply to its term.
func (w *world) force(n *node) bool {
	t := n.anyTerm()
	if t == nil || w.store.down {
		return false
	}
	w.forceSession(n.candidate.ID)
	return true
}

// forceSession closes the sessions of a candidate by force, whether it leads or not.
func (w *world) forceSession(name string) {
	for _, n := range w.nodes {
		if n.candidate.ID != name || w.store.down || w.now >= w.healAt {
			continue
		}
		ids := []store.SessionID{n.sess}
		for _, t := range n.terms {
			if n.client != nil {
				ids = append(ids, t.session)
			}
			t.forced = t.forced || slices.Contains(ids, t.session)
		}
		for _, id := range ids {
			if id != "" {
				w.closeByForce(id)
			}
		}
	}
}

func (w *world) closeByForce(id store.SessionID) {
	_ = w.store.admin.End(background, id, store.Forced)
	if i := w.store.sessions[id]; i != nil {
		i.forced = true
	}
}

func (w *world) makeUnhealthy(n *node) bool {
	if n.client != nil {
		return false // a client of the service has no health check
	}
	n.unhealthy = true
	n.deliver(machine.Event{Kind: machine.OnHealth, Cause: errReset})
	n.checkUnhealthy()
	starts := n.starts
	w.after(w.until(w.between(time.Second, 2*w.timing.TTL)), func() {
		if n.starts == starts {
			n.unhealthy = false
			n.deliver(machine.Event{Kind: machine.OnHealth})
		}
	})
	return true
}

func (w *world) hangWork(n *node) bool {
	n.hang = w.until(w.between(time.Second, 3*w.timing.TTL))
	if t := n.anyTerm(); t != nil && w.chance(0.5) {
		n.doing(n.starts, func() { n.endHere(t, tenure.ErrResigned) })
	}
	return true
}

func (w *world) resign(n *node) bool {
	t := n.anyTerm()
	if t == nil {
		return false
	}
	n.doing(n.starts, func() { n.endHere(t, tenure.ErrResigned) })
	return true
}

func (w *world) transfer(n *node) bool {
	t := n.anyTerm()
	to := w.anyone()
	if t == nil || to == n.candidate.ID {
		return false
	}
	n.doing(n.starts, func() {
		if !t.ended {
			t.to = to
			if w.chance(0.5) {
				t.toSess = w.sessionOf(to)
			}
			n.endHere(t, tenure.ErrTransferred)
		}
	})
	if w.chance(0.3) {
		w.after(w.between(0, 110*time.Millisecond), func() { w.forceSession(to) })
	}
	return true
}

// sessionOf is the session that a listing would find. It may be dead when it is used.
func (w *world) sessionOf(name string) store.SessionID {
	for _, n := range w.nodes {
		if n.candidate.ID == name {
			return n.sess
		}
	}
	return ""
}

// leave withdraws the campaign of a process for a group, for a while or for the rest
// of the run. Two processes always stay.
func (w *world) leave(n *node) bool {
	if n == w.nodes[0] || n == w.nodes[1] {
		n = w.nodes[len(w.nodes)-1]
	}
	g := w.groups[w.rand.IntN(len(w.groups))]
	if n.away[g] || !n.up {
		return false
	}
	if n.client != nil && n.client.way == lends {
		return false // it could not know what its campaign has won
	}
	n.away[g] = true
	starts := n.starts
	n.doing(starts, func() { n.withdraw(g) })
	if w.chance(0.7) || n.client != nil {
		w.after(w.between(100*time.Millisecond, 2*w.timing.TTL), func() {
			n.away[g] = false
			n.campaign(g, 0)
		})
	}
	return true
}

func (w *world) restartSink(*node) bool {
	s := w.sinks[w.groups[w.rand.IntN(len(w.groups))]]
	if s.down {
		return false
	}
	s.restart(w.until(w.between(10*time.Millisecond, time.Second)))
	return true
}

func (w *world) cutSink(n *node) bool {
	n.sinkLink.cutOut = true
	w.after(w.until(w.between(time.Second, 2*w.timing.TTL)), func() { n.sinkLink.heal() })
	return true
}

// setWall sets the wall clock, which only a planted bug reads.
func (w *world) setWall(n *node) bool {
	d := w.between(-5*time.Minute, 5*time.Minute)
	if w.cfg.Plant.Has(plant.WallClock) {
		n.wall += d
		if n.up && !n.paused {
			n.alarm()
		}
	}
	return true
}

// acquireHeld makes a process acquire a led group, with the version from the ledger.
func (w *world) acquireHeld(*node) bool {
	n, g := w.nodes[w.rand.IntN(len(w.nodes))], w.groups[w.rand.IntN(len(w.groups))]
	l := w.store.grants[g]
	if !n.up || n.paused || n.sess == l.holder || !w.store.alive(n.sess) || !w.store.alive(l.holder) {
		return false
	}
	n.try(store.Record{Group: g, Version: l.version})
	return true
}

// try acquires a group without the machine.
func (n *node) try(seen store.Record) {
	t := &task{call: &machine.Call{Kind: machine.CallAcquire, Session: n.sess, Seen: []store.Record{seen}}}
	var r *machine.Reply
	n.run(t, func() { r = n.ask(t.call) }, func() { n.w.store.answered(t, r) })
}

// slip writes with an implausible token.
func (w *world) slip(*node) bool {
	s := w.sinks[w.groups[w.rand.IntN(len(w.groups))]]
	if s.down || s.mark.Token == 0 {
		return false
	}
	_ = s.admit(s.mark.Token + 2_000_000)
	return true
}

// ppm draws the rate of a clock. Any two clocks differ by less than Timing.Drift, except in
// worlds with the trait driftBeyond.
func (w *world) ppm() int64 {
	bound := int64(w.timing.Drift * million * 0.49)
	if w.has(driftBeyond) {
		bound *= 20 // up to a fifth too fast or too slow
	}
	if bound == 0 {
		return 0
	}
	return w.rand.Int64N(2*bound+1) - bound
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x73696d)) }
