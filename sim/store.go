package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/sim/model"
)

const deployment = "sim"

// store is the engine: the state of store/mem behind a clock of its own, with
// every promise of lease.Store checked from outside as it is used.
type store struct {
	w       *world
	clock   wheel
	state   *model.State
	down    bool
	since   instant // of the outage
	streams []*stream
	wakeAt  instant

	backup    *model.Snapshot
	rewinding bool

	// What we know without asking: S1 and S5 are checked against it.
	deadline map[lease.SessionID]clock.Instant
	ended    map[lease.SessionID]bool // closed, or gone with a rewind
	forced   map[lease.SessionID]bool // closed by an operator
	owner    map[lease.SessionID]*node
	instance map[lease.SessionID]string // the start of the process that opened it

	grants map[string]*ledger
	ttl    map[lease.SessionID]time.Duration // granted
	epoch  uint64                            // raised to

	slow          time.Duration   // of every call
	disk          time.Duration   // of every commit, one after the other
	busyUntil     instant         // the disk
	lag           time.Duration   // of what need not be linearizable
	oldLine       []lease.Session // what a follower that lags lists
	refuseWatches int             // so many more
	grantsTTL     float64         // of the TTL that is requested; 0: all of it
}

// ledger is the history of a group's grants.
type ledger struct {
	top      fence.Token
	version  uint64
	by       map[fence.Token]lease.SessionID
	vacantAt instant // never: led
	tries    int     // acquires since the vacancy

	handedOver        bool // the newest grant
	grantedAt, usedAt instant
	views             []stampedView // in worlds with stale reads
}

// stream is one watch.
type stream struct {
	n       *node
	life    int
	open    bool
	deaf    bool // dead, and nobody knows
	held    bool // the road is cut, and the messages wait
	last    instant
	feed    func(lease.Update)
	backlog []lease.Update
}

func newStore(w *world) *store {
	s := &store{
		w:        w,
		clock:    wheel{offset: clock.Instant(w.rand.Int64N(int64(time.Hour))), ppm: w.ppm()},
		state:    model.NewState(model.Options{Deployment: deployment, Plant: w.cfg.Plant}),
		wakeAt:   never,
		deadline: map[lease.SessionID]clock.Instant{},
		ended:    map[lease.SessionID]bool{},
		forced:   map[lease.SessionID]bool{},
		owner:    map[lease.SessionID]*node{},
		instance: map[lease.SessionID]string{},
		grants:   map[string]*ledger{},
		ttl:      map[lease.SessionID]time.Duration{},
	}
	if w.has(manyGroups) {
		s.state = model.NewState(model.Options{Deployment: deployment, Plant: w.cfg.Plant, Caps: lease.Caps{Batch: 32}})
	}
	for _, g := range w.groups {
		s.grants[g] = &ledger{by: map[fence.Token]lease.SessionID{}, vacantAt: 0}
	}
	return s
}

func (s *store) now() clock.Instant { return s.clock.read(s.w.now) }

// alive: by what was acknowledged, the session lives.
func (s *store) alive(id lease.SessionID) bool {
	d, ok := s.deadline[id]
	return ok && !s.ended[id] && s.now() < d
}

var errCompacted = errors.New("the watch was compacted")

// refusesWatch: the store is down, or what the watch would begin with is compacted.
func (s *store) refusesWatch() bool {
	if s.refuseWatches > 0 && !s.down {
		s.refuseWatches--
		return true
	}
	return s.down
}

// receive serves a call after as long as the store and its disk take.
func (s *store) receive(n *node, c *lease.Call, done func(*lease.Reply)) {
	d := time.Duration(0)
	if s.slow > 0 {
		d = s.w.between(0, s.slow)
	}
	switch c.Kind {
	case lease.CallOpen, lease.CallClose, lease.CallAcquire, lease.CallRelease, lease.CallAnswer:
		if s.disk > 0 {
			// An engine refuses work rather than queue it without a limit; here it speeds up.
			s.busyUntil = min(max(s.busyUntil, s.w.now).add(s.disk), s.w.now.add(2*s.w.timing.CallTimeout))
		}
		if s.busyUntil > s.w.now {
			d += time.Duration(s.busyUntil - s.w.now)
		}
	}
	if d == 0 {
		done(s.serve(n, c))
		return
	}
	s.w.after(d, func() { done(s.serve(n, c)) })
}

// open grants what the store has to give. A planted one gives a candidate the session
// that it has already, whichever process opened it.
func (s *store) open(now clock.Instant, n *node, c *lease.Call) (lease.Session, error) {
	ttl := c.TTL
	if s.w.cfg.Plant.Has(plant.AdoptSession) {
		line, _ := s.state.Sessions(now, n.scope, lease.Page{})
		for _, l := range line {
			if l.Candidate.ID == n.candidate.ID && s.owner[l.ID] != n {
				return l, nil
			}
		}
	}
	if s.grantsTTL > 0 {
		ttl = time.Duration(float64(ttl) * s.grantsTTL)
		s.w.saw(lessTTL)
	}
	return s.state.Open(now, n.candidate, ttl, lease.OpenOptions{Scope: n.scope, Instance: n.instance(), Attempt: c.Attempt, Successor: len(n.scope) == 1})
}

// acknowledge answers a keep-alive as a deposed leader of the engine does that does not
// know yet: the new one began to count every TTL a moment ago, and does not see this
// keep-alive. That moment is within the margin. Then n is cut off, which is when it
// would matter.
func (s *store) acknowledge(now clock.Instant, n *node, c *lease.Call, r *lease.Reply) {
	n.deposed = false
	ago := s.w.between(0, s.w.timing.Margin*9/10)
	s.state.Restart(now.Add(-ago))
	for id := range s.deadline {
		if s.known(id) && !s.ended[id] {
			s.deadline[id] = max(s.deadline[id], now.Add(s.ttl[id]-ago))
		}
	}
	r.Beat = lease.Beat{TTL: s.ttl[c.Session]}
	s.w.saw(deposedAck)
	s.w.after(60*time.Millisecond, func() {
		n.road.cutOut, n.road.cutIn = true, true
		s.w.after(s.w.until(s.w.between(s.w.timing.TTL, 2*s.w.timing.TTL)), func() { s.w.mend(n) })
	})
}

// serve does one call and checks what was done. It returns nil when the store is
// down.
func (s *store) serve(n *node, c *lease.Call) *lease.Reply {
	if s.down {
		return nil
	}
	now := s.now()
	s.state.Expire(now)
	s.publish()
	r := &lease.Reply{ID: c.ID}
	switch c.Kind {
	case lease.CallOpen:
		r.Session, r.Err = s.open(now, n, c)
		if r.Err == nil {
			if o, ok := s.owner[r.Session.ID]; ok && (o != n || s.instance[r.Session.ID] != n.instance()) {
				s.w.broken("S1", "session id %s was used before", r.Session.ID)
			}
			s.instance[r.Session.ID] = n.instance()
			s.deadline[r.Session.ID] = now.Add(r.Session.TTL)
			s.owner[r.Session.ID], s.ttl[r.Session.ID] = n, r.Session.TTL
		}
	case lease.CallBeat:
		if n.deposed && s.alive(c.Session) && !s.w.rewound {
			s.acknowledge(now, n, c, r)
		} else {
			s.keepAlive(now, c, r)
		}
	case lease.CallClose:
		s.close(now, n, c, r)
	case lease.CallAcquire:
		s.acquire(now, c, r)
	case lease.CallRelease:
		s.release(now, n, c, r)
	case lease.CallSessions:
		scope := lease.Scope{c.Group}
		r.Sessions, r.Err = s.state.Sessions(now, scope, lease.Page{})
		if s.lag > 0 {
			s.w.saw(staleLine)
			r.Sessions = slices.DeleteFunc(slices.Clone(s.oldLine), func(l lease.Session) bool { return !l.Scope.Overlaps(scope) })
		}
	case lease.CallRead:
		r.View, r.Err = s.state.Read(now, c.Group)
	case lease.CallAnswer:
		r.Err = s.state.Answer(now, c.Session, c.Request, c.Answer)
	}
	s.publish()
	return r
}

func (s *store) keepAlive(now clock.Instant, c *lease.Call, r *lease.Reply) {
	lived := s.alive(c.Session)
	r.Beat, r.Err = s.state.KeepAlive(now, c.Session, c.Groups...)
	meta, _ := s.state.Meta(now)
	switch {
	case r.Err == nil && meta.Rewound:
		s.w.broken("S3", "a keep-alive of session %s was acknowledged though the store went back and the epoch was not raised", c.Session)
	case r.Err == nil && !lived:
		s.w.broken("S1", "a keep-alive brought session %s back", c.Session)
	case errors.Is(r.Err, lease.ErrSessionDead) && lived:
		s.w.broken("S5", "session %s died %v before its TTL had run out", c.Session, s.deadline[c.Session].Sub(now))
	case r.Err == nil:
		s.deadline[c.Session] = now.Add(r.Beat.TTL)
	}
}

func (s *store) close(now clock.Instant, n *node, c *lease.Call, r *lease.Reply) {
	if s.alive(c.Session) {
		// G5: what is closed by its owner is not being worked on.
		for _, t := range n.terms {
			if t.session == c.Session && !t.returned && n.up {
				s.w.broken("G5", "%s closes session %s while work of %s with token %d still runs", n.name, c.Session, t.group, t.token)
			}
		}
	}
	r.Err = s.state.Close(now, c.Session, c.Reason)
	s.ended[c.Session] = true
}

func (s *store) acquire(now clock.Instant, c *lease.Call, r *lease.Reply) {
	lived := s.alive(c.Session)
	before := make([]lease.View, len(c.Seen))
	for i, seen := range c.Seen {
		before[i], _ = s.state.Read(now, seen.Group)
		s.grants[seen.Group].tries++
	}
	r.Records, r.Err = s.state.Acquire(now, c.Session, c.Seen...)
	for i, b := range before {
		if r.Err != nil {
			if after, _ := s.state.Read(now, b.Group); after.Version != b.Version {
				s.w.broken("S4", "an acquire of %d groups was refused (%v), but %s was granted", len(before), r.Err, b.Group)
			}
			continue
		}
		switch {
		case !lived:
			s.w.broken("S1", "group %s was granted to the dead session %s", b.Group, c.Session)
		case b.Holder != "" && s.alive(b.Holder):
			s.w.broken("S2", "group %s was granted to %s while its holder %s lives", b.Group, c.Session, b.Holder)
		case b.Version != c.Seen[i].Version:
			s.w.broken("S4", "group %s was granted from version %d, which the caller had not seen (%d)", b.Group, b.Version, c.Seen[i].Version)
		}
		s.granted(b.Group, r.Records[i].Token, c.Session)
	}
}

func (s *store) release(now clock.Instant, n *node, c *lease.Call, r *lease.Reply) {
	before := map[string]lease.View{}
	for _, held := range c.Held {
		v, _ := s.state.Read(now, held.Group)
		before[held.Group] = v
		for _, t := range n.terms {
			if t.group == held.Group && t.session == c.Session && t.token == held.Token && !t.returned && n.up && v.Version == held.Version {
				s.w.broken("G5", "%s releases %s with token %d while its work still runs", n.name, t.group, t.token)
			}
		}
	}
	if len(c.Held) > 1 {
		s.w.saw(batchReleased)
	}
	r.Records, r.Err = s.state.Release(now, c.Session, c.To, c.Reason, c.Held...)
	for i, held := range c.Held {
		v := before[held.Group]
		if r.Err != nil {
			if after, _ := s.state.Read(now, held.Group); after.Version != v.Version {
				s.w.broken("S4", "a release of %d groups was refused (%v), but %s was released", len(c.Held), r.Err, held.Group)
			}
			continue
		}
		if v.Version != held.Version || v.Holder != c.Session {
			s.w.broken("S4", "a late release of version %d freed version %d of group %s", held.Version, v.Version, held.Group)
		}
		if c.To != "" {
			if !s.alive(c.To) {
				s.w.broken("S2", "group %s was handed to the dead session %s", held.Group, c.To)
			}
			s.granted(held.Group, r.Records[i].Token, c.To)
			s.grants[held.Group].handedOver = true
		}
	}
}

// granted checks G1 and remembers.
func (s *store) granted(group string, token fence.Token, to lease.SessionID) {
	l := s.grants[group]
	if token <= l.top {
		s.w.broken("G1", "group %s was granted with token %d after token %d", group, token, l.top)
	}
	if token.Epoch() < s.epoch {
		s.w.broken("G1", "group %s was granted with token %d of epoch %d, though the epoch was raised to %d", group, token, token.Epoch(), s.epoch)
	}
	if o := s.owner[l.by[l.top]]; o != nil && s.owner[to] != o && s.owner[to].candidate.ID == o.candidate.ID {
		s.w.saw(sameID)
	}
	l.top = max(l.top, token)
	l.by[token] = to
	l.grantedAt, l.handedOver = s.w.now, false
	if l.vacantAt != never {
		s.w.result.Vacant = append(s.w.result.Vacant, time.Duration(s.w.now-l.vacantAt))
	}
	l.vacantAt = never
	s.w.mix(1, uint64(token))
	s.w.log("store    grants %s token %d to %s of %s", group, token, to, s.owner[to].name)
}

// publish tells the watches what has changed, and sets the alarm for the next
// expiry.
func (s *store) publish() {
	for _, u := range s.state.News() {
		for _, st := range s.streams {
			st.send(s.w, u)
		}
	}
	for _, group := range s.state.Changed() {
		v, err := s.state.Read(s.now(), group)
		if err != nil {
			continue
		}
		if l := s.grants[group]; v.Version < l.version && !s.rewinding {
			s.w.broken("S3", "the record of %s went back from version %d to %d", group, l.version, v.Version)
		} else {
			l.version = v.Version
		}
		if l := s.grants[group]; v.State == tenure.Vacant && l.vacantAt == never {
			// Those who tried after the winner count too.
			s.w.result.Tries = append(s.w.result.Tries, l.tries)
			l.vacantAt, l.tries = s.w.now, 0
			s.w.log("store    %s is vacant after token %d", group, v.Token)
		}
		if s.w.has(staleReads) {
			s.grants[group].remember(s.w.now, v)
		}
		for _, st := range s.streams {
			st.send(s.w, changed(v))
		}
	}
	at := s.clock.when(s.state.NextExpiry())
	if at < s.wakeAt || s.wakeAt <= s.w.now {
		s.wakeAt = at
		if at < never {
			s.w.at(at, s.expire)
		}
	}
}

func (s *store) expire() {
	if !s.down {
		s.state.Expire(s.now())
	}
	s.wakeAt = never
	if !s.down {
		s.publish()
	}
}

// subscribe starts a watch: the present views, the marker, then changes.
func (s *store) subscribe(n *node, life int) {
	st := &stream{n: n, life: life, open: true, feed: n.roster.Feed()}
	s.streams = append(s.streams, st)
	living, _ := s.state.Sessions(s.now(), n.scope, lease.Page{})
	for _, l := range living {
		st.send(s.w, lease.Update{Kind: lease.SessionBegan, Session: l})
	}
	if s.lag > 0 {
		s.subscribeStale(st)
		return
	}
	views, _ := s.state.Groups(s.now(), n.scope, lease.Page{})
	for _, v := range views {
		st.send(s.w, changed(v))
	}
	st.send(s.w, lease.Update{Kind: lease.Synced})
}

func changed(v lease.View) lease.Update { return lease.Update{Kind: lease.GroupChanged, View: v} }

// subscribeStale shows the snapshot of a follower that lags, and then what it catches
// up with.
func (s *store) subscribeStale(st *stream) {
	s.w.saw(staleView)
	var later []lease.View
	for _, g := range s.w.groups {
		var old *lease.View
		for i := range s.grants[g].views {
			if e := &s.grants[g].views[i]; e.at.add(s.lag) <= s.w.now {
				old = &e.v
			} else {
				later = append(later, e.v)
			}
		}
		if old != nil {
			st.send(s.w, changed(*old))
		}
	}
	st.send(s.w, lease.Update{Kind: lease.Synced})
	st.last = max(st.last, s.w.now.add(s.lag))
	for _, v := range later {
		st.send(s.w, changed(v))
	}
}

func (st *stream) send(w *world, u lease.Update) {
	n := st.n
	if !st.open || st.deaf {
		return
	}
	if n.road.cutIn {
		if st.held {
			st.backlog = append(st.backlog, u)
		}
		return
	}
	at := max(w.now.add(n.road.delay(n.road.slowIn)), st.last)
	st.last = at
	w.at(at, func() {
		if st.open && !st.deaf && n.stream == st.life {
			st.feed(u)
			switch u.Kind {
			case lease.Synced:
				n.synced, n.syncedAt = true, w.now
				n.deliver(lease.Event{Kind: lease.OnView, View: &lease.View{}})
			case lease.GroupChanged:
				n.deliver(lease.Event{Kind: lease.OnView, View: &u.View})
			}
		}
	})
}

// lose ends a watch; its process is told after a while.
func (st *stream) lose(w *world, within time.Duration) {
	if !st.open {
		return
	}
	st.open = false
	w.after(w.between(0, within), func() {
		if st.n.stream == st.life {
			st.n.deliver(lease.Event{Kind: lease.OnWatchLost, Cause: errReset})
		}
	})
}

func (st *stream) heal(w *world) {
	if st.held {
		st.held = false
		for _, v := range st.backlog {
			st.send(w, v)
		}
		st.backlog = nil
	}
	if st.deaf {
		st.deaf = false
		st.lose(w, time.Second)
	}
}

// loseStreams ends every watch. One that is deaf already stays so: nobody tells
// its process.
func (s *store) loseStreams() {
	s.streams = slices.DeleteFunc(s.streams, func(st *stream) bool {
		if !st.deaf {
			st.lose(s.w, time.Second)
		}
		return !st.deaf
	})
}

// stop makes the store unreachable; start brings it back with every lease at its
// full TTL, as engines do.
func (s *store) stop() {
	s.down, s.since = true, s.w.now
	s.loseStreams()
}

func (s *store) start() {
	if !s.down {
		return
	}
	// G8: whoever could not ask for longer than the TTL does not believe.
	if gone := time.Duration(s.w.now - s.since); gone > s.w.timing.TTL+s.w.timing.TTL/20 && !s.w.lenient {
		for _, n := range s.w.nodes {
			for _, t := range n.terms {
				if n.believes(t) {
					s.w.broken("G8", "%s believes that it leads %s after %v without the store", n.name, t.group, gone)
				}
			}
		}
	}
	s.down = false
	s.state.Restart(s.now())
	for id := range s.deadline {
		// What had run out during the outage is alive again, as with real engines:
		// nobody saw it dead.
		if s.known(id) && !s.ended[id] {
			s.deadline[id] = s.now().Add(s.ttl[id])
		}
	}
	s.publish()
}

// known: the state has the session.
func (s *store) known(id lease.SessionID) bool {
	_, err := s.state.Answered(s.now(), id, "nothing")
	return !errors.Is(err, lease.ErrSessionDead)
}

// rewind puts the backup back: the engine forgets what it had acknowledged.
func (s *store) rewind() {
	s.state.Restore(s.now(), s.backup)
	s.backup = nil
	s.loseStreams()
	for id := range s.deadline {
		lives := s.known(id)
		s.ended[id] = !lives
		if lives {
			s.deadline[id] = s.now().Add(s.ttl[id])
		}
	}
	s.rewinding = true
	s.publish()
	s.rewinding = false
}
