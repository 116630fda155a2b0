package machine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// groupState is what the machine knows about one group.
type groupState struct {
	group string
	order int
	wants bool // there is a campaign
	once  bool // it fails if another leads, instead of waiting

	view  store.View
	known bool // view comes from the present watch, or is newer
	// behindAt is when a keep-alive first read a record that the watch has not shown.
	behindAt clock.Instant

	// spent is the highest token that must not begin a term in this process: it has begun
	// one before, was released, or was seen with another holder.
	spent fence.Token

	hold     *hold // the grant, if the record names the current session
	lostHold *hold // a grant that was lost while its work still runs

	call       uint64 // the acquire in flight
	tried      bool   // an acquire was sent, and was not refused
	unsure     bool   // an acquire from version unsureAt has an unknown outcome
	unsureAt   uint64
	alone      bool // send it in a call of its own: a batch failed because of one of its records
	confirming bool
	fails      int
	goesLast   bool // this process gave the group up: it tries after all others

	tryAt     clock.Instant
	rank      int           // how many candidates try before this one
	from      clock.Instant // when the wait for them began
	readAt    clock.Instant
	notBefore clock.Instant

	wake   clock.Instant
	place  int // in wakes, -1: none
	active bool
	vacant bool // there is a campaign, and nobody leads
}

type phase uint8

const (
	leading   phase = iota + 1
	ending          // the term has ended, work has not returned
	releasing       // work has returned
)

// hold is a grant to a session of this machine.
type hold struct {
	session   *session
	record    store.Record
	phase     phase
	cause     error
	why       store.Reason
	returned  bool
	to        string          // node id of the successor
	toSession store.SessionID // its session, once found
	toFirst   bool            // no successor is named: hand over to the first in line, if any
	alone     bool            // send it in a call of its own: a batch failed because of one of its records
	toHint    bool            // toSession was found before work returned, and may be dead by now
	toErr     error           // why the successor cannot take over
	toIgnored error           // an operator's request named another successor before the holder did
	requests  []string
	fails     int
	call      bool
	retryAt   clock.Instant
	overrunAt clock.Instant
}

// unreturned is a grant whose work has not returned, or nil.
func (s *groupState) unreturned() *hold {
	for _, h := range [...]*hold{s.hold, s.lostHold} {
		if h != nil && !h.returned {
			return h
		}
	}
	return nil
}

func (s *groupState) leads() bool { return s.hold != nil && s.hold.phase == leading }

// group returns the state of a group, and creates it if necessary.
func (m *Machine) group(group string) *groupState {
	s := m.groups[group]
	if s == nil {
		s = &groupState{group: group, order: len(m.order), place: -1, tryAt: clock.Never, readAt: clock.Never, behindAt: clock.Never}
		m.groups[group] = s
		m.order = append(m.order, s)
	}
	return s
}

// idleAfter is how long a session stays open with nothing to do: long enough for a
// process that has just given up a group to campaign again.
const idleAfter = 100 * time.Millisecond

// update brings the group's timers, and whether the machine needs a session, up to
// date. It must be called after every change of a groupState.
func (m *Machine) update(s *groupState) {
	if s.wants && s.once {
		if err := m.onceError(s); err != nil {
			m.fail(s, err)
		}
	}
	active := s.wants && m.unhealthy == nil || s.unsure || s.hold != nil
	if active != s.active {
		s.active = active
		if active {
			m.actives++
		} else {
			m.actives--
		}
	}
	if vacant := s.wants && s.known && s.view.State == tenure.Vacant; vacant != s.vacant {
		s.vacant = vacant
		if vacant {
			m.vacancies++
			if m.vacancies >= m.mostVacant || m.now > m.mostAt.Add(m.cfg.Timing.TTL) {
				m.mostVacant, m.mostAt = m.vacancies, m.now
			}
		} else {
			m.vacancies--
		}
	}
	switch {
	case m.stopping || m.lent():
	case m.actives == 0 && m.session != nil:
		// Leaders must not choose a session as the successor that neither leads nor
		// campaigns: its process may be backing off for a long time.
		if m.idleAt == clock.Never {
			m.idleAt = max(m.now.Add(idleAfter), m.answerBy)
		}
	default:
		m.idleAt = clock.Never
		if m.session == nil && !m.opening && m.openAt == clock.Never && m.actives > 0 {
			m.openAt = m.now
		}
	}

	wake := min(s.tryAt, s.readAt)
	for _, h := range [...]*hold{s.hold, s.lostHold} {
		if h != nil {
			wake = min(wake, h.retryAt)
			if !h.returned {
				wake = min(wake, h.overrunAt)
			}
		}
	}
	s.wake = wake
	m.wakes.fix(s, wake != clock.Never)
}

// fire handles the timers of the group that are due.
func (s *groupState) fire(m *Machine) {
	if m.now >= s.tryAt {
		s.tryAt = clock.Never
		if later := s.from.Add(m.wait(s.rank)); later > m.now {
			s.tryAt = later // more groups fell vacant meanwhile, so the others need longer
		} else {
			m.acquires = append(m.acquires, s)
		}
	}
	if m.now >= s.readAt {
		s.readAt = clock.Never
		m.reads = append(m.reads, s)
	}
	if h := s.hold; h != nil && m.now >= h.retryAt {
		h.retryAt = clock.Never
		m.releases = append(m.releases, s)
	}
	for _, h := range [...]*hold{s.hold, s.lostHold} {
		if h == nil || h.returned || m.now < h.overrunAt {
			continue
		}
		h.overrunAt = clock.Never
		if h == s.hold {
			// It still holds the group, so nobody else can lead: report it again.
			h.overrunAt = m.now.Add(m.cfg.Timing.Window())
		}
		m.note(Note{Kind: NoteOverrun, Group: s.group, Token: h.record.Token, Err: h.cause})
		m.do(Action{Kind: DoOverrun, Group: s.group, Token: h.record.Token, Cause: h.cause})
	}
	m.update(s)
}

func (m *Machine) campaign(s *groupState, once bool) {
	if m.stopping {
		m.do(Action{Kind: DoFail, Group: s.group, Cause: ErrClosed})
		return
	}
	if s.leads() {
		m.do(Action{Kind: DoFail, Group: s.group, Cause: fmt.Errorf("lease: group %q is led by this node already, with token %d", s.group, s.hold.record.Token)})
		return
	}
	if h := s.unreturned(); h != nil {
		m.do(Action{Kind: DoFail, Group: s.group, Cause: fmt.Errorf("lease: work of this node for group %q with token %d has not returned: resign that term first", s.group, h.record.Token)})
		return
	}
	if m.lent() && m.session == nil {
		m.do(Action{Kind: DoFail, Group: s.group, Cause: fmt.Errorf("lease: campaign for group %q: %w", s.group, store.ErrSessionDead)})
		return
	}
	s.wants, s.once = true, once
	switch {
	case m.watching == watchOff && m.watchAt == clock.Never:
		m.watch()
	case m.watching == watchSynced && !s.known:
		m.apply(s, VacantFromTheStart(s.group), fromWatch, 0)
	}
	m.schedule(s)
	m.update(s)
}

// onceError says why a campaign that does not wait must fail.
func (m *Machine) onceError(s *groupState) error {
	switch {
	case m.unhealthy != nil:
		return fmt.Errorf("this process is not healthy: %w", m.unhealthy)
	case m.now < s.notBefore:
		return fmt.Errorf("this process was asked to step down, and does not try for another %v", s.notBefore.Sub(m.now))
	case s.known && s.view.State == tenure.Led && (m.session == nil || s.view.Holder != m.session.ID):
		return fmt.Errorf("%w: %q, with token %d", ErrLed, s.view.Candidate.ID, s.view.Token)
	}
	return nil
}

// withdraw ends a campaign. If an acquire has an unknown outcome, the machine still
// finds it out, and releases what the acquire has won.
func (m *Machine) withdraw(s *groupState) {
	s.wants = false
	s.goesLast = false
	if m.cfg.Plant.Has(plant.ForgetUnsure) {
		s.unsure = false
	}
	if m.session != nil && s.known && s.view.State == tenure.Led && s.view.Holder == m.session.ID {
		// The watch has shown the grant before the reply to the acquire came.
		m.namesUs(s, s.view.Record, false)
	}
	m.schedule(s)
	m.update(s)
}

// fail ends a campaign with an error.
func (m *Machine) fail(s *groupState, err error) {
	if !s.wants {
		return
	}
	m.do(Action{Kind: DoFail, Group: s.group, Cause: fmt.Errorf("lease: campaign for group %q: %w", s.group, err)})
	m.withdraw(s)
}

// failAll ends every campaign if the error is permanent.
func (m *Machine) failAll(err error) {
	if !store.Permanent(err) {
		return
	}
	for _, s := range m.order {
		m.fail(s, err)
	}
}

// schedule decides when to try for the group.
func (m *Machine) schedule(s *groupState) {
	if !s.eligible(m) {
		s.tryAt = clock.Never
		return
	}
	if s.call != 0 {
		return
	}
	at, rank := m.now, 0
	if s.wants {
		if !m.lineKnown {
			return // onView calls schedule again when the watch has shown the candidates
		}
		rank = m.rank(s)
		at = max(at.Add(m.wait(rank)), s.notBefore)
	}
	if at < s.tryAt {
		s.tryAt, s.rank, s.from = at, rank, m.now
	}
}

// wait is how long the candidates before this one need to acquire the vacant groups. Every
// candidate is the first in line for a share of the groups, and acquires it in batches.
func (m *Machine) wait(rank int) time.Duration {
	if rank == 0 {
		return 0
	}
	share := m.mostVacant / max(1, m.cfg.Line.Len())
	rounds := 1 + share/(m.cfg.Caps.Batch*maxInFlight[CallAcquire])
	return time.Duration(rank) * min(time.Duration(rounds)*m.step(), max(m.step(), m.cfg.Timing.TTL/4))
}

// eligible reports whether the machine may acquire the group, and wants it.
func (s *groupState) eligible(m *Machine) bool {
	return (s.wants || s.unsure) && s.hold == nil && s.known && s.view.State == tenure.Vacant &&
		m.session != nil && m.unhealthy == nil && !m.stopping
}

func (m *Machine) sendAcquires() {
	for len(m.acquires) > 0 && m.mayCall(CallAcquire) {
		var batch []*groupState
		var seen []store.Record
		i := 0
		for ; i < len(m.acquires) && len(batch) < m.cfg.Caps.Batch; i++ {
			s := m.acquires[i]
			if !s.eligible(m) || s.call != 0 {
				continue
			}
			if s.alone && len(batch) > 0 {
				break
			}
			batch = append(batch, s)
			seen = append(seen, s.view.Record)
			s.call, s.tried = m.nextID+1, true
			if s.alone {
				i++
				break
			}
		}
		m.acquires = append(m.acquires[:0], m.acquires[i:]...)
		if len(batch) > 0 {
			m.note(Note{Kind: NoteTry, Group: batch[0].group, Count: len(batch)})
			m.send(&Call{Kind: CallAcquire, Session: m.session.ID, Seen: seen}, m.session, batch...)
		}
	}
}

func (m *Machine) acquired(f *flight, r *Reply) {
	for _, s := range f.groups {
		if s.call == f.ID {
			s.call = 0
		}
		if r.Err != nil && store.Definite(r.Err) {
			s.tried = s.unsure
		}
	}
	var conflict *store.ConflictError
	var bar *store.BarError
	switch {
	case r.Err == nil:
		m.won(f, r)
	case f.session != m.session:
	case errors.Is(r.Err, store.ErrSessionDead):
		m.endSession(tenure.ErrLost, store.Lost, false)
	case errors.As(r.Err, &conflict):
		m.conflicted(f, conflict)
	default:
		m.note(Note{Kind: NoteFailed, Call: CallAcquire.String(), Group: f.groups[0].group, Count: len(f.groups), Err: r.Err})
		for i, s := range f.groups {
			if !store.Definite(r.Err) && s.view.Version == f.Seen[i].Version {
				s.unsure, s.unsureAt = true, s.view.Version
			}
			switch {
			case errors.As(r.Err, &bar) && bar.For(s.group) == nil && s.eligible(m):
				s.tryAt = m.now // this time without the barred ones
				m.update(s)
				continue
			case store.Permanent(r.Err) && len(f.groups) == 1:
				s.alone = false
				m.fail(s, r.Err)
			case store.Permanent(r.Err) || bar != nil && bar.Group != "":
				// One group of the batch may be the cause: try each by itself.
				s.alone = true
			}
			m.again(s)
		}
	}
}

// won handles a successful acquire. It begins terms only if the session of the call
// is still the current one.
func (m *Machine) won(f *flight, r *Reply) {
	if f.session == m.session && m.cfg.Plant.Has(plant.TrustFromWin) {
		m.extend(m.session, m.now, m.session.TTL)
	}
	for i, s := range f.groups {
		if f.session != m.session && m.cfg.Plant.Has(plant.BeginUntrusted) {
			m.begin(s, r.Records[i], f.session)
			continue
		}
		s.alone = false
		m.apply(s, store.View{Record: r.Records[i], State: tenure.Led}, fromRead, 0)
	}
}

// conflicted handles a refused batch: it applies the views that the store returned,
// and tries the other groups again.
func (m *Machine) conflicted(f *flight, c *store.ConflictError) {
	m.note(Note{Kind: NoteConflict, Group: f.groups[0].group, Count: len(f.groups), Err: c})
	shown := make(map[string]store.View, len(c.Current))
	for _, v := range c.Current {
		shown[v.Group] = v
	}
	for i, s := range f.groups {
		if v, ok := shown[s.group]; ok {
			s.alone = false
			m.apply(s, v, fromConflict, f.Seen[i].Version)
			if s.tryAt == clock.Never {
				m.again(s)
			}
			continue
		}
		s.alone = len(shown) == 0
		if len(f.groups) > 1 && s.eligible(m) {
			s.tryAt, s.rank = m.now, 0
			m.update(s)
		} else {
			m.again(s)
		}
	}
}

// again schedules another try after a backoff.
func (m *Machine) again(s *groupState) {
	if m.session != nil && s.known && s.hold == nil && s.view.Holder == m.session.ID {
		// The watch has shown the grant before the reply to the acquire came.
		m.apply(s, s.view, fromWatch, 0)
	}
	if s.eligible(m) {
		s.rank = 0
		s.tryAt = max(m.now.Add(m.cfg.Timing.BackoffMin/2+m.backoff(s.fails)), s.notBefore)
		s.fails++
	}
	m.update(s)
}

// source says where a view comes from.
type source uint8

const (
	fromWatch    source = iota
	fromRead            // a linearizable answer
	fromConflict        // a refused compare-and-set
)

// newer orders the views of one group: versions grow, and a holder dies once.
func newer(a, b *store.View) bool {
	return a.Version > b.Version || a.Version == b.Version && a.State == tenure.Vacant && b.State == tenure.Led
}

// apply applies a view. tried is the version that a refused compare-and-set expected.
func (m *Machine) apply(s *groupState, v store.View, from source, tried uint64) {
	fresh := newer(&v, &s.view) ||
		// A new watch may replace a newer version by an older one.
		!s.known && (from == fromWatch || v.Version == s.view.Version && s.view.State != tenure.Vacant) ||
		// The store has an older version than before the call: it was rewound.
		from == fromConflict && v.Version < tried ||
		m.cfg.Plant.Has(plant.BeginOnOldRecord)
	if !fresh && (v.Version != s.view.Version || v.State != s.view.State) {
		return // overtaken
	}
	if fresh {
		s.view, s.known, s.behindAt = v, true, clock.Never
	}
	ours := m.session != nil && v.Holder == m.session.ID
	if !ours {
		s.spent = max(s.spent, v.Token)
	}
	if s.unsure && v.Version > s.unsureAt {
		s.unsure = false
	}
	if h := s.hold; h != nil && fresh && (v.Version != h.record.Version || v.Holder != h.record.Holder) {
		m.moved(s)
	}
	switch {
	case ours && v.State == tenure.Led:
		m.namesUs(s, v.Record, from != fromWatch)
	case ours:
		// The store says that our session is dead.
		m.endSession(tenure.ErrLost, store.Lost, false)
		return
	case v.State == tenure.Led && fresh:
		s.tryAt, s.fails, s.goesLast = clock.Never, 0, false
	case fresh:
		m.schedule(s)
	}
	m.update(s)
}

// namesUs handles a record that names the current session.
func (m *Machine) namesUs(s *groupState, rec store.Record, confirmed bool) {
	if s.hold != nil {
		return
	}
	if h := s.lostHold; h != nil && h.record.Token == rec.Token && h.session == m.session {
		// The grant was not lost after all. Its term has ended, but work has not returned:
		// keep the grant until it has.
		s.hold, s.lostHold = h, nil
		h.record = rec
		h.overrunAt = m.now.Add(m.cfg.Timing.Window())
		m.update(s)
		return
	}
	old := rec.Token <= s.spent
	if m.cfg.Plant.Has(plant.BeginOnOldRecord) {
		old, confirmed = false, true
	}
	switch {
	case m.stopping:
		// The session is about to be closed, and the grant with it.
	case m.lent() && !s.wants && !s.tried:
		// The owner of the session has acquired the group, not this machine.
	case old || !s.wants || m.unhealthy != nil || m.now < s.notBefore && !transferred(rec):
		if m.cfg.Plant.Has(plant.ForgetUnsure) {
			return
		}
		s.spent = max(s.spent, rec.Token)
		s.hold = &hold{session: m.session, record: rec, phase: releasing, why: store.Resigned, returned: true, retryAt: clock.Never, overrunAt: clock.Never}
		m.releases = append(m.releases, s)
	case !confirmed:
		// If an acquire is in flight, its reply is the confirmation.
		if !s.confirming && s.call == 0 {
			s.confirming = true
			m.reads = append(m.reads, s)
		}
	default:
		m.begin(s, rec, m.session)
	}
}

// transferred reports whether the holder got the group by a transfer.
func transferred(r store.Record) bool {
	n := len(r.Terms)
	return n > 1 && r.Terms[n-2].Reason == store.Transferred
}

func (m *Machine) begin(s *groupState, rec store.Record, by *session) {
	s.spent = max(s.spent, rec.Token)
	s.wants, s.unsure, s.tried, s.goesLast, s.fails, s.tryAt = false, false, false, false, 0, clock.Never
	s.hold = &hold{session: by, record: rec, phase: leading, retryAt: clock.Never, overrunAt: clock.Never}
	by.open++
	m.note(Note{Kind: NoteBegan, Group: s.group, Token: rec.Token, Session: by.ID})
	m.do(Action{Kind: DoBegin, Group: s.group, Token: rec.Token, Record: rec})
	m.update(s)
}

func (m *Machine) sendReads() {
	for len(m.reads) > 0 && m.mayCall(CallRead) {
		s := m.reads[0]
		m.reads = m.reads[1:]
		if !s.confirming {
			continue
		}
		m.send(&Call{Kind: CallRead, Group: s.group}, m.session, s)
	}
}

func (m *Machine) confirmed(f *flight, r *Reply) {
	s := f.groups[0]
	if r.Err != nil {
		m.note(Note{Kind: NoteFailed, Call: CallRead.String(), Group: s.group, Err: r.Err})
		s.readAt = m.now.Add(m.cfg.Timing.BackoffMin/2 + m.backoff(s.fails))
		s.fails++
		m.update(s)
		return
	}
	s.confirming = false
	m.apply(s, r.View, fromRead, 0)
}

// endTerm ends the group's term. The grant stays until work has returned.
func (m *Machine) endTerm(s *groupState, cause error, why store.Reason) {
	m.do(Action{Kind: DoEnd, Group: s.group, Token: s.hold.record.Token, Cause: cause})
	m.ending(s, cause, why)
}

func (m *Machine) ending(s *groupState, cause error, why store.Reason) {
	h := s.hold
	h.phase, h.cause, h.why = ending, cause, why
	h.overrunAt = m.now.Add(m.cfg.Timing.Window())
	m.note(Note{Kind: NoteEnded, Group: s.group, Token: h.record.Token, Err: cause})
	if m.cfg.Plant.Has(plant.ReleaseBeforeStop) {
		h.retryAt = m.now
	}
	m.update(s)
}

// ended handles a term that its holder has ended.
func (m *Machine) ended(s *groupState, token fence.Token, cause error) {
	if !s.leads() || s.hold.record.Token != token {
		return
	}
	why := store.Resigned
	switch {
	case errors.Is(cause, tenure.ErrTransferred):
		why = store.Transferred
	case errors.Is(cause, tenure.ErrExpired):
		why = store.Expired
	}
	m.ending(s, cause, why)
}

// returned handles the return of work: the grant can be released.
func (m *Machine) returned(s *groupState, token fence.Token, to string, session store.SessionID) {
	if h := s.lostHold; h != nil && h.record.Token == token {
		s.lostHold = nil
		h.session.open--
		m.do(Action{Kind: DoSettle, Group: s.group, Token: token})
		m.closeRetired()
		m.update(s)
		return
	}
	h := s.hold
	if h == nil || h.record.Token != token {
		m.do(Action{Kind: DoSettle, Group: s.group, Token: token})
		return
	}
	if h.returned {
		return // being released: one DoSettle answers all callers
	}
	if h.phase == leading {
		m.ended(s, token, tenure.ErrResigned)
	}
	h.returned = true
	h.phase = releasing
	h.session.open--
	h.toFirst = to == "" && h.to == "" && !m.stopping
	switch {
	case to == "" || to == h.to:
	case h.to == "":
		h.to, h.toSession, h.toHint = to, session, session != ""
	default:
		// An operator's request came first: its successor gets the group.
		h.toIgnored = fmt.Errorf("lease: group %q was released to %q, as an operator asked, and not to %q: %w", s.group, h.to, to, store.ErrSuccessor)
	}
	m.releases = append(m.releases, s)
	m.update(s)
}

// sendReleases releases groups. One call takes groups with the same successor and reason.
func (m *Machine) sendReleases() {
	for len(m.releases) > 0 && m.mayCall(CallRelease) && m.mayCall(CallSessions) {
		var batch []*groupState
		var held []store.Record
		var first *hold
		rest := m.releases[:0]
		for _, s := range m.releases {
			h := s.hold
			switch {
			case h == nil || h.call || h.session != m.session || m.session == nil:
				continue
			case m.stopping && h.to == "" && m.now < m.closeBy:
				// If all work returns soon, closing the session frees all groups at once.
				h.retryAt = m.closeBy
				m.update(s)
				continue
			case h.to != "" && h.toSession == "":
				if first != nil || !m.mayCall(CallSessions) {
					rest = append(rest, s)
					continue
				}
				h.call = true
				m.send(&Call{Kind: CallSessions, Group: s.group}, h.session, s)
				continue
			}
			if h.toFirst && h.toSession == "" {
				h.toSession, _ = m.cfg.Line.First(s.group, h.session.ID)
			}
			if first != nil && (first.alone || h.alone || len(batch) == m.cfg.Caps.Batch || h.toSession != first.toSession || h.why != first.why) {
				rest = append(rest, s)
				continue
			}
			if first == nil {
				first = h
			}
			h.call = true
			batch, held = append(batch, s), append(held, h.record)
		}
		m.releases = rest
		if first == nil {
			return
		}
		m.send(&Call{Kind: CallRelease, Session: m.session.ID, Held: held, To: first.toSession, Reason: first.why}, m.session, batch...)
	}
}

// Newest returns the candidate's newest session, leaving out the session but. An older
// one may be left over from before a restart.
func Newest(line []store.Session, candidate string, but store.SessionID) store.SessionID {
	var found store.Session
	for _, s := range line {
		if s.Candidate.ID == candidate && s.ID != but && s.Opened >= found.Opened {
			found = s
		}
	}
	return found.ID
}

// successorFound handles the list of sessions that a transfer needs.
func (m *Machine) successorFound(f *flight, r *Reply) {
	s := f.groups[0]
	h := s.hold
	if h == nil || h.session != f.session {
		return
	}
	h.call = false
	if r.Err != nil {
		m.releaseAgain(s, f, r.Err)
		return
	}
	if h.toSession = Newest(r.Sessions, h.to, h.session.ID); h.toSession == "" {
		m.withoutSuccessor(h)
	}
	m.releases = append(m.releases, s)
}

func (m *Machine) withoutSuccessor(h *hold) {
	h.toErr = fmt.Errorf("lease: group %q was released, but not to %q: %w", h.record.Group, h.to, store.ErrSuccessor)
	h.to, h.toSession, h.why = "", "", store.Resigned
}

func (m *Machine) released(f *flight, r *Reply) {
	if errors.Is(r.Err, store.ErrSessionDead) && f.session == m.session {
		// This is true whatever has happened to the groups since.
		m.endSession(tenure.ErrLost, store.Lost, false)
		return
	}
	var conflict *store.ConflictError
	shown := map[string]store.View{}
	if errors.As(r.Err, &conflict) {
		for _, v := range conflict.Current {
			shown[v.Group] = v
		}
	}
	for i, s := range f.groups {
		h := s.hold
		if h == nil || h.record.Version != f.Held[i].Version || h.session != f.session {
			continue
		}
		h.call = false
		v, moved := shown[s.group]
		switch {
		case r.Err == nil:
			m.gaveUp(s, r.Records[i], f.To != "")
		case conflict != nil && (moved || len(f.groups) == 1):
			// An earlier try took effect and its reply was lost, or an operator closed the
			// session by force.
			s.goesLast = true
			if moved {
				m.succeeded(h, v.Record)
			}
			m.finish(s)
			if moved {
				m.apply(s, v, fromConflict, f.Held[i].Version)
			}
		case conflict != nil:
			h.alone = len(shown) == 0
			m.releases = append(m.releases, s)
		case f.To != "" && (errors.Is(r.Err, store.ErrSuccessor) || errors.Is(r.Err, store.ErrRewound)):
			switch {
			case h.to == "":
				h.toFirst = false // the first in line is dead: release without a successor
				h.toSession = ""
			case h.toHint && errors.Is(r.Err, store.ErrSuccessor):
				// The successor has another session now, or none: list them again.
				h.toSession, h.toHint = "", false
			default:
				m.withoutSuccessor(h)
			}
			m.releases = append(m.releases, s)
		default:
			m.releaseAgain(s, f, r.Err)
		}
	}
}

// gaveUp handles a group that was released or handed over.
func (m *Machine) gaveUp(s *groupState, rec store.Record, handed bool) {
	state := tenure.Vacant
	if handed {
		state = tenure.Led
	}
	if m.cfg.Plant.Has(plant.ReleaseBeforeStop) && !s.hold.returned {
		s.lostHold, s.hold = s.hold, nil
		m.apply(s, store.View{Record: rec, State: state}, fromRead, 0)
		return
	}
	s.goesLast = !handed
	m.finish(s)
	m.apply(s, store.View{Record: rec, State: state}, fromRead, 0)
}

func (m *Machine) releaseAgain(s *groupState, f *flight, err error) {
	h := s.hold
	m.note(Note{Kind: NoteFailed, Call: f.Kind.String(), Group: s.group, Token: h.record.Token, Err: err})
	h.retryAt = m.now.Add(m.backoff(h.fails))
	h.fails++
	m.update(s)
}

// finish ends a grant after its release.
func (m *Machine) finish(s *groupState) {
	h := s.hold
	s.hold, s.tried = nil, false
	for _, id := range h.requests {
		a := store.Answer{Outcome: store.Done}
		if h.toErr != nil {
			a = store.Answer{Outcome: store.Refused, Detail: h.toErr.Error()}
		}
		m.answer(id, a)
	}
	m.note(Note{Kind: NoteReleased, Group: s.group, Token: h.record.Token, Detail: string(h.why)})
	m.do(Action{Kind: DoSettle, Group: s.group, Token: h.record.Token, Cause: cmp.Or(h.toErr, h.toIgnored)})
	m.schedule(s)
	m.update(s)
}

// succeeded checks that the record after ours was granted to the successor.
func (m *Machine) succeeded(h *hold, next store.Record) {
	got := next.Holder == h.toSession || slices.ContainsFunc(next.Terms, func(t store.Term) bool {
		return t.Session == h.toSession && t.Token > h.record.Token
	})
	if h.to != "" && !got {
		m.withoutSuccessor(h)
	}
}

// moved handles a held group whose record has changed in the store.
func (m *Machine) moved(s *groupState) {
	if s.hold.returned {
		s.goesLast = s.hold.to == ""
		m.succeeded(s.hold, s.view.Record)
		m.finish(s)
		return
	}
	m.loseGrant(s, tenure.ErrLost, false)
}

func (h *hold) unconfirmed() error {
	if h.to != "" {
		return fmt.Errorf("lease: the transfer of group %q (token %d) to %q was not confirmed: %w", h.record.Group, h.record.Token, h.to, store.ErrSuccessor)
	}
	return fmt.Errorf("lease: the release of group %q (token %d) was not confirmed: it is free when the session expires", h.record.Group, h.record.Token)
}

// ExitMargin is how long the exit of a process may take.
const ExitMargin = 100 * time.Millisecond

// loseGrant ends a grant that is lost. Its work may still run: see lostHold. living
// means that the session may still be alive in the store.
func (m *Machine) loseGrant(s *groupState, cause error, living bool) {
	h := s.hold
	s.hold = nil
	if h.returned {
		// A dead session holds nothing, so a release has succeeded. A transfer has not.
		if h.toErr == nil && (living || h.to != "") {
			h.toErr = h.unconfirmed()
		}
		m.do(Action{Kind: DoSettle, Group: s.group, Token: h.record.Token, Cause: h.toErr})
		return
	}
	if h.phase == leading {
		h.phase, h.cause, h.why = ending, cause, store.Lost
		m.note(Note{Kind: NoteEnded, Group: s.group, Token: h.record.Token, Err: cause})
		m.do(Action{Kind: DoEnd, Group: s.group, Token: h.record.Token, Cause: cause})
	}
	h.retryAt = clock.Never
	// Without a grace period it is an overrun when another may lead: no work stops
	// at once. With one, the process can still be ended while its lease is trusted.
	h.overrunAt = h.session.trust.Add(m.cfg.Timing.Margin)
	if grace := m.cfg.Timing.Grace; grace > 0 {
		h.overrunAt = h.session.trust.Add(-min(grace/4, ExitMargin))
	}
	s.lostHold = h
	m.update(s)
}
