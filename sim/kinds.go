package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// kind says what a world is for. The seed decides it.
type kind uint8

const (
	// A plain world has the faults that occur in every deployment.
	plain kind = iota
	// A rich world has some of the traits below as well.
	rich
	// A drill has one disturbance at a time and strict expectations.
	drill
	// A served world has two instances of the election service with three clients, beside
	// two candidates that use the library.
	served
	// A sharded world has a set of shards that the processes share.
	sharded
)

// kindOf: of ten seeds three are rich worlds, two are served worlds, one is a drill and one has shards.
func kindOf(seed uint64) kind {
	switch seed % 10 {
	case 0, 1, 2:
		return rich
	case 3:
		return drill
	case 4:
		return sharded
	case 7, 9:
		return served
	default:
		return plain
	}
}

// trait is a property that most worlds do not have. It adds a fault, or changes the
// world from its start.
type trait uint8

const (
	slowStore trait = iota
	slowDisk
	deposedLeader
	laggingWatch
	compactedWatch
	driftBeyond
	slowSink
	fullSink
	restoredSink
	oneID
	manyGroups
	epochRaised
	shortTTL
	unknownAcquire
	traits
)

// traitFaults are the additional faults of worlds with the trait.
var traitFaults = [traits]*fault{
	slowStore:      {"slow store", 20, (*world).slowStore},
	slowDisk:       {"slow disk", 20, (*world).slowDisk},
	deposedLeader:  {"deposed engine leader", 40, (*world).depose},
	laggingWatch:   {"watches lag", 20, (*world).lagWatches},
	compactedWatch: {"watch compacted", 20, (*world).compact},
	slowSink:       {"slow sink", 15, (*world).slowSink},
	fullSink:       {"full sink", 15, (*world).fillSink},
	restoredSink:   {"sink restored", 20, (*world).restoreSink},
	epochRaised:    {"epoch raised", 10, (*world).raise},
	unknownAcquire: {"acquire without an answer", 20, (*world).loseAcquire},
}

// Other things that must occur in a run of many seeds. They are counted where they happen.
const (
	deposedAck    = "keep-alive acknowledged by a deposed leader"
	raisedAgain   = "epoch raised a second time"
	lessTTL       = "less TTL granted than requested"
	sameID        = "two processes with one id took turns"
	batched       = "acquire of a whole batch"
	batchReleased = "release of several groups"
	driftOverlap  = "two believers, clocks beyond the bound"
	slipAdvanced  = "mark advanced by an operator after a slip"
	observedEnd   = "session ended by an observer"
	lateBeat      = "keep-alive at the last moment"
	lateOpening   = "late step of an opening"
	refusedFull   = "write refused by a full sink"
	orderKept     = "first in line led after a vacancy"
	coolDownKept  = "cool-down respected"
	dropLate      = "dropped connection noticed late"
	dropUnseen    = "dropped connection never noticed"
	lateCopy      = "late copy of a client's call"
	callEnded     = "campaign ended because its client left or its instance stopped"
	lentWin       = "client led within its own session"
	retryWin      = "retry answered with the term of an earlier call"
	shardMoved    = "shard moved"
	shardPlaced   = "shard where the rules want it"
)

// Kinds lists everything that must occur at least once in a run of many seeds.
func Kinds() []string {
	names := []string{
		deposedAck, raisedAgain, lessTTL, sameID, batched, batchReleased, driftOverlap, slipAdvanced,
		observedEnd, lateBeat, lateOpening, refusedFull, orderKept, coolDownKept, dropLate, dropUnseen, lateCopy, callEnded, lentWin, retryWin, shardMoved, shardPlaced,
	}
	for _, f := range slices.Concat(faults, servedFaults, instanceFaults, shardFaults) {
		names = append(names, f.name)
	}
	for _, f := range traitFaults {
		if f != nil {
			names = append(names, f.name)
		}
	}
	for i := range drills {
		names = append(names, drills[i].name)
	}
	slices.Sort(names)
	return names
}

func (w *world) has(t trait) bool { return w.traits&(1<<t) != 0 }

// pickTraits draws the traits from a source of its own, so that they do not change plain
// worlds.
func (w *world) pickTraits() {
	if w.kind != rich {
		return
	}
	r := rand.New(rand.NewPCG(w.cfg.Seed, 0x747261697473))
	for range 2 + r.IntN(2) {
		w.traits |= 1 << r.IntN(int(traits))
	}
	if w.has(manyGroups) && r.IntN(2) == 0 {
		// These worlds are the slowest: keep only half of them.
		w.traits &^= 1 << manyGroups
	}
	if w.has(deposedLeader) {
		w.timing.Margin = max(w.timing.Margin, w.timing.TTL/40)
	}
	w.lenient = w.has(driftBeyond)
}

// pickGroups makes about a hundred groups in worlds with the trait manyGroups.
func (w *world) pickGroups() {
	if !w.has(manyGroups) {
		return
	}
	w.groups = nil
	for i := range 64 + w.rand.IntN(64) {
		w.groups = append(w.groups, "shard-"+string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	w.cfg.Duration /= 2
}

// pickEngine draws the capabilities of the engine, from a source of its own.
func (w *world) pickEngine() {
	r := rand.New(rand.NewPCG(w.cfg.Seed, 0x656e67696e65))
	w.caps = kv.Caps{MinTTL: 10 * time.Millisecond, MaxTTL: 24 * time.Hour, Keys: 512, Native: true, Ordered: true}
	if w.has(manyGroups) {
		w.caps.Keys = 104 // batches of 32
	}
	w.newIncarnation = r.IntN(2) == 0
	if w.cfg.Calm {
		return
	}
	switch r.IntN(6) {
	case 0:
		w.caps.Native, w.caps.Ordered = false, false
	case 1:
		w.caps.Native, w.caps.Ordered = false, false
		if !w.has(manyGroups) {
			w.caps.Keys = 1
		}
	case 2, 3:
		w.caps.Ordered = false
	}
	if !w.caps.Native {
		w.caps.MinTTL = w.timing.TTL
	}
	w.gaps = r.IntN(2) == 0
}

// pickNodes draws priorities, and gives two processes the same id.
func (w *world) pickNodes() {
	if w.kind == plain || w.kind == served || w.kind == sharded {
		return
	}
	for _, n := range w.nodes {
		if w.chance(0.4) {
			n.candidate.Priority = w.rand.IntN(3)
		}
	}
	if w.has(oneID) {
		w.nodes[1].candidate.ID = w.nodes[0].candidate.ID
	}
	if w.has(shortTTL) && w.caps.Native {
		w.store.grantsTTL = 0.6 + 0.35*w.rand.Float64()
	}
}

func (w *world) count(what string) { w.result.Faults[what]++ }

// slowStore delays every call, by different times.
func (w *world) slowStore(*node) bool {
	w.store.slow = w.between(50*time.Millisecond, w.timing.CallTimeout*3/2)
	w.after(w.until(w.between(time.Second, 3*w.timing.TTL)), func() { w.store.slow = 0 })
	return true
}

// slowDisk delays commits, one after the other. It does not delay keep-alives and reads.
func (w *world) slowDisk(*node) bool {
	w.store.disk = w.between(50*time.Millisecond, w.timing.CallTimeout)
	w.after(w.until(w.between(time.Second, 3*w.timing.TTL)), func() { w.store.disk = 0 })
	return true
}

// depose makes a replaced engine leader acknowledge the next keep-alive of n. The margin
// allows for this.
func (w *world) depose(n *node) bool {
	n.deposed = true
	return true
}

// lagWatches delays the watches, as if a lagging follower served them.
func (w *world) lagWatches(n *node) bool {
	s := w.store
	if s.down || s.lag > 0 {
		return false
	}
	s.lag = w.between(100*time.Millisecond, w.timing.TTL/2)
	w.after(w.until(w.between(time.Second, 3*w.timing.TTL)), func() { s.lag = 0 })
	for _, st := range s.streams {
		if st.n == n && w.chance(0.7) {
			st.lose(100 * time.Millisecond)
		}
	}
	w.ask(n, store.Transfer) // the machine then lists the sessions
	return true
}

// compact ends watches with an error after they have missed changes, and refuses new
// ones for a while.
func (w *world) compact(n *node) bool {
	all := w.chance(0.5)
	gap := w.until(w.between(0, 2*time.Second))
	bit := false
	for _, st := range w.store.streams {
		if (all || st.n == n) && st.open && !st.silent {
			bit = true
			st.open = false // changes are missed from here on
			w.after(gap, func() {
				st.fail(errCompacted)
			})
		}
	}
	if bit {
		w.store.refuseWatches = w.rand.IntN(4)
	}
	return bit
}

func (w *world) anySink() *sink { return w.sinks[w.groups[w.rand.IntN(len(w.groups))]] }

func (w *world) slowSink(*node) bool {
	s := w.anySink()
	s.slow = w.between(100*time.Millisecond, w.timing.TTL)
	w.after(w.until(w.between(time.Second, 3*w.timing.TTL)), func() { s.slow = 0 })
	return true
}

func (w *world) fillSink(*node) bool {
	s := w.anySink()
	s.full = true
	w.after(w.until(w.between(time.Second, 3*w.timing.TTL)), func() { s.full = false })
	return true
}

// restoreSink restores an older state of a sink. The operator keeps it down until its mark
// is the newest granted token and its sequence is at the last number that was handed out,
// as docs/fencing.md says.
func (w *world) restoreSink(*node) bool {
	s := w.anySink()
	if s.down {
		return false
	}
	if s.backup == nil {
		s.backup = &sinkBackup{mark: s.mark, seq: s.seq}
		return false
	}
	s.restore(w.until(w.between(10*time.Millisecond, 5*time.Second)))
	return true
}

// raise raises the epoch of a store that was not rewound, once or twice in a row.
func (w *world) raise(*node) bool {
	if w.store.down || w.rewound {
		return false
	}
	w.raiseEpoch()
	if w.chance(0.3) {
		w.raiseEpoch()
	}
	return true
}

// loseAcquire drops the answer to the next acquire of n, silences its watch, and withdraws
// its campaign: n must still find out the outcome.
func (w *world) loseAcquire(n *node) bool {
	n.loseNext = true
	return true
}

// drills are single disturbances. Each checks what must follow.
var drills = []struct {
	name string
	do   func(w *world, leader *node)
}{
	{"drill: crash", (*world).drillCrash},
	{"drill: resignation", (*world).drillResign},
	{"drill: step-down with a cool-down", (*world).drillStepDown},
	{"drill: step-down of the only candidate", (*world).drillOnly},
	{"drill: transfer", (*world).drillTransfer},
	{"drill: unhealthy", (*world).drillUnhealthy},
	{"drill: keep-alive lost", (*world).drillLostBeat},
	{"drill: engine restart", (*world).drillRestart},
	{"drill: crash while watches are silent", (*world).drillSilent},
}

// runDrills runs one drill after the other. In between all caches are updated.
func (w *world) runDrills() {
	w.healAt = never
	rest := 9*w.timing.Beat + 5*time.Second
	var next func()
	next = func() {
		leader := w.leader(w.groups[0])
		if leader == nil {
			w.broken("G7", "group %s has no leader %v after the last drill", w.groups[0], rest)
			return
		}
		w.allLed("before the next drill")
		d := &drills[w.rand.IntN(len(drills))]
		w.log("DRILL    %s, leader %s", d.name, leader.name)
		w.count(d.name)
		w.mix(5, uint64(len(d.name)))
		d.do(w, leader)
		w.after(w.between(rest, rest+10*time.Second)+4*w.timing.TTL, next)
	}
	w.after(rest, next)
	w.run(instant(w.cfg.Duration))
}

// firstInLine is the process that must lead next, leaving out but.
func (w *world) firstInLine(but *node) *node {
	living, _ := w.store.admin.Sessions(background, store.Scope{w.groups[0]}, store.Page{})
	var line machine.Roster
	feed := line.Feed()
	for _, l := range living {
		if n := w.store.owner(l.ID); n != but && n.sess == l.ID {
			feed(store.Update{Kind: store.SessionBegan, Session: l})
		}
	}
	for _, l := range living {
		n := w.store.owner(l.ID)
		if n != but && n.sess == l.ID && (len(w.groups) == 1 || line.Ahead(l, w.groups[0], "") == 0) {
			return n // candidates for one group are listed in the order of the line
		}
	}
	return nil
}

// expect checks after d that want leads, or that anybody does if want is nil.
func (w *world) expect(what string, want *node, d time.Duration) {
	group := w.groups[0]
	terms := w.result.Terms
	w.after(d, func() {
		n := w.leader(group)
		switch {
		case n == nil:
			w.broken("G7", "%s: group %s has no leader after %v", what, group, d)
		case want != nil && n != want:
			w.broken("E6", "%s: %s leads group %s, but %s was first in line", what, n.name, group, want.name)
		case want != nil && w.result.Terms != terms+1:
			w.broken("E6", "%s: %d terms of group %s began, want one", what, w.result.Terms-terms, group)
		case want != nil:
			w.count(orderKept)
		}
	})
}

// handover bounds a vacancy without an expiry: work returns within 100 ms, and the first in
// line acts when its watch shows the vacancy.
const handover = 500 * time.Millisecond

func (w *world) drillCrash(leader *node) {
	want := w.firstInLine(leader)
	leader.crash()
	w.expect("after a crash", want, w.expiry()+handover)
	w.after(w.timing.TTL*3/2, leader.start)
}

func (w *world) drillResign(leader *node) {
	want := w.firstInLine(leader)
	leader.endHere(leader.anyTerm(), tenure.ErrResigned)
	w.expect("after a resignation", want, handover)
}

func (w *world) askNow(leader *node, verb store.Verb, to string, coolDown time.Duration) {
	if !w.askOf(leader.anyTerm(), verb, to, coolDown) {
		w.broken("G7", "%s cannot be asked to %s", leader.name, verb)
	}
}

func (w *world) drillStepDown(leader *node) {
	w.askNow(leader, store.StepDown, "", w.between(time.Second, w.timing.TTL))
	w.expect("after a step-down", w.firstInLine(leader), w.timing.Beat+handover)
}

// drillOnly: there is no other candidate, so the group stays vacant during the cool-down.
func (w *world) drillOnly(leader *node) {
	group := w.groups[0]
	for _, n := range w.nodes {
		if n != leader {
			n.away[group] = true
			n.withdraw(group)
		}
	}
	token := leader.anyTerm().token
	coolDown := w.between(w.timing.TTL/2, w.timing.TTL)
	w.askNow(leader, store.StepDown, "", coolDown)
	w.after(coolDown-50*time.Millisecond, func() {
		if n := w.leader(group); n != nil && n.term(group).token != token {
			w.broken("E7", "%s leads group %s before its cool-down of %v is over", n.name, group, coolDown)
		}
	})
	w.after(coolDown+w.timing.Beat+3*time.Second, func() {
		if w.leader(group) != leader {
			w.broken("G7", "%s does not lead group %s again after its cool-down of %v", leader.name, group, coolDown)
		}
		w.count(coolDownKept)
		for _, n := range w.nodes {
			if n != leader {
				n.away[group] = false
				n.campaign(group, 0)
			}
		}
	})
}

func (w *world) drillTransfer(leader *node) {
	to := w.nodes[w.rand.IntN(len(w.nodes))]
	if to == leader {
		to = w.firstInLine(leader)
	}
	if w.chance(0.5) {
		w.askNow(leader, store.Transfer, to.candidate.ID, 0)
		w.expect("after a transfer that was asked for", to, w.timing.Beat+handover)
		return
	}
	t := leader.anyTerm()
	t.to = to.candidate.ID
	leader.endHere(t, tenure.ErrTransferred)
	w.expect("after a transfer", to, handover)
}

func (w *world) drillUnhealthy(leader *node) {
	w.expect("after a failed health check", w.firstInLine(leader), handover)
	w.makeUnhealthy(leader)
}

// drillLostBeat: at most one keep-alive is lost, and the leader must stay.
func (w *world) drillLostBeat(leader *node) {
	leader.link.cutOut, leader.link.cutIn = true, true
	w.after(w.between(w.timing.Beat/2, w.timing.Beat), func() { w.reconnect(leader) })
	w.stays("a keep-alive was lost", leader)
}

// drillRestart: the engine is down for less than the trust of a keep-alive.
func (w *world) drillRestart(leader *node) {
	w.store.stop()
	w.after(w.between(100*time.Millisecond, w.timing.Beat), w.store.start)
	w.stays("the engine restarted", leader)
}

func (w *world) stays(what string, leader *node) {
	token := leader.anyTerm().token
	w.after(2*w.timing.TTL, func() {
		if t := leader.term(w.groups[0]); t == nil || t.token != token {
			w.broken("E1", "%s lost group %s though only %s", leader.name, w.groups[0], what)
		}
	})
}

// drillSilent: all watches are silent, so the candidates notice the crash by their keep-alives.
func (w *world) drillSilent(leader *node) {
	for _, st := range w.store.streams {
		st.silent = st.open
	}
	leader.crash()
	bound := w.expiry() + 6*w.timing.Beat + handover
	w.expect("after a crash while watches are silent", nil, bound)
	w.after(bound+time.Second, func() {
		leader.start()
		for _, st := range w.store.streams {
			st.heal()
		}
	})
}

// sinkBackup is a backup of a sink.
type sinkBackup struct {
	mark fence.Mark
	seq  uint64
}
