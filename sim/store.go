package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

const deployment = "sim"

// simStore is the engine: the one of store/mem, with its own clock. Every process has a
// kv.Store over it. The promises of store.Store are checked here, on the keys.
type simStore struct {
	w       *world
	clock   simClock
	engine  *mem.Engine
	caps    kv.Caps
	admin   *kv.Store // for operators
	down    bool
	since   instant // when the outage began
	streams []*stream
	wakeAt  instant

	backup        *mem.Snapshot
	incarnationID string // of the data: a restore may begin another one

	sessions map[store.SessionID]*session
	late     map[store.SessionID]*op  // delayed keep-alives
	leased   map[string]clock.Instant // end of the leases that have no session yet
	grants   map[string]*ledger
	epoch    uint64 // the last one that was raised

	backAt      instant        // when the last outage ended
	outage      time.Duration  // how long it took
	undisturbed map[*node]bool // the processes without another fault before it

	slow          time.Duration // largest delay of a call
	disk          time.Duration // of each commit, one after the other
	busyUntil     instant       // when the disk is free
	lag           time.Duration // of watches
	refuseWatches int           // how many more watches are refused
	grantsTTL     float64       // granted part of the requested TTL; 0: all of it
}

// session is what the checks know about a session.
type session struct {
	owner    *node
	instance string // the start of the process that opened it
	ttl      time.Duration
	beatAt   instant // when it was last renewed
	deadline clock.Instant
	closing  bool // its owner is closing it
	ended    bool
	forced   bool // closed by an operator
	lost     bool // in a rewind: a repeated call may begin it again
}

// ledger is the history of a group's grants.
type ledger struct {
	top      fence.Token
	version  uint64
	holder   store.SessionID
	by       map[fence.Token]store.SessionID
	endedAt  map[fence.Token]instant // when terms ended
	vacantAt instant                 // never: led
	tries    int                     // acquires since the vacancy
	// wrong are the grants that no process may rely on. With one key per transaction, a
	// session may die while a grant is made. An engine that lost data makes such grants until
	// a process notices it.
	wrong map[grantKey]*misgrant

	handedOver        bool      // the newest grant is a handover
	prepared          *misgrant // what was wrong with the newest grant when it was prepared
	grantedAt, usedAt instant
}

type grantKey struct {
	token   fence.Token
	session store.SessionID
}

// misgrant says which guarantee is broken if a process relies on a grant. excused: no process
// could notice that the grant is wrong.
type misgrant struct {
	guarantee, text string
	excused         bool
}

// holding is the session that leads a group, and its token.
type holding struct {
	Session store.SessionID `json:"session"`
	Token   fence.Token     `json:"token"`
}

// stored is the part of a record that the checks read. With one key per transaction, a grant
// is first prepared in the record, which keeps its version.
type stored struct {
	holding
	Version uint64 `json:"version"`
	Next    *struct {
		Record holding `json:"record"`
	} `json:"next"`
}

func parseRecord(i kv.Item) stored {
	r := stored{Version: i.Version}
	_ = json.Unmarshal(i.Value, &r)
	return r
}

// lives reports whether the item is the beat of a living session. The beat of a dead session
// is deleted, or says why the session ended.
func lives(beat kv.Item) bool {
	return beat.Version != 0 && !strings.Contains(string(beat.Value), `"ended"`)
}

func newStore(w *world) *simStore {
	s := &simStore{
		w:             w,
		clock:         simClock{offset: clock.Instant(w.rand.Int64N(int64(time.Hour))), ppm: w.ppm()},
		engine:        mem.NewEngine(w.cfg.Plant),
		caps:          w.caps,
		incarnationID: "life",
		wakeAt:        never,
		sessions:      map[store.SessionID]*session{},
		leased:        map[string]clock.Instant{},
		late:          map[store.SessionID]*op{},
		grants:        map[string]*ledger{},
		undisturbed:   map[*node]bool{},
	}
	s.admin = s.open(driver{s: s}, reading(s.now), func(f func()) { w.after(0, f) })
	for _, g := range w.groups {
		s.grants[g] = &ledger{by: map[fence.Token]store.SessionID{}, endedAt: map[fence.Token]instant{}, wrong: map[grantKey]*misgrant{}, vacantAt: 0}
	}
	return s
}

// open returns another client of the engine.
func (s *simStore) open(d kv.Driver, c clock.Clock, spawn func(func())) *kv.Store {
	w := s.w
	return kv.NewSimulated(d, kv.Config{
		Deployment: deployment, Drift: w.timing.Drift, Clock: c,
		Wall: func() time.Time { return time.Unix(0, int64(s.now())).UTC() },
	}.Planted(w.cfg.Plant), func() string {
		w.ids++
		return fmt.Sprintf("s%d", w.ids)
	}, spawn)
}

var background = context.Background()

func (s *simStore) now() clock.Instant { return s.clock.read(s.w.now) }

// alive reports whether the session is alive in the engine.
func (s *simStore) alive(id store.SessionID) bool {
	return id != "" && lives(s.engine.Get("beat/"+string(id)))
}

func (s *simStore) owner(id store.SessionID) *node {
	if i := s.sessions[id]; i != nil {
		return i.owner
	}
	return nil
}

func (s *simStore) forced(id store.SessionID) bool {
	return s.sessions[id] != nil && s.sessions[id].forced
}

var errCompacted = errors.New("the watch was compacted")

// refusesWatch reports whether a new watch fails: the store is down, or has compacted.
func (s *simStore) refusesWatch() bool {
	if s.refuseWatches > 0 && !s.down {
		s.refuseWatches--
		return true
	}
	return s.down
}

// receive serves an operation after the delay of the engine and its disk.
func (s *simStore) receive(write bool, done func()) {
	d := time.Duration(0)
	if s.slow > 0 {
		d = s.w.between(0, s.slow)
	}
	if write {
		if s.disk > 0 {
			// The queue is bounded, as in a real engine, which would refuse calls.
			s.busyUntil = min(max(s.busyUntil, s.w.now).add(s.disk), s.w.now.add(2*s.w.timing.CallTimeout))
		}
		if s.busyUntil > s.w.now {
			d += time.Duration(s.busyUntil - s.w.now)
		}
	}
	if d == 0 {
		done()
		return
	}
	s.w.after(d, done)
}

func (s *simStore) list(prefix, after string, limit int) []kv.Item {
	items := s.engine.List(s.now(), prefix, after, limit)
	s.publish()
	return items
}

func (s *simStore) incarnation() kv.Incarnation {
	return kv.Incarnation{ID: s.incarnationID, Index: s.engine.Index()}
}

func (s *simStore) grant(id string, ttl time.Duration) time.Duration {
	if s.grantsTTL > 0 {
		ttl = time.Duration(float64(ttl) * s.grantsTTL).Round(time.Millisecond)
		s.w.count(lessTTL)
	}
	now := s.now()
	lives := s.engine.Lives(now, id) // if true, the grant changes nothing
	granted := s.engine.Grant(now, id, ttl)
	if !lives {
		s.leased[id] = now.Add(granted)
	}
	s.publish()
	return granted
}

// revoke ends a lease, and the session that its owner closes. n is nil for an operator.
func (s *simStore) revoke(n *node, id string) {
	if i := s.sessions[store.SessionID(id)]; s.alive(store.SessionID(id)) && (n == nil || i.closing) {
		i.ended, i.forced = true, n == nil
		if n != nil {
			s.closed(store.SessionID(id))
		}
	}
	if s.w.trace != nil {
		s.w.log("store    is asked to revoke %s", id)
	}
	s.engine.Revoke(s.now(), id)
	s.publish()
}

// renew renews a lease, then reads. A leader of the engine that was replaced and does not know
// it may still acknowledge a keep-alive, which the new leader does not see. The new leader has
// started every TTL a moment ago, within the margin. Then n is cut off, so that the lost
// keep-alive matters.
func (s *simStore) renew(t *task, id string, read []string) (renewal, error) {
	now, n := s.now(), t.n
	s.engine.Expire(now)
	s.publish()
	i, lives := s.sessions[store.SessionID(id)], s.alive(store.SessionID(id))
	var meta struct {
		Rewound bool `json:"rewound"`
	}
	_ = json.Unmarshal(s.engine.Get("meta").Value, &meta)
	t.rewound = meta.Rewound && (t.rewound || !t.arrived)
	t.arrived, t.renewed = true, t.renewed || lives // the call may arrive twice
	if n.deposed && lives && !s.w.rewound {
		n.deposed = false
		ago := s.w.between(0, s.w.timing.Margin*9/10)
		s.engine.Restart(now.Add(-ago))
		for id, i := range s.sessions {
			if s.alive(id) {
				i.deadline = max(i.deadline, now.Add(i.ttl-ago))
			}
		}
		s.w.count(deposedAck)
		s.w.after(60*time.Millisecond, func() {
			n.link.cutOut, n.link.cutIn = true, true
			s.w.after(s.w.until(s.w.between(s.w.timing.TTL, 2*s.w.timing.TTL)), func() { s.w.reconnect(n) })
		})
		return renewal{i.ttl, s.commit(t, kv.Txn{Read: read})}, nil
	}
	ttl, err := s.engine.Renew(now, id)
	if err == nil && i != nil {
		i.deadline, i.beatAt = now.Add(ttl), s.w.now
	} else if err == nil {
		s.leased[id] = now.Add(ttl)
	}
	return renewal{ttl, s.commit(t, kv.Txn{Read: read})}, err
}

// commit commits a transaction of a task, or of an operator (nil), and checks its effect.
func (s *simStore) commit(t *task, x kv.Txn) kv.Result {
	now := s.now()
	s.engine.Expire(now)
	s.publish()
	var before []kv.Item
	for _, w := range x.Then {
		if strings.HasPrefix(w.Key, "record/") || strings.HasPrefix(w.Key, "beat/") {
			i := s.engine.Get(w.Key)
			i.Key = w.Key
			before = append(before, i)
		}
	}
	r := s.engine.Commit(now, x)
	if r.OK {
		for _, b := range before {
			after := s.engine.Get(b.Key)
			if group, ok := strings.CutPrefix(b.Key, "record/"); ok {
				s.wroteRecord(t, group, b, after)
			} else {
				s.wroteBeat(t, store.SessionID(strings.TrimPrefix(b.Key, "beat/")), b, after)
			}
		}
	}
	s.publish()
	r.Incarnation = s.incarnation().ID
	return r
}

// lastMoment delivers a delayed keep-alive just before the session is ended.
func (s *simStore) lastMoment(id store.SessionID) {
	if o := s.late[id]; o != nil && s.w.faulty && !s.down && s.w.chance(0.5) {
		delete(s.late, id)
		s.w.count(lateBeat)
		o.do()
	}
}

func (s *simStore) wroteBeat(t *task, id store.SessionID, before, after kv.Item) {
	i := s.sessions[id]
	switch {
	case !lives(before) && lives(after):
		if i != nil && !i.lost {
			s.w.broken("S1", "session id %s was used before", id)
		}
		var d struct {
			TTL int64 `json:"ttl_ms"`
		}
		_ = json.Unmarshal(s.engine.Get("session/"+string(id)).Value, &d)
		ttl := time.Duration(d.TTL) * time.Millisecond
		owner, start := t.owner()
		s.sessions[id] = &session{owner: owner, instance: start, ttl: ttl, beatAt: s.w.now, deadline: s.leased[string(id)]}
		if s.w.shards != nil {
			s.w.shards.opened[id] = s.w.now
		}
	case lives(after):
		i.beatAt = s.w.now
		if t != nil && t.call != nil && t.call.Kind == machine.CallBeat {
			t.renewed = true
		}
	case lives(before):
		i.ended = true
		switch {
		case t == nil:
			i.forced = true
		case t.call != nil && t.call.Kind == machine.CallClose && t.call.Session == id:
			s.closed(id)
		default:
			s.expired(t.n, id, i)
		}
	}
}

// closing notes that the owner of a session is about to close it.
func (s *simStore) closing(id store.SessionID) {
	if i := s.sessions[id]; i != nil {
		i.closing = true
	}
}

// closed checks G5: a session is closed only after its work has returned.
func (s *simStore) closed(id store.SessionID) {
	n := s.owner(id)
	for _, t := range n.terms {
		if t.session == id && !t.returned && n.up {
			s.w.broken("G5", "%s closes session %s while work of %s with token %d still runs", n.name, id, t.group, t.token)
		}
	}
}

// expired checks S5 for observed expiry: n may end a session that was silent for its TTL by the
// clock of n and, unless clocks drift beyond the bound, by true time.
func (s *simStore) expired(n *node, id store.SessionID, i *session) {
	w := s.w
	quiet := n.clock.read(w.now).Sub(n.clock.read(i.beatAt))
	if !w.lenient {
		quiet = min(quiet, time.Duration(w.now-i.beatAt))
	}
	if s.caps.Native || quiet < i.ttl {
		w.broken("S5", "%s ended session %s %v before its TTL had run out", n.name, id, i.ttl-quiet)
	}
	w.count(observedEnd)
	// The time of an outage must not count, because no process could renew.
	o := i.owner
	if since := time.Duration(w.now - s.backAt); s.outage > w.timing.TTL*6/10 && since < w.timing.TTL/4 && s.undisturbed[o] && o.up && !o.paused && o.sess == id && o.quietAt <= s.backAt.add(checkInterval) {
		w.broken("E1", "%s ended session %s of %s %v after an outage of %v", n.name, id, o.name, since, s.outage)
	}
}

// wroteRecord checks S1 to S4 and G1.
func (s *simStore) wroteRecord(t *task, group string, before, after kv.Item) {
	b, a := parseRecord(before), parseRecord(after)
	w, l := s.w, s.grants[group]
	if p := b.Next; p != nil && a.Next == nil && (a.holding == p.Record || a.holding == b.holding && a.Version == b.Version) {
		// A prepared grant is completed or cancelled. Any process may do this.
		if a.holding == p.Record {
			s.granted(t, group, a.holding)
		}
		return
	}
	if after.Version == 0 || t == nil || t.call == nil || b.Next != nil {
		w.broken("S3", "the record of %s was changed by nobody's call", group)
		return
	}
	if a.Token < b.Token {
		w.broken("S3", "the token of %s went back from %d to %d", group, b.Token, a.Token)
	}
	c := t.call
	seen, release := uint64(0), c.Kind == machine.CallRelease
	for _, r := range heldBy(c) {
		if r.Group == group {
			seen = r.Version
		}
	}
	to := a.holding
	if a.Next != nil {
		to = a.Next.Record
		if a.holding != b.holding || a.Version != b.Version {
			w.broken("S3", "the record of %s changed before a prepared grant was made", group)
		}
	}
	if to.Session == "" || to == b.holding {
		if !release || b.Version != seen || b.Session != c.Session {
			w.broken("S4", "a late release of version %d freed version %d of group %s", seen, b.Version, group)
		} else {
			s.checkReturned(group, c.Session, b.Token)
		}
		return
	}
	if release {
		s.checkReturned(group, c.Session, b.Token)
	}
	lives := s.alive(to.Session)
	handed := release && b.Session == c.Session
	switch {
	case !lives && s.caps.Keys > 1 && release:
		w.broken("S2", "group %s was handed to the dead session %s", group, to.Session)
	case !lives && s.caps.Keys > 1:
		w.broken("S1", "group %s was granted to the dead session %s", group, to.Session)
	case release && (!handed || b.Version != seen):
		w.broken("S4", "a late release of version %d handed over version %d of group %s", seen, b.Version, group)
	case w.rewound && s.caps.Keys == 1: // rewound between two steps: see granted
	case !release && s.alive(b.Session):
		w.broken("S2", "group %s was granted to %s while its holder %s lives", group, to.Session, b.Session)
	case !release && b.Version != seen:
		w.broken("S4", "group %s was granted from version %d, which the caller had not seen (%d)", group, b.Version, seen)
	}
	if t.won == nil {
		t.won = map[string]fence.Token{}
	}
	t.won[group] = to.Token
	l.prepared, l.handedOver = s.forbidden(group, to), handed
	if a.Next == nil {
		s.granted(t, group, to)
	}
}

// heldBy returns the records that a call names.
func heldBy(c *machine.Call) []store.Record {
	if c.Kind == machine.CallRelease {
		return c.Held
	}
	return c.Seen
}

// checkReturned checks G5.
func (s *simStore) checkReturned(group string, id store.SessionID, token fence.Token) {
	n := s.owner(id)
	for _, t := range n.terms {
		if t.group == group && t.session == id && t.token == token && !t.returned && n.up {
			s.w.broken("G5", "%s releases %s with token %d while its work still runs", n.name, t.group, t.token)
		}
	}
}

// forbidden says why a grant must not be made, or returns nil. A grant that was prepared before
// the epoch was raised, or before a cordon was acknowledged, may be completed later.
func (s *simStore) forbidden(group string, to holding) *misgrant {
	switch {
	case to.Token.Epoch() < s.epoch:
		return &misgrant{guarantee: "G1", text: fmt.Sprintf("group %s was granted with token %d of epoch %d, though the epoch was raised to %d", group, to.Token, to.Token.Epoch(), s.epoch)}
	case s.cordoned(to.Session):
		return &misgrant{guarantee: "E8", text: fmt.Sprintf("group %s was granted with token %d to %s after its cordon was acknowledged", group, to.Token, s.owner(to.Session).candidate.ID)}
	}
	return nil
}

// granted checks G1 and records the grant.
func (s *simStore) granted(t *task, group string, to holding) {
	w, l, token := s.w, s.grants[group], to.Token
	wrong := l.prepared
	switch {
	case w.rewound:
		// Wrong grants are excused until a process can notice the rewind: when an answer is
		// older than what it has seen before.
		marked := strings.Contains(string(s.engine.Get("meta").Value), `"rewound":true`)
		wrong = &misgrant{guarantee: "G1", text: fmt.Sprintf("group %s was granted with token %d by an engine that went back", group, token)}
		wrong.excused = !marked && (t == nil || t.n.high <= s.engine.Index() && (!w.newIncarnation || t.n.incarnation != s.incarnationID))
	case token <= l.top:
		w.broken("G1", "group %s was granted with token %d after token %d", group, token, l.top)
	case wrong == nil && !s.alive(to.Session) && !l.handedOver:
		wrong = &misgrant{guarantee: "S1", text: fmt.Sprintf("group %s was granted to the dead session %s", group, to.Session)}
	}
	if wrong != nil {
		l.wrong[grantKey{token, to.Session}] = wrong
		if s.caps.Keys > 1 && !w.rewound {
			w.broken(wrong.guarantee, "%s", wrong.text)
		}
	}
	if o, n := s.owner(l.by[l.top]), s.owner(to.Session); o != nil && n != nil && n != o && n.candidate.ID == o.candidate.ID {
		w.count(sameID)
	}
	if w.rewound {
		w.log("store    grants %s token %d to %s after it went back", group, token, to.Session)
		return
	}
	if l.vacantAt == never {
		l.endedAt[l.top] = w.now
	}
	l.top = max(l.top, token)
	l.by[token] = to.Session
	l.grantedAt = w.now
	if l.vacantAt != never {
		w.result.Vacant = append(w.result.Vacant, time.Duration(w.now-l.vacantAt))
	}
	l.vacantAt = never
	w.mix(1, uint64(token))
	if w.trace != nil {
		w.log("store    grants %s token %d to %s of %s", group, token, to.Session, s.owner(to.Session).name)
	}
}

// cordoned reports whether the node of the session is cordoned.
func (s *simStore) cordoned(id store.SessionID) bool {
	o := s.owner(id)
	return o != nil && s.w.cordons[o.candidate.ID]
}

// answered checks the answer that a process gets.
func (s *simStore) answered(t *task, r *machine.Reply) {
	c, w := t.call, s.w
	switch c.Kind {
	case machine.CallBeat:
		switch {
		case r.Err == nil && !t.renewed:
			w.broken("S1", "a keep-alive brought session %s back", c.Session)
		case r.Err == nil && t.rewound:
			w.broken("S3", "a keep-alive of session %s was acknowledged though the store went back and the epoch was not raised", c.Session)
		}
	case machine.CallOpen:
		owner, start := t.owner()
		if i := s.sessions[r.Session.ID]; r.Err == nil && (i == nil || i.owner != owner || i.instance != start) {
			w.broken("S1", "session id %s was used before", r.Session.ID)
		}
	case machine.CallAcquire:
		if r.Err != nil && store.Definite(r.Err) && s.caps.Keys > 1 {
			for _, seen := range c.Seen {
				if t.won[seen.Group] != 0 {
					w.broken("S4", "an acquire of %d groups was refused (%v), but %s was granted", len(c.Seen), r.Err, seen.Group)
				}
			}
		}
	}
	if c.Kind != machine.CallAcquire && c.Kind != machine.CallRelease || r.Err != nil {
		return
	}
	for _, rec := range r.Records {
		if f := s.grants[rec.Group].wrong[grantKey{rec.Token, rec.Holder}]; f != nil && !f.excused {
			w.broken(f.guarantee, "%s", f.text)
		}
	}
}

// renewed checks G4 for clients of the service: a renewal is acknowledged only for a term that
// had not ended when the call arrived.
func (s *simStore) renewed(r *request, arrived instant) {
	l := s.grants[r.groups[0]]
	if f := l.wrong[grantKey{r.term, r.session}]; f != nil && f.excused {
		return // granted before a process could notice the rewind
	}
	if end, over := l.endedAt[r.term]; (over && end < arrived || l.by[r.term] != r.session) && !s.w.rewound {
		s.w.broken("G4", "a renewal of %s for group %s with token %d was acknowledged, though that term was over", r.by.name, r.groups[0], r.term)
	}
}

// publish handles the engine's changes, sends them to the watches, and sets the timer for the
// next expiry.
func (s *simStore) publish() {
	for _, c := range s.engine.Changed() {
		s.changed(c)
		for _, st := range s.streams {
			st.send(c)
		}
	}
	at := s.clock.when(s.engine.NextExpiry())
	if at < s.wakeAt || s.wakeAt <= s.w.now {
		s.wakeAt = at
		if at < never {
			s.w.at(at, s.expire)
		}
	}
}

func (s *simStore) changed(c kv.Change) {
	if id, ok := strings.CutPrefix(c.Key, "beat/"); ok && !lives(*c.Item) {
		id := store.SessionID(id)
		if i := s.sessions[id]; i != nil && !i.ended {
			i.ended = true
			if now := s.now(); now < i.deadline {
				s.w.broken("S5", "session %s died %v before its TTL had run out", id, i.deadline.Sub(now))
			}
		}
		for _, g := range s.w.groups {
			if s.grants[g].holder == id {
				s.vacant(g)
			}
		}
	}
	if group, ok := strings.CutPrefix(c.Key, "record/"); ok {
		l := s.grants[group]
		if c.Item.Version < l.version {
			s.w.broken("S3", "the record of %s went back from version %d to %d", group, l.version, c.Item.Version)
		}
		s.show(group)
	}
}

// show updates the ledger from the record of a group.
func (s *simStore) show(group string) {
	l, i := s.grants[group], s.engine.Get("record/"+group)
	r := parseRecord(i)
	l.version, l.holder = i.Version, r.Session
	if s.alive(r.Session) {
		l.vacantAt = never
	} else {
		s.vacant(group)
	}
}

func (s *simStore) vacant(group string) {
	if l := s.grants[group]; l.vacantAt == never {
		// The tries after the winner's count too.
		s.w.result.Tries = append(s.w.result.Tries, l.tries)
		l.vacantAt, l.tries = s.w.now, 0
		l.endedAt[l.top] = s.w.now
		s.w.log("store    %s is vacant after token %d", group, l.top)
	}
}

func (s *simStore) expire() {
	s.wakeAt = never
	if !s.down {
		s.engine.Expire(s.now())
		s.publish()
	}
}

// loseStreams ends every watch, except those that are silent already.
func (s *simStore) loseStreams() {
	for _, st := range s.streams {
		if !st.silent {
			st.lose(time.Second)
		}
	}
}

// stop makes the store unreachable. start makes it reachable again and gives every
// lease its full TTL, as engines do.
func (s *simStore) stop() {
	s.down, s.since = true, s.w.now
	for _, n := range s.w.nodes {
		s.undisturbed[n] = n.quietFor() > s.w.timing.TTL
	}
	s.loseStreams()
}

func (s *simStore) start() {
	if !s.down {
		return
	}
	// G8: after more than a TTL without the store, no process may trust its lease.
	s.outage, s.backAt = time.Duration(s.w.now-s.since), s.w.now
	if s.outage > s.w.timing.TTL+s.w.timing.TTL/20 && !s.w.lenient {
		for _, n := range s.w.nodes {
			for _, t := range n.terms {
				if n.believes(t) {
					s.w.broken("G8", "%s believes that it leads %s after %v without the store", n.name, t.group, s.outage)
				}
			}
		}
	}
	s.down = false
	s.restarted()
	s.publish()
}

// restarted gives every living session its full TTL.
func (s *simStore) restarted() {
	s.engine.Restart(s.now())
	for id, i := range s.sessions {
		if s.alive(id) {
			i.deadline = s.now().Add(i.ttl)
		}
	}
}

// rewind restores the backup: the engine loses what it acknowledged since.
func (s *simStore) rewind() {
	s.engine.Restore(s.now(), s.backup)
	s.backup = nil
	if s.w.newIncarnation {
		s.incarnationID += "+"
	}
	s.loseStreams()
	for id, i := range s.sessions {
		i.ended = !s.alive(id)
		i.lost = i.ended
		i.deadline = s.now().Add(i.ttl)
	}
	for _, g := range s.w.groups {
		s.show(g)
		clear(s.grants[g].endedAt)
	}
	s.engine.Changed()
	s.publish()
}
