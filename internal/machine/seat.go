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

// seat is the machine's side of one group.
type seat struct {
	group string
	order int
	wants bool // somebody waits to lead
	once  bool // but not if another leads

	view  store.View
	known bool // view is as fresh as the watch makes it
	// behindAt is when a keep-alive first read what the watch has not shown.
	behindAt clock.Instant

	// spent is the highest token that must not begin a term here: begun before,
	// released, or seen with another holder.
	spent fence.Token

	hold   *hold // the record names the present session
	linger *hold // work of a term whose session is gone

	call       uint64 // the acquire under way
	tried      bool   // an acquire was sent, and was not refused
	unsure     bool   // an acquire from unsureAt has an unknown outcome
	unsureAt   uint64
	alone      bool // a batch failed for an unknown one of its records
	confirming bool
	fails      int
	yields     bool // gave the group up: the others go first

	tryAt     clock.Instant
	rank      int           // how many are to try before us
	from      clock.Instant // from when on we wait for them
	readAt    clock.Instant
	notBefore clock.Instant

	wake   clock.Instant
	place  int // in wakes, -1: none
	active bool
	vacant bool // wanted, and nobody leads
}

type phase uint8

const (
	leading   phase = iota + 1
	ending          // the term is over, work has not returned
	releasing       // work has returned
)

// hold is a grant of ours.
type hold struct {
	session   *session
	record    store.Record
	phase     phase
	cause     error
	why       store.Reason
	returned  bool
	to        string          // successor, by name
	toSession store.SessionID // and its session, once found
	pass      bool            // without a name: hand over to the first in line, if there is one
	alone     bool            // a batch of releases failed for an unknown one of its records
	toHint    bool            // found before work returned: it may be gone since
	toErr     error           // why it cannot take over
	outrun    error           // whom the holder named is not the successor that was asked for
	requests  []string
	fails     int
	call      bool
	retryAt   clock.Instant
	overrunAt clock.Instant
}

// unreturned is the ended term whose work still runs.
func (s *seat) unreturned() *hold {
	for _, h := range [...]*hold{s.hold, s.linger} {
		if h != nil && !h.returned {
			return h
		}
	}
	return nil
}

func (s *seat) leads() bool { return s.hold != nil && s.hold.phase == leading }

// seat finds the group's seat, or makes it.
func (m *Machine) seat(group string) *seat {
	s := m.seats[group]
	if s == nil {
		s = &seat{group: group, order: len(m.order), place: -1, tryAt: clock.Never, readAt: clock.Never, behindAt: clock.Never}
		m.seats[group] = s
		m.order = append(m.order, s)
	}
	return s
}

// idleAfter is how long a session stays open with nothing to do: long enough for a
// process that has just given up a group to campaign again.
const idleAfter = 100 * time.Millisecond

// update puts the seat's timers and the machine's need for a session right. It
// comes after every change of a seat.
func (m *Machine) update(s *seat) {
	if s.wants && s.once {
		if err := m.hopeless(s); err != nil {
			m.fail(s, err)
		}
	}
	active := s.wants && m.sick == nil || s.unsure || s.hold != nil
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
		// A session that neither leads nor campaigns must not be taken for a
		// successor: its process may be backing off for a long time.
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
	for _, h := range [...]*hold{s.hold, s.linger} {
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

// fire does what the seat's timers are due for.
func (s *seat) fire(m *Machine) {
	if m.now >= s.tryAt {
		s.tryAt = clock.Never
		if later := s.from.Add(m.wait(s.rank)); later > m.now {
			s.tryAt = later // so many groups fell vacant since that the others need longer
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
	for _, h := range [...]*hold{s.hold, s.linger} {
		if h == nil || h.returned || m.now < h.overrunAt {
			continue
		}
		h.overrunAt = clock.Never
		if h == s.hold {
			// It holds the group, and everybody else up: say so again.
			h.overrunAt = m.now.Add(m.cfg.Timing.Window())
		}
		m.note(Note{Kind: NoteOverrun, Group: s.group, Token: h.record.Token, Err: h.cause})
		m.do(Action{Kind: DoOverrun, Group: s.group, Token: h.record.Token, Cause: h.cause})
	}
	m.update(s)
}

func (m *Machine) campaign(s *seat, once bool) {
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
		m.see(s, VacantFromTheStart(s.group), told, 0)
	}
	m.schedule(s)
	m.update(s)
}

// hopeless says why a campaign that does not wait has failed.
func (m *Machine) hopeless(s *seat) error {
	switch {
	case m.sick != nil:
		return fmt.Errorf("this process is not healthy: %w", m.sick)
	case m.now < s.notBefore:
		return fmt.Errorf("this process was asked to step down, and does not try for another %v", s.notBefore.Sub(m.now))
	case s.known && s.view.State == tenure.Led && (m.session == nil || s.view.Holder != m.session.ID):
		return fmt.Errorf("%w: %q, with token %d", ErrLed, s.view.Candidate.ID, s.view.Token)
	}
	return nil
}

// withdraw ends a campaign. An acquire whose outcome is unknown is still
// resolved: what it may have won is given back.
func (m *Machine) withdraw(s *seat) {
	s.wants = false
	s.yields = false
	if m.cfg.Plant.Has(plant.ForgetUnsure) {
		s.unsure = false
	}
	if m.session != nil && s.known && s.view.State == tenure.Led && s.view.Holder == m.session.ID {
		// The watch has shown the win, and its answer has not come yet.
		m.naming(s, s.view.Record, false)
	}
	m.schedule(s)
	m.update(s)
}

// fail ends a campaign with an error that does not pass by itself.
func (m *Machine) fail(s *seat, err error) {
	if !s.wants {
		return
	}
	m.do(Action{Kind: DoFail, Group: s.group, Cause: fmt.Errorf("lease: campaign for group %q: %w", s.group, err)})
	m.withdraw(s)
}

// failAll ends every campaign that waits, if the error is permanent.
func (m *Machine) failAll(err error) {
	if !store.Permanent(err) {
		return
	}
	for _, s := range m.order {
		m.fail(s, err)
	}
}

// schedule decides when to try for the group.
func (m *Machine) schedule(s *seat) {
	if !s.eligible(m) {
		s.tryAt = clock.Never
		return
	}
	if s.call != 0 {
		return
	}
	at, rank := m.now, 0
	if s.wants {
		if !m.placed {
			return // when the watch has shown who stands in line we are asked again
		}
		rank = m.rank(s)
		at = max(at.Add(m.wait(rank)), s.notBefore)
	}
	if at < s.tryAt {
		s.tryAt, s.rank, s.from = at, rank, m.now
	}
}

// wait is how long those of a lower rank need to acquire what is vacant. Every candidate
// is the first for its part of the groups, and acquires it in batches.
func (m *Machine) wait(rank int) time.Duration {
	if rank == 0 {
		return 0
	}
	share := m.mostVacant / max(1, m.cfg.Line.Len())
	rounds := 1 + share/(m.cfg.Caps.Batch*lane[CallAcquire])
	return time.Duration(rank) * min(time.Duration(rounds)*m.step(), max(m.step(), m.cfg.Timing.TTL/4))
}

// eligible: to acquire is legal, and makes sense.
func (s *seat) eligible(m *Machine) bool {
	return (s.wants || s.unsure) && s.hold == nil && s.known && s.view.State == tenure.Vacant &&
		m.session != nil && m.sick == nil && !m.stopping
}

func (m *Machine) sendAcquires() {
	for len(m.acquires) > 0 && m.room(CallAcquire) {
		var batch []*seat
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
	for _, s := range f.seats {
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
		m.gone(tenure.ErrLost, store.Lost, false)
	case errors.As(r.Err, &conflict):
		m.conflicted(f, conflict)
	default:
		m.note(Note{Kind: NoteFailed, Call: CallAcquire.String(), Group: f.seats[0].group, Count: len(f.seats), Err: r.Err})
		for i, s := range f.seats {
			if !store.Definite(r.Err) && s.view.Version == f.Seen[i].Version {
				s.unsure, s.unsureAt = true, s.view.Version
			}
			switch {
			case errors.As(r.Err, &bar) && bar.For(s.group) == nil && s.eligible(m):
				s.tryAt = m.now // without those that are barred
				m.update(s)
				continue
			case store.Permanent(r.Err) && len(f.seats) == 1:
				s.alone = false
				m.fail(s, r.Err)
			case store.Permanent(r.Err) || bar != nil && bar.Group != "":
				// Of a batch, one group may be at fault: each is tried by itself.
				s.alone = true
			}
			m.again(s)
		}
	}
}

// won takes what an acquire has brought, if the session that it was for is still
// the present one: a waiter whose session died does not lead.
func (m *Machine) won(f *flight, r *Reply) {
	if f.session == m.session && m.cfg.Plant.Has(plant.TrustFromWin) {
		m.extend(m.session, m.now, m.session.TTL)
	}
	for i, s := range f.seats {
		if f.session != m.session && m.cfg.Plant.Has(plant.BeginUntrusted) {
			m.begin(s, r.Records[i], f.session)
			continue
		}
		s.alone = false
		m.see(s, store.View{Record: r.Records[i], State: tenure.Led}, sure, 0)
	}
}

// conflicted sorts a batch that was refused: what the store showed is news, the
// rest is tried again.
func (m *Machine) conflicted(f *flight, c *store.ConflictError) {
	m.note(Note{Kind: NoteConflict, Group: f.seats[0].group, Count: len(f.seats), Err: c})
	shown := make(map[string]store.View, len(c.Current))
	for _, v := range c.Current {
		shown[v.Group] = v
	}
	for i, s := range f.seats {
		if v, ok := shown[s.group]; ok {
			s.alone = false
			m.see(s, v, conflicting, f.Seen[i].Version)
			if s.tryAt == clock.Never {
				m.again(s)
			}
			continue
		}
		s.alone = len(shown) == 0
		if len(f.seats) > 1 && s.eligible(m) {
			s.tryAt, s.rank = m.now, 0
			m.update(s)
		} else {
			m.again(s)
		}
	}
}

// again tries once more, later.
func (m *Machine) again(s *seat) {
	if m.session != nil && s.known && s.hold == nil && s.view.Holder == m.session.ID {
		// The watch knew before the answer came: we have won.
		m.see(s, s.view, told, 0)
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
	told        source = iota // by the watch
	sure                      // by a linearizable answer
	conflicting               // by a refused compare-and-set
)

// newer orders the views of one group: versions grow, and a holder dies once.
func newer(a, b *store.View) bool {
	return a.Version > b.Version || a.Version == b.Version && a.State == tenure.Vacant && b.State == tenure.Led
}

// see takes note of a view. tried is the version from which a compare-and-set
// was refused.
func (m *Machine) see(s *seat, v store.View, from source, tried uint64) {
	fresh := newer(&v, &s.view) ||
		// Only a new watch may say that what we knew is no more.
		!s.known && (from == told || v.Version == s.view.Version && s.view.State != tenure.Vacant) ||
		// The store is behind what we had seen when we asked: it was rewound.
		from == conflicting && v.Version < tried ||
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
		m.naming(s, v.Record, from != told)
	case ours:
		// Our session is dead at the store, whatever it was that killed it.
		m.gone(tenure.ErrLost, store.Lost, false)
		return
	case v.State == tenure.Led && fresh:
		s.tryAt, s.fails, s.yields = clock.Never, 0, false
	case fresh:
		m.schedule(s)
	}
	m.update(s)
}

// naming handles a record that names the present session.
func (m *Machine) naming(s *seat, rec store.Record, confirmed bool) {
	if s.hold != nil {
		return
	}
	if h := s.linger; h != nil && h.record.Token == rec.Token && h.session == m.session {
		// It was not gone after all. Its term is over, but work has not returned: the
		// grant is kept until it has.
		s.hold, s.linger = h, nil
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
		// Its owner has won it without us.
	case old || !s.wants || m.sick != nil || m.now < s.notBefore && !transferred(rec):
		if m.cfg.Plant.Has(plant.ForgetUnsure) {
			return
		}
		s.spent = max(s.spent, rec.Token)
		s.hold = &hold{session: m.session, record: rec, phase: releasing, why: store.Resigned, returned: true, retryAt: clock.Never, overrunAt: clock.Never}
		m.releases = append(m.releases, s)
	case !confirmed:
		// While an acquire is under way its answer is all the confirmation needed.
		if !s.confirming && s.call == 0 {
			s.confirming = true
			m.reads = append(m.reads, s)
		}
	default:
		m.begin(s, rec, m.session)
	}
}

// transferred reports whether somebody named the holder as the successor.
func transferred(r store.Record) bool {
	n := len(r.Terms)
	return n > 1 && r.Terms[n-2].Reason == store.Transferred
}

func (m *Machine) begin(s *seat, rec store.Record, by *session) {
	s.spent = max(s.spent, rec.Token)
	s.wants, s.unsure, s.tried, s.yields, s.fails, s.tryAt = false, false, false, false, 0, clock.Never
	s.hold = &hold{session: by, record: rec, phase: leading, retryAt: clock.Never, overrunAt: clock.Never}
	by.open++
	m.note(Note{Kind: NoteBegan, Group: s.group, Token: rec.Token, Session: by.ID})
	m.do(Action{Kind: DoBegin, Group: s.group, Token: rec.Token, Record: rec})
	m.update(s)
}

func (m *Machine) sendReads() {
	for len(m.reads) > 0 && m.room(CallRead) {
		s := m.reads[0]
		m.reads = m.reads[1:]
		if !s.confirming {
			continue
		}
		m.send(&Call{Kind: CallRead, Group: s.group}, m.session, s)
	}
}

func (m *Machine) confirmed(f *flight, r *Reply) {
	s := f.seats[0]
	if r.Err != nil {
		m.note(Note{Kind: NoteFailed, Call: CallRead.String(), Group: s.group, Err: r.Err})
		s.readAt = m.now.Add(m.cfg.Timing.BackoffMin/2 + m.backoff(s.fails))
		s.fails++
		m.update(s)
		return
	}
	s.confirming = false
	m.see(s, r.View, sure, 0)
}

// endTerm ends the term that the seat leads. The grant stays until work has
// returned.
func (m *Machine) endTerm(s *seat, cause error, why store.Reason) {
	m.do(Action{Kind: DoEnd, Group: s.group, Token: s.hold.record.Token, Cause: cause})
	m.ending(s, cause, why)
}

func (m *Machine) ending(s *seat, cause error, why store.Reason) {
	h := s.hold
	h.phase, h.cause, h.why = ending, cause, why
	h.overrunAt = m.now.Add(m.cfg.Timing.Window())
	m.note(Note{Kind: NoteEnded, Group: s.group, Token: h.record.Token, Err: cause})
	if m.cfg.Plant.Has(plant.ReleaseBeforeStop) {
		h.retryAt = m.now
	}
	m.update(s)
}

// ended: the holder ended the term itself.
func (m *Machine) ended(s *seat, token fence.Token, cause error) {
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

// returned: work has stopped, so the grant may be given up.
func (m *Machine) returned(s *seat, token fence.Token, to string, session store.SessionID) {
	if h := s.linger; h != nil && h.record.Token == token {
		s.linger = nil
		h.session.open--
		m.do(Action{Kind: DoSettle, Group: s.group, Token: token})
		m.sweep()
		m.update(s)
		return
	}
	h := s.hold
	if h == nil || h.record.Token != token {
		m.do(Action{Kind: DoSettle, Group: s.group, Token: token})
		return
	}
	if h.returned {
		return // being released; one answer is for all who ask
	}
	if h.phase == leading {
		m.ended(s, token, tenure.ErrResigned)
	}
	h.returned = true
	h.phase = releasing
	h.session.open--
	h.pass = to == "" && h.to == "" && !m.stopping
	switch {
	case to == "" || to == h.to:
	case h.to == "":
		h.to, h.toSession, h.toHint = to, session, session != ""
	default:
		// A request was first. It is met, and this transfer is not.
		h.outrun = fmt.Errorf("lease: group %q was released to %q, as an operator asked, and not to %q: %w", s.group, h.to, to, store.ErrSuccessor)
	}
	m.releases = append(m.releases, s)
	m.update(s)
}

// sendReleases sends what is to be given up, as many groups in one call as go to the same
// successor for the same reason.
func (m *Machine) sendReleases() {
	for len(m.releases) > 0 && m.room(CallRelease) && m.room(CallSessions) {
		var batch []*seat
		var held []store.Record
		var first *hold
		rest := m.releases[:0]
		for _, s := range m.releases {
			h := s.hold
			switch {
			case h == nil || h.call || h.session != m.session || m.session == nil:
				continue
			case m.stopping && h.to == "" && m.now < m.closeBy:
				// Closing the session frees this group with all the others, if they too
				// return soon.
				h.retryAt = m.closeBy
				m.update(s)
				continue
			case h.to != "" && h.toSession == "":
				if first != nil || !m.room(CallSessions) {
					rest = append(rest, s)
					continue
				}
				h.call = true
				m.send(&Call{Kind: CallSessions, Group: s.group}, h.session, s)
				continue
			}
			if h.pass && h.toSession == "" {
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

// newest is the candidate's newest session: an older one may be left over from
// before a restart.
func Newest(line []store.Session, candidate string, but store.SessionID) store.SessionID {
	var found store.Session
	for _, s := range line {
		if s.Candidate.ID == candidate && s.ID != but && s.Opened >= found.Opened {
			found = s
		}
	}
	return found.ID
}

// successorFound: the sessions were listed for the successor's session.
func (m *Machine) successorFound(f *flight, r *Reply) {
	s := f.seats[0]
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
		// True whatever has become of the groups since.
		m.gone(tenure.ErrLost, store.Lost, false)
		return
	}
	var conflict *store.ConflictError
	shown := map[string]store.View{}
	if errors.As(r.Err, &conflict) {
		for _, v := range conflict.Current {
			shown[v.Group] = v
		}
	}
	for i, s := range f.seats {
		h := s.hold
		if h == nil || h.record.Version != f.Held[i].Version || h.session != f.session {
			continue
		}
		h.call = false
		v, moved := shown[s.group]
		switch {
		case r.Err == nil:
			m.gaveUp(s, r.Records[i], f.To != "")
		case conflict != nil && (moved || len(f.seats) == 1):
			// An earlier try was applied, and its answer lost. Or it was not, and the
			// session was closed by force.
			s.yields = true
			if moved {
				m.succeeded(h, v.Record)
			}
			m.finish(s)
			if moved {
				m.see(s, v, conflicting, f.Held[i].Version)
			}
		case conflict != nil:
			h.alone = len(shown) == 0
			m.releases = append(m.releases, s)
		case f.To != "" && (errors.Is(r.Err, store.ErrSuccessor) || errors.Is(r.Err, store.ErrRewound)):
			switch {
			case h.to == "":
				h.pass = false // the first in line is gone: whoever is there may try
				h.toSession = ""
			case h.toHint && errors.Is(r.Err, store.ErrSuccessor):
				// It has another session now, or none.
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

// gaveUp: the group was released, or handed over.
func (m *Machine) gaveUp(s *seat, rec store.Record, handed bool) {
	state := tenure.Vacant
	if handed {
		state = tenure.Led
	}
	if m.cfg.Plant.Has(plant.ReleaseBeforeStop) && !s.hold.returned {
		s.linger, s.hold = s.hold, nil
		m.see(s, store.View{Record: rec, State: state}, sure, 0)
		return
	}
	s.yields = !handed
	m.finish(s)
	m.see(s, store.View{Record: rec, State: state}, sure, 0)
}

func (m *Machine) releaseAgain(s *seat, f *flight, err error) {
	h := s.hold
	m.note(Note{Kind: NoteFailed, Call: f.Kind.String(), Group: s.group, Token: h.record.Token, Err: err})
	h.retryAt = m.now.Add(m.backoff(h.fails))
	h.fails++
	m.update(s)
}

// finish: the group is given up.
func (m *Machine) finish(s *seat) {
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
	m.do(Action{Kind: DoSettle, Group: s.group, Token: h.record.Token, Cause: cmp.Or(h.toErr, h.outrun)})
	m.schedule(s)
	m.update(s)
}

// succeeded looks whether the record that followed ours is the successor's.
func (m *Machine) succeeded(h *hold, next store.Record) {
	got := next.Holder == h.toSession || slices.ContainsFunc(next.Terms, func(t store.Term) bool {
		return t.Session == h.toSession && t.Token > h.record.Token
	})
	if h.to != "" && !got {
		m.withoutSuccessor(h)
	}
}

// moved: the record went on without us.
func (m *Machine) moved(s *seat) {
	if s.hold.returned {
		s.yields = s.hold.to == ""
		m.succeeded(s.hold, s.view.Record)
		m.finish(s)
		return
	}
	m.void(s, tenure.ErrLost, false)
}

func (h *hold) unconfirmed() error {
	if h.to != "" {
		return fmt.Errorf("lease: the transfer of group %q (token %d) to %q was not confirmed: %w", h.record.Group, h.record.Token, h.to, store.ErrSuccessor)
	}
	return fmt.Errorf("lease: the release of group %q (token %d) was not confirmed: it is free when the session expires", h.record.Group, h.record.Token)
}

// exitMargin is what an exit may take.
const ExitMargin = 100 * time.Millisecond

// void: the grant is gone; what work is left lingers until it returns. living
// says that the store may not know yet.
func (m *Machine) void(s *seat, cause error, living bool) {
	h := s.hold
	s.hold = nil
	if h.returned {
		// A dead session holds nothing, so a release is done. A transfer is not.
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
	// Nobody stops in no time: without a grace it is an overrun when another may
	// lead. With one, a process that is to be ended is ended while it is trusted.
	h.overrunAt = h.session.trust.Add(m.cfg.Timing.Margin)
	if grace := m.cfg.Timing.Grace; grace > 0 {
		h.overrunAt = h.session.trust.Add(-min(grace/4, ExitMargin))
	}
	s.linger = h
	m.update(s)
}
