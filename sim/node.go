package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/internal/placement"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// node is one process: the real machine, a small shell, and work that writes while
// the process leads.
type node struct {
	w         *world
	name      string
	candidate tenure.Candidate
	scope     store.Scope
	clock     simClock
	asleep    time.Duration // planted bug: the time that a clock missed which stops in a suspend
	wall      time.Duration // planted bug: how far the wall clock was set

	up      bool
	starts  int // number of starts
	machine *machine.Machine
	roster  *machine.Roster
	store   *kv.Store
	engine  store.Store // the store, with the rules enforced in worlds with a service
	client  *client     // if the process is a client of the service; it has no machine
	serves  *instance   // if the process is an instance of the service; it has no machine
	sub     *kv.Sub     // the current watch
	wakeAt  instant

	tasks   []*task
	answers []func() // for tasks, held while paused
	waking  bool     // answers are being delivered after a pause: collect their events

	high        uint64 // highest index that the store has seen
	incarnation string // of the engine, in its last answer

	link     link // to the store
	sinkLink link

	paused   bool
	events   []machine.Event // held while paused
	doings   []func()        // of work, held while paused
	preWrite time.Duration   // pause this long between the next check and its write

	stream int // number of the current watch
	trust  clock.Instant
	sess   store.SessionID

	wants     map[string]bool // there is a campaign
	away      map[string]bool // does not want to lead
	terms     []*term         // not returned yet, or not ended
	begun     map[string]fence.Token
	hang      time.Duration // how long the next work takes to stop
	unhealthy bool
	reserve   map[string][]uint64 // planted bug: numbers that are handed out without asking the sink

	placed *placed // in worlds with shards

	deposed  bool // a deposed engine leader acknowledges the next keep-alive
	loseNext bool // the next acquire gets no answer

	// What the checks know about the process.
	quietAt    instant // when it was last disturbed
	livedAt    instant // when its session was last alive
	wantsAt    map[string]instant
	coolUntil  map[string]instant
	confirmed  map[string]fence.Token // granted, by a linearizable answer
	refused    map[string]refusal
	gaveUp     []gaveUp
	deadTold   store.SessionID
	sessOver   bool // the process no longer uses sess
	synced     bool // the watch has shown its snapshot
	syncedAt   instant
	callWindow instant
	callCount  int
}

// term is one leadership with its work.
type term struct {
	n        *node
	starts   int
	group    string
	token    fence.Token
	session  store.SessionID
	ended    bool
	cause    error
	returned bool
	to       string
	toSess   store.SessionID // the successor's session when the transfer was requested
	early    bool            // its work returned by itself
	leaving  bool            // work of a shard is about to return
	forced   bool            // an operator closed the session by force: G3 does not apply
	sealed   bool
	full     bool          // the sink was full
	until    clock.Instant // the end of trust of a client of the service
	wakeAt   instant
}

func newNode(w *world, name string) *node {
	n := &node{
		w:         w,
		name:      name,
		scope:     slices.Clone(w.groups),
		clock:     simClock{offset: clock.Instant(w.rand.Int64N(int64(time.Hour))) + 1, ppm: w.ppm()},
		begun:     map[string]fence.Token{},
		away:      map[string]bool{},
		wants:     map[string]bool{},
		reserve:   map[string][]uint64{},
		link:      link{w: w},
		sinkLink:  link{w: w},
		wakeAt:    never,
		candidate: tenure.Candidate{ID: name},
	}
	return n
}

func (n *node) now() clock.Instant {
	return n.clock.read(n.w.now) - clock.Instant(n.asleep) + clock.Instant(n.wall)
}

// instance is the id of this start of the process.
func (n *node) instance() string { return fmt.Sprintf("%s-start-%08d", n.name, n.starts) }

func (n *node) start() {
	n.up, n.paused = true, false
	n.starts++
	n.events, n.doings, n.terms = nil, nil, nil
	n.begun, n.confirmed = map[string]fence.Token{}, map[string]fence.Token{}
	n.wantsAt, n.coolUntil = map[string]instant{}, map[string]instant{}
	n.preWrite, n.hang, n.unhealthy, n.deposed, n.loseNext = 0, 0, false, false, false
	n.trust, n.sess, n.sessOver, n.deadTold = 0, "", false, ""
	n.gaveUp, n.quietAt, n.synced, n.refused = nil, n.w.now, false, map[string]refusal{}
	n.stream++
	n.sub, n.high, n.incarnation = nil, 0, ""
	n.wakeAt = never
	if n.client != nil {
		n.client.start()
	} else {
		n.store = n.w.store.open(driver{n.w.store, n}, reading(n.now), n.spawn)
		n.roster = &machine.Roster{}
		n.engine = n.store
	}
	if n.w.kind == served {
		n.engine = guard.Guard(n.engine, guardConfig(n.w.cfg.Plant))
	}
	if n.serves != nil {
		n.serves.start()
		return
	}
	if n.client == nil {
		n.machine = machine.New(machine.Config{
			Timing: machine.Timing(n.w.timing), Candidate: n.candidate, Scope: n.scope, Caps: n.store.Caps(), Line: n.roster,
			Seed: n.w.rand.Uint64(), Plant: n.w.cfg.Plant,
		})
	}
	if n.w.shards != nil {
		clear(n.wants)
		n.place()
		return
	}
	for _, g := range n.w.groups {
		n.wants[g] = false
		n.campaign(g, n.w.between(0, 100*time.Millisecond))
	}
}

// spawn runs background work of the store.
func (n *node) spawn(f func()) {
	n.soon(0, func() { n.run(&task{}, f, func() {}) })
}

func (n *node) crash() {
	n.up = false
	n.kill()
	n.stream++
	n.terms = nil
	n.machine = nil
	if n.client != nil {
		n.client.crashed()
	}
	n.w.log("%-8s crashes", n.name)
}

// campaign starts a campaign after a while, if the process can still use one then.
func (n *node) campaign(group string, after time.Duration) {
	n.soon(after, func() {
		if !n.wants[group] && !n.away[group] && !n.works(group) {
			n.wants[group], n.wantsAt[group] = true, n.w.now
			n.step(machine.Event{Kind: machine.OnCampaign, Group: group})
		}
	})
}

// works reports whether work of the group has not returned.
func (n *node) works(group string) bool {
	return slices.ContainsFunc(n.terms, func(t *term) bool { return t.group == group && !t.returned })
}

func (n *node) withdraw(group string) {
	if n.wants[group] {
		n.wants[group] = false
		n.step(machine.Event{Kind: machine.OnWithdraw, Group: group})
	}
}

// doing runs code of the process: after the pause if the process is paused, and not
// at all after a crash.
func (n *node) doing(starts int, f func()) {
	switch {
	case !n.up || n.starts != starts:
	case n.paused:
		n.doings = append(n.doings, f)
	default:
		f()
	}
}

// soon runs code of the process after a while.
func (n *node) soon(d time.Duration, f func()) {
	starts := n.starts
	n.w.after(d, func() { n.doing(starts, f) })
}

func (n *node) deliver(e ...machine.Event) {
	switch {
	case !n.up:
	case n.paused || n.waking:
		n.events = append(n.events, e...)
	default:
		n.step(e...)
	}
}

// pause stops the whole process. A suspend differs from a pause only for a clock that
// is not CLOCK_BOOTTIME.
func (n *node) pause(d time.Duration, suspend bool) {
	if !n.up || n.paused {
		return
	}
	starts := n.starts
	n.paused = true
	n.w.log("%-8s stands still for %v", n.name, d)
	began := n.w.now
	n.w.after(d, func() {
		if !n.up || n.starts != starts || !n.paused {
			return
		}
		n.paused = false
		if suspend && n.w.cfg.Plant.Has(plant.SuspendStops) {
			n.asleep += time.Duration(n.w.now - began)
		}
		n.w.log("%-8s goes on", n.name)
		answers := n.answers
		n.answers, n.waking = nil, true
		for _, f := range answers {
			f()
		}
		n.waking = false
		doings, events := n.doings, n.events
		n.doings, n.events = nil, nil
		// Machine or work may run first after a pause.
		machineFirst := n.w.chance(0.5)
		if machineFirst {
			n.step(events...)
		}
		for _, f := range doings {
			n.doing(starts, f)
		}
		if !machineFirst && n.up && n.starts == starts {
			n.step(events...)
		}
	})
}

// step is the shell: it steps the machine and does its actions.
func (n *node) step(events ...machine.Event) {
	switch {
	case !n.up:
		return
	case n.client != nil:
		n.client.step(events)
		return
	case n.serves != nil:
		n.serves.step(events)
		return
	}
	for i := range events {
		n.heard(&events[i])
	}
	actions := n.machine.Step(n.now(), events...)
	for i := range actions {
		n.act(&actions[i])
	}
	// M3, on which G3 depends: in a running process no term outlives its trust.
	for _, t := range n.terms {
		if !t.ended && n.now() >= n.trust {
			n.w.broken("G3", "%s: the term of %s with token %d outlives its trust", n.name, t.group, t.token)
		}
	}
	n.alarm()
}

// alarm sets the timer for the machine's next step.
func (n *node) alarm() { n.wake(&n.wakeAt, n.machine.Next, func() { n.step() }) }

// wake runs f when the clock of the process reaches next. set is when that is planned.
func (n *node) wake(set *instant, next func() clock.Instant, f func()) {
	i := next()
	if i != clock.Never {
		i += clock.Instant(n.asleep) - clock.Instant(n.wall)
	}
	at := max(n.clock.when(i), n.w.now)
	if at == never || *set > n.w.now && *set <= at {
		return // an earlier timer is set, and sets the next one
	}
	*set = at
	starts := n.starts
	n.w.at(at, func() {
		if *set != at || n.starts != starts {
			return
		}
		*set = never
		n.doing(starts, func() {
			if next() <= n.now() {
				f()
			} else {
				n.wake(set, next, f)
			}
		})
	})
}

func (n *node) act(a *machine.Action) {
	switch a.Kind {
	case machine.DoCall:
		n.call(a.Call)
	case machine.DoWatch:
		n.watch()
	case machine.DoTrust:
		n.sessOver = n.sessOver && n.sess == a.Session.ID
		n.trust, n.sess = a.Until, a.Session.ID
	case machine.DoBegin:
		n.begin(a.Record, 0)
	case machine.DoEnd:
		for _, t := range n.terms {
			if t.group == a.Group && t.token == a.Token && !t.ended {
				n.checkExpired(t, a.Cause)
				n.end(t, a.Cause)
			}
		}
	case machine.DoFail:
		n.wants[a.Group] = false
		if n.placed != nil {
			_, i := placement.Parse(a.Group)
			n.soon(0, func() { n.decide(placement.Event{Kind: placement.OnFailed, Shard: i, Retry: true}) })
		}
	case machine.DoOverrun:
		n.w.result.Overruns++
	case machine.DoNote:
		n.noted(&a.Note)
	}
}

func (n *node) call(c *machine.Call) {
	starts := n.starts
	n.w.result.Calls++
	if n.w.trace != nil {
		n.w.log("%-8s sends %s %s", n.name, c.Kind, c.Session)
	}
	n.checkCall(c)
	lost := false
	if c.Kind == machine.CallAcquire {
		n.w.atChange(n)
		for _, seen := range c.Seen {
			n.w.store.grants[seen.Group].tries++
		}
		lost = n.loseNext
		n.loseNext = false
	}
	if lost {
		n.quietAt = n.w.now
		n.w.silenceWatch(n)
		n.w.after(n.w.between(0, n.w.timing.CallTimeout), func() {
			n.doing(starts, func() { n.withdraw(c.Seen[0].Group) })
			n.campaign(c.Seen[0].Group, n.w.between(n.w.timing.TTL, 3*n.w.timing.TTL))
		})
	}
	sent, answered := n.w.now, false
	reply := func(r *machine.Reply) {
		if answered || n.starts != starts {
			return // a transport delivers one answer to each call
		}
		answered = true
		var wanted map[string]bool
		if c.Kind == machine.CallAcquire {
			wanted = maps.Clone(n.wants)
		}
		ready := n.up && !n.paused && !n.waking
		n.deliver(machine.Event{Kind: machine.OnReply, Reply: r})
		if ready && n.up {
			n.checkReply(c, r, sent, wanted)
		}
		if c.Kind == machine.CallBeat && errors.Is(r.Err, store.ErrSessionDead) && ready && n.up && n.w.now < sent.add(n.w.timing.TTL) {
			// The session is certainly dead: none of its terms may go on.
			for _, t := range n.terms {
				if t.session == c.Session && !t.ended {
					n.w.broken("G4", "%s goes on leading %s with token %d though its session is dead", n.name, t.group, t.token)
				}
			}
		}
	}
	var r *machine.Reply
	t := &task{call: c, mute: lost}
	n.run(t, func() { r = n.ask(c) }, func() {
		if r.Err != nil && n.w.trace != nil {
			n.w.log("%-8s is told of %s: %v", n.name, c.Kind, r.Err)
		}
		n.w.store.answered(t, r)
		reply(r)
	})
}

// ask makes a call as the shell does.
func (n *node) ask(c *machine.Call) *machine.Reply {
	if c.Kind == machine.CallOpen {
		if s, ok := n.adopt(); ok {
			return &machine.Reply{ID: c.ID, Session: s}
		}
	}
	if c.Kind == machine.CallRelease && len(c.Held) > 1 {
		n.w.count(batchReleased)
	}
	return c.Do(background, n.engine, n.candidate, store.OpenOptions{Scope: n.scope, Instance: n.instance(), Successor: len(n.scope) == 1})
}

// adopt is a planted bug: a candidate uses a session that another process opened with its id.
func (n *node) adopt() (store.Session, bool) {
	if n.w.cfg.Plant.Has(plant.AdoptSession) {
		line, _ := n.w.store.admin.Sessions(background, n.scope, store.Page{})
		for _, l := range line {
			if l.Candidate.ID == n.candidate.ID && n.w.store.owner(l.ID) != n {
				return l, true
			}
		}
	}
	return store.Session{}, false
}

// watch begins a watch that replaces the one before.
func (n *node) watch() {
	n.stream++
	n.synced = false
	stream := n.stream
	for _, t := range slices.Clone(n.tasks) {
		if t.watches {
			t.end()
		}
	}
	if n.sub != nil {
		n.sub.Close()
		n.sub = nil
		n.soon(0, n.overdue)
	}
	woken, feed := false, n.roster.Feed()
	take := func() {
		woken = false
		if n.stream == stream && n.sub != nil {
			n.take(feed)
		}
	}
	var sub *kv.Sub
	var err error
	n.run(&task{watches: true}, func() {
		sub, err = n.store.Subscribe(background, n.scope, func() {
			if !woken {
				woken = true
				n.soon(0, take)
			}
		})
	}, func() {
		if err != nil {
			n.deliver(machine.Event{Kind: machine.OnWatchLost, Cause: err})
			return
		}
		n.sub = sub
		n.take(feed)
	})
}

// take passes the updates of the watch on.
func (n *node) take(feed func(store.Update)) {
	updates, err := n.sub.Take()
	var events []machine.Event
	for i := range updates {
		feed(updates[i])
		switch u := &updates[i]; u.Kind {
		case store.GroupChanged:
			events = append(events, machine.Event{Kind: machine.OnView, View: &u.View})
		case store.Synced:
			n.synced, n.syncedAt = true, n.w.now
			events = append(events, machine.Event{Kind: machine.OnView, View: &store.View{}})
		}
	}
	if err != nil {
		n.sub = nil
		events = append(events, machine.Event{Kind: machine.OnWatchLost, Cause: err})
	}
	if len(events) > 0 {
		n.deliver(events...)
	}
}

// believes is what Term.Check would report now.
func (n *node) believes(t *term) bool {
	return n.up && n.starts == t.starts && !t.ended && n.now() < n.trusts(t)
}

// trusts is until when the process trusts its lease.
func (n *node) trusts(t *term) clock.Instant {
	if n.client != nil {
		return t.until
	}
	return n.trust
}

// begin begins a term. until is the end of trust of a client of the service.
func (n *node) begin(rec store.Record, until clock.Instant) *term {
	w := n.w
	t := &term{n: n, starts: n.starts, group: rec.Group, token: rec.Token, session: rec.Holder, forced: w.store.forced(rec.Holder), until: until}
	w.result.Terms++
	w.mix(2, uint64(t.token))
	w.log("%-8s begins %s token %d", n.name, t.group, t.token)
	l := w.store.grants[t.group]
	if f := l.wrong[grantKey{t.token, t.session}]; f != nil && f.excused {
		t.forced = true // no process could notice it
	} else if f != nil {
		w.broken(f.guarantee, "%s", f.text)
	}
	switch {
	case !n.wants[t.group]:
		w.broken("G4", "%s begins a term of %s with token %d without a campaign", n.name, t.group, t.token)
	case t.token <= n.begun[t.group]:
		w.broken("G4", "%s begins a term of %s with token %d after token %d", n.name, t.group, t.token, n.begun[t.group])
	case l.by[t.token] != t.session && !t.forced:
		w.broken("G4", "%s begins a term of %s with token %d, which was granted to session %q, not %q", n.name, t.group, t.token, l.by[t.token], t.session)
	case n.confirmed[t.group] < t.token:
		w.broken("G4", "%s begins a term of %s with token %d, which only its watch has shown", n.name, t.group, t.token)
	case w.store.owner(t.session) != n:
		w.broken("G4", "%s begins a term of %s with token %d on the session %s of another process", n.name, t.group, t.token, t.session)
	case n.client == nil && t.session != n.sess || n.now() >= n.trusts(t):
		w.broken("G4", "%s begins a term of %s with token %d on session %s that it does not trust", n.name, t.group, t.token, t.session)
	}
	n.begun[t.group] = t.token
	n.wants[t.group] = false
	for _, o := range w.nodes {
		for _, other := range o.terms {
			if other.group != t.group || o == n {
				continue
			}
			switch {
			case other.forced || t.forced: // G3 does not apply
			case w.lenient:
				if o.believes(other) {
					w.count(driftOverlap)
				}
			case o.believes(other):
				w.broken("G3", "%s begins to lead %s with token %d while %s believes in its token %d for another %v",
					n.name, t.group, t.token, o.name, other.token, o.trusts(other).Sub(o.now()))
			case other.ended || !o.up || o.starts != other.starts:
			case o.paused:
				w.result.Overlaps++
			default:
				w.broken("G3", "%s begins to lead %s with token %d while %s, which is not paused, was not told that its term with token %d is over",
					n.name, t.group, t.token, o.name, other.token)
			}
		}
	}
	n.terms = append(n.terms, t)
	w.atChange(n)
	if w.cfg.Plant.Has(plant.NoSeal) {
		t.sealed = true
		n.soon(0, func() { n.tick(t) })
		return t
	}
	if n.placed != nil {
		_, i := placement.Parse(t.group)
		n.soon(0, func() { n.decide(placement.Event{Kind: placement.OnWon, Shard: i}) })
		return t
	}
	n.seal(t)
	return t
}

// seal closes the sink to older leaders before the first write, as Lead does.
func (n *node) seal(t *term) {
	if t.ended || t.sealed {
		return
	}
	s := n.w.sinks[t.group]
	n.toSink(t, func() answer { return s.seal(t.token) }, func(a answer) {
		if t.ended {
			return
		}
		if a.err != nil {
			n.checkRefusedSeal(t, a.err)
			n.endHere(t, tenure.ErrResigned)
			return
		}
		t.sealed = true
		n.tick(t)
	})
	n.soon(time.Second, func() { n.seal(t) })
}

// tick is the work: it checks, writes, and repeats.
func (n *node) tick(t *term) {
	if t.ended {
		return
	}
	if !n.believes(t) {
		n.endHere(t, tenure.ErrExpired)
		return
	}
	for _, o := range n.w.nodes {
		for _, other := range o.terms {
			if o != n && other.group == t.group && other.token > t.token && o.believes(other) && !t.forced && !other.forced && !n.w.lenient {
				n.w.broken("G3", "%s passes its check for %s with token %d while %s believes in token %d", n.name, t.group, t.token, o.name, other.token)
			}
		}
	}
	if d := n.preWrite; d > 0 {
		n.preWrite = 0
		n.pause(d, false)
	}
	n.doing(t.starts, func() { n.write(t) })
	n.soon(n.w.between(400*time.Millisecond, 2*time.Second), func() { n.tick(t) })
}

// rest is how long a process waits after a term before it campaigns again.
func (n *node) rest(t *term) time.Duration {
	d := n.w.between(200*time.Millisecond, 2*time.Second)
	if t.full {
		d += n.w.between(5*time.Second, 15*time.Second)
	}
	return d
}

// write writes after a check, however long ago the check was.
func (n *node) write(t *term) {
	s := n.w.sinks[t.group]
	floor, floorBy := s.floor, s.floorBy
	if n.w.cfg.Plant.Has(plant.SequenceReserve) && len(n.reserve[t.group]) > 0 {
		r := n.reserve[t.group]
		n.reserve[t.group] = r[1:]
		s.handedOut(t.token, r[0], floor, 0)
		return
	}
	take := uint64(1)
	if n.w.cfg.Plant.Has(plant.SequenceReserve) {
		take = 10
	}
	n.toSink(t, func() answer { return s.write(t.token, take) }, func(a answer) {
		if errors.Is(a.err, errFull) {
			n.endHere(t, tenure.ErrResigned)
			return
		}
		if a.err != nil {
			// Refused: a newer leader has written.
			n.endHere(t, tenure.ErrLost)
			return
		}
		s.handedOut(t.token, a.first, floor, floorBy)
		for i := range take - 1 {
			n.reserve[t.group] = append(n.reserve[t.group], a.first+1+i)
		}
	})
}

func (n *node) toSink(t *term, there func() answer, back func(answer)) {
	s := n.w.sinks[t.group]
	n.sinkLink.there(func() {
		if s.down {
			return
		}
		s.receive(func() {
			a := there()
			t.full = t.full || errors.Is(a.err, errFull)
			n.sinkLink.back(func() { n.doing(t.starts, func() { back(a) }) })
		})
	}, func(error) {})
}

// endHere ends a term from the process's own side.
func (n *node) endHere(t *term, cause error) {
	if t.ended {
		return
	}
	t.early = true
	n.end(t, cause)
	n.step(machine.Event{Kind: machine.OnEnded, Group: t.group, Token: t.token, Cause: cause})
}

// end ends the term's context. Work returns after a while.
func (n *node) end(t *term, cause error) {
	n.ended(t, cause)
	if n.placed != nil {
		n.returns(t)
		return
	}
	d := n.w.between(0, 100*time.Millisecond)
	if n.hang > 0 {
		d, n.hang = n.hang, 0
	}
	n.soon(d, func() {
		n.gone(t)
		n.campaign(t.group, n.rest(t))
	})
}

func (n *node) ended(t *term, cause error) {
	t.ended, t.cause = true, cause
	n.w.mix(3, uint64(t.token))
	n.w.result.Endings[endingName(cause)]++
	n.w.log("%-8s ends %s token %d: %v", n.name, t.group, t.token, cause)
	n.w.atChange(n)
}

// gone tells the machine that work has returned.
func (n *node) gone(t *term) {
	t.returned = true
	n.terms = slices.DeleteFunc(n.terms, func(o *term) bool { return o == t })
	if n.client != nil {
		n.client.returned(t)
	} else {
		n.step(machine.Event{Kind: machine.OnReturned, Group: t.group, Token: t.token, To: t.to, Session: t.toSess})
	}
}

func endingName(cause error) string {
	for name, c := range map[string]error{
		"expired": tenure.ErrExpired, "lost": tenure.ErrLost, "resigned": tenure.ErrResigned,
		"transferred": tenure.ErrTransferred, "unhealthy": tenure.ErrUnhealthy,
	} {
		if errors.Is(cause, c) {
			return name
		}
	}
	return "?"
}
