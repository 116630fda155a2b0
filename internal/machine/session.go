package machine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// session is the machine's side of a session.
type session struct {
	store.Session
	heard  clock.Instant // when the newest acknowledged keep-alive was sent
	trust  clock.Instant // until when it may be believed
	beatAt clock.Instant
	misses int
	atRisk bool
	// open counts the terms whose work has not returned. A session is not closed
	// before they have: what it held must not be granted again while they run.
	open       int
	retired    bool
	why        store.Reason
	closeTries int
}

// start is the machine's side of a session that is known to live.
func (m *Machine) start(of store.Session, sent clock.Instant) *session {
	s := &session{Session: of, trust: sent, beatAt: sent.Add(m.cfg.Timing.Beat)}
	if m.lent() {
		s.trust, s.beatAt = clock.Never, clock.Never
		return s
	}
	m.extend(s, sent, s.TTL)
	return s
}

// lent: see Config.
func (m *Machine) lent() bool { return m.cfg.Lent && !m.cfg.Plant.Has(plant.ReopenLent) }

// stopAt is when the terms of the session end: Grace before trust does.
func (m *Machine) stopAt(s *session) clock.Instant {
	if s.trust == clock.Never || m.cfg.Plant.Has(plant.IgnoreTrustEnd) {
		return clock.Never
	}
	return s.trust.Add(-m.cfg.Timing.Grace)
}

// riskAt is when the engine has been silent for too long for the terms to be safe.
func (m *Machine) riskAt(s *session) clock.Instant {
	if s.atRisk || m.lent() {
		return clock.Never
	}
	return s.heard.Add(Times(m.cfg.Timing.Beat, m.cfg.Timing.Misses))
}

// extend counts trust from when the keep-alive was sent, not from when its
// answer came: the store may have started our TTL at any moment in between.
func (m *Machine) extend(s *session, sent clock.Instant, ttl time.Duration) {
	if m.cfg.Plant.Has(plant.TrustRequested) {
		ttl = m.cfg.Timing.TTL
	}
	window := m.cfg.Timing.Trust(ttl)
	if m.cfg.Plant.Has(plant.NoMargin) {
		window += m.cfg.Timing.Margin
	}
	if m.cfg.Plant.Has(plant.NoDrift) {
		window = ttl - m.cfg.Timing.Margin
	}
	if m.cfg.Plant.Has(plant.TrustFromReply) {
		sent = m.now
	}
	s.heard = max(s.heard, sent)
	s.atRisk = s.atRisk && m.now >= s.heard.Add(Times(m.cfg.Timing.Beat, m.cfg.Timing.Misses))
	s.trust = max(s.trust, sent.Add(window))
	m.do(Action{Kind: DoTrust, Session: s.Session, Until: m.stopAt(s)})
}

func (m *Machine) open() {
	if m.session != nil || m.opening || m.stopping || m.actives == 0 || m.lent() {
		return
	}
	m.opening = true
	m.send(&Call{Kind: CallOpen, TTL: m.cfg.Timing.TTL, Attempt: m.attemptName()}, nil)
}

// attemptName lets the store recognise a retry of an Open whose reply was lost.
func (m *Machine) attemptName() string {
	return cmp.Or(m.cfg.Attempt, strconv.FormatUint(m.attempt, 10))
}

func (m *Machine) opened(f *flight, r *Reply) {
	m.opening = false
	if r.Err != nil {
		m.note(Note{Kind: NoteOpenFailed, Call: CallOpen.String(), Err: r.Err, Took: m.now.Sub(f.sent)})
		m.openAt = m.now.Add(m.pause(m.openFails))
		m.openFails++
		m.failAll(r.Err)
		return
	}
	m.attempt++
	m.openAt = clock.Never
	s := m.start(r.Session, f.sent)
	m.session = s
	if m.now >= m.stopAt(s) || m.stopping {
		// The answer took longer than what it grants.
		m.openAt = m.now.Add(m.pause(m.openFails))
		m.openFails++
		m.retire(store.Resigned)
		return
	}
	m.openFails = 0
	m.note(Note{Kind: NoteOpened, Session: s.ID, Took: m.now.Sub(f.sent)})
	for _, seat := range m.order {
		// An earlier try of this Open, whose reply was lost, was granted the group since.
		if seat.known && seat.view.State == tenure.Led && seat.view.Holder == s.ID {
			m.naming(seat, seat.view.Record, false)
		}
		m.schedule(seat)
		m.update(seat)
	}
}

func (m *Machine) beat() {
	s := m.session
	s.beatAt = clock.Never // the answer sets it
	if !m.room(CallBeat) {
		return
	}
	m.send(&Call{Kind: CallBeat, Session: s.ID, Groups: m.nameGroups()}, s)
}

// nameGroups chooses the groups whose records the next keep-alive reads: those that this
// process leads or waits for, in turn if there are many.
func (m *Machine) nameGroups() []string {
	var groups []string
	for range m.order {
		if len(groups) == m.cfg.Caps.Batch {
			break
		}
		m.named %= len(m.order)
		if s := m.order[m.named]; s.wants || s.hold != nil {
			groups = append(groups, s.group)
		}
		m.named++
	}
	return groups
}

// compare compares what a keep-alive has read with what the watch shows. A watch that
// shows something else a beat later is silent, and another one is started: its snapshot
// tells what is missing. An older record is a difference too: the store went back.
func (m *Machine) compare(records []store.Record) {
	silent := false
	for i := range records {
		r := &records[i]
		s := m.seats[r.Group]
		if s == nil || m.watching != watchSynced {
			continue
		}
		over := len(r.Terms) > 0 && !r.Terms[len(r.Terms)-1].End.IsZero()
		switch {
		case r.Version == s.view.Version && !(over && s.view.State == tenure.Led):
			s.behindAt = clock.Never
		case s.behindAt == clock.Never:
			s.behindAt = m.now
		default:
			silent = silent || m.now >= s.behindAt.Add(m.cfg.Timing.Beat/2)
		}
	}
	if silent && !m.cfg.Plant.Has(plant.TrustSilentWatch) {
		m.note(Note{Kind: NoteWatchLost, Err: errSilent})
		m.watch()
	}
}

var errSilent = errors.New("the watch is silent: a keep-alive has read what it does not show")

func (m *Machine) beaten(f *flight, r *Reply) {
	s := f.session
	if s != m.session {
		return
	}
	switch {
	case r.Err == nil:
		s.misses = 0
		m.extend(s, f.sent, r.Beat.TTL)
		m.reopen()
		m.note(Note{Kind: NoteBeat, Call: CallBeat.String(), Session: s.ID, Took: m.now.Sub(f.sent)})
		if s.beatAt == clock.Never {
			s.beatAt = max(m.now, f.sent.Add(m.cfg.Timing.Beat))
		}
		m.compare(r.Beat.Records)
		m.asked(r.Beat.Requests)
	case errors.Is(r.Err, store.ErrSessionDead) && !m.cfg.Plant.Has(plant.IgnoreDeadSession):
		m.gone(tenure.ErrLost, store.Lost, false)
	case errors.Is(r.Err, store.ErrRewound):
		// What we hold may be another's now, or nobody's.
		m.gone(tenure.ErrLost, store.Lost, true)
	case !f.late || errors.Is(r.Err, errTimeout):
		s.misses++
		m.note(Note{Kind: NoteMissed, Call: CallBeat.String(), Session: s.ID, Count: s.misses, Silent: m.now.Sub(s.heard), Err: r.Err, Took: m.now.Sub(f.sent)})
		s.beatAt = m.now.Add(m.backoff(s.misses - 1))
	}
}

// expire ends every term: no keep-alive was acknowledged in time.
func (m *Machine) expire() {
	if m.cfg.Plant.Has(plant.ReopenTerm) {
		for _, s := range m.order {
			if s.leads() {
				m.endTerm(s, tenure.ErrExpired, store.Expired)
			}
		}
		m.session.trust = clock.Never
		return
	}
	m.gone(tenure.ErrExpired, store.Expired, true)
}

// reopen is what a planted machine does and no other: an ended term goes on.
func (m *Machine) reopen() {
	if !m.cfg.Plant.Has(plant.ReopenTerm) {
		return
	}
	for _, s := range m.order {
		if s.hold != nil && s.hold.phase == ending && errors.Is(s.hold.cause, tenure.ErrExpired) {
			s.hold.phase = leading
			m.do(Action{Kind: DoBegin, Group: s.group, Token: s.hold.record.Token, Record: s.hold.record})
		}
	}
}

// retire gives up a session that holds nothing, or a stopped machine's.
func (m *Machine) retire(why store.Reason) {
	if m.session != nil {
		m.gone(tenure.ErrResigned, why, true)
	}
}

// gone is the end of the session: nothing that it held is ours any longer.
// living says that the store may still think otherwise.
func (m *Machine) gone(cause error, why store.Reason, living bool) {
	s := m.session
	m.session = nil
	for _, f := range m.calls {
		if f.session == s && !f.late && f.Kind != CallClose {
			// Its calls must not stand in the way of the next session's.
			f.late = true
			m.lanes[f.Kind]--
		}
	}
	s.retired, s.why = true, why
	m.note(Note{Kind: NoteSession, Session: s.ID, Detail: string(why), Err: cause})
	for _, seat := range m.order {
		seat.unsure, seat.call, seat.confirming = false, 0, false
		seat.tryAt, seat.readAt = clock.Never, clock.Never
		if h := seat.hold; h != nil {
			// A shutdown closes the session next, and says if it cannot.
			m.void(seat, cause, living && !m.stopping)
		}
		if m.lent() {
			m.fail(seat, store.ErrSessionDead)
		}
		m.update(seat)
	}
	if living && !m.lent() {
		m.retired = append(m.retired, s)
		m.sweep()
	}
}

// sweep closes the retired sessions whose work has returned, to spare the others
// the wait for their expiry. One that cannot be closed expires by itself.
func (m *Machine) sweep() {
	m.retired = slices.DeleteFunc(m.retired, func(s *session) bool {
		if s.open > 0 || !m.room(CallClose) {
			return false
		}
		m.send(&Call{Kind: CallClose, Session: s.ID, Reason: s.why}, s)
		return true
	})
}

const maxCloseTries = 3

func (m *Machine) closed(f *flight, r *Reply) {
	defer m.sweep() // the lane has room again
	s := f.session
	if r.Err == nil {
		return
	}
	s.closeTries++
	m.note(Note{Kind: NoteFailed, Call: CallClose.String(), Session: s.ID, Count: s.closeTries, Err: r.Err})
	if !store.Definite(r.Err) && s.closeTries < maxCloseTries {
		m.retired = append(m.retired, s)
	} else if m.stopping {
		m.stopErr = fmt.Errorf("lease: session %s was not closed and holds its groups until it expires: %w", s.ID, r.Err)
	}
}

// listed: the sessions of a group were listed for a transfer.
func (m *Machine) listed(f *flight, r *Reply) {
	if f.request != nil {
		m.transferable(f.request, r)
	} else {
		m.successorFound(f, r)
	}
}

// rank is how many stand before us in line for the group. The last holder does not
// count, and one that has just given the group up lets all others go first.
func (m *Machine) rank(s *seat) int {
	if m.cfg.Plant.Has(plant.Herd) {
		return 0
	}
	last := s.view.Holder
	if n := len(s.view.Terms); last == "" && n > 0 {
		last = s.view.Terms[n-1].Session
	}
	us := m.session.Session
	if s.yields {
		us.Candidate.Priority = math.MinInt
	}
	return m.cfg.Line.Ahead(us, s.group, last)
}

// watch starts one, or another one in place of one that does not get on.
func (m *Machine) watch() {
	m.watching = watchStarting
	m.watchAt = m.now.Add(m.cfg.Timing.TTL)
	for _, s := range m.order {
		s.known, s.behindAt = false, clock.Never
	}
	m.do(Action{Kind: DoWatch})
}

func (m *Machine) watchLost(err error) {
	if m.stopping {
		return
	}
	m.watching = watchOff
	m.watchAt = m.now.Add(m.pause(m.watchFails))
	m.watchFails++
	m.note(Note{Kind: NoteWatchLost, Err: err})
	m.failAll(err)
	for _, s := range m.order {
		s.known = false
		m.schedule(s)
		m.update(s)
	}
}

func (m *Machine) observed(v *store.View) {
	if m.watching == watchOff {
		return
	}
	if v.Group != "" {
		if m.watching == watchStarting {
			m.watchAt = m.now.Add(m.cfg.Timing.TTL)
		}
		m.see(m.seat(v.Group), *v, told, 0)
		return
	}
	m.watching, m.watchFails, m.watchAt = watchSynced, 0, clock.Never
	first := !m.placed
	m.placed = true
	for _, s := range m.order {
		switch {
		case !s.known:
			m.see(s, VacantFromTheStart(s.group), told, 0)
		case first:
			m.schedule(s)
			m.update(s)
		}
	}
}

// VacantFromTheStart is the view of a group that has no record: nobody has led it yet.
func VacantFromTheStart(group string) store.View {
	return store.View{Record: store.Record{Group: group}, State: tenure.Vacant}
}

// health ends every term of a process that says it is unwell, before it would
// expire, and keeps it from campaigning until it is well.
func (m *Machine) health(err error) {
	change := (err == nil) != (m.sick == nil)
	m.sick = err
	if !change {
		return
	}
	for _, s := range m.order {
		if err != nil && s.leads() {
			m.endTerm(s, tenure.ErrUnhealthy, store.Unhealthy)
		}
		m.schedule(s)
		m.update(s)
	}
}

// shutdown ends everything. The session is closed when all work has returned,
// which frees every group with one call.
func (m *Machine) shutdown() {
	m.stopping = true
	m.closeBy = m.now.Add(m.cfg.Timing.Beat)
	m.openAt, m.watchAt, m.idleAt = clock.Never, clock.Never, clock.Never
	for _, s := range m.order {
		if s.wants {
			s.wants = false
			m.do(Action{Kind: DoFail, Group: s.group, Cause: ErrClosed})
		}
		if s.leads() {
			m.endTerm(s, tenure.ErrResigned, store.Resigned)
		}
		s.tryAt, s.unsure = clock.Never, false
		m.update(s)
	}
}

// stop says when there is nothing left to wait for.
func (m *Machine) stop() {
	if m.lent() {
		m.stopped = true
		m.do(Action{Kind: DoStopped})
		return
	}
	if m.opening || m.lanes[CallRelease] > 0 {
		return
	}
	for _, s := range m.order {
		if s.linger != nil || s.hold != nil && (!s.hold.returned || s.hold.to != "") {
			return
		}
	}
	m.retire(store.Resigned)
	if len(m.retired) > 0 || m.lanes[CallClose] > 0 || m.lanes[CallAnswer] > 0 {
		return
	}
	m.stopped = true
	m.do(Action{Kind: DoStopped, Cause: m.stopErr})
}

// asked handles what operators want of us.
func (m *Machine) asked(requests []store.Request) {
	for i := range requests {
		r := &requests[i]
		if a, ok := m.answers[r.ID]; ok {
			if a.Outcome != "" {
				m.answer(r.ID, a)
			}
			continue
		}
		refusal := m.refuses(r)
		switch {
		case refusal != "":
			m.answer(r.ID, store.Answer{Outcome: store.Refused, Detail: refusal})
		case r.Verb == store.StepDown:
			m.comply(r, "")
		case m.room(CallSessions):
			// What the watch has shown may be old: ask before the term ends for it. Without
			// room the next beat asks again.
			m.remember(r.ID, store.Answer{})
			m.send(&Call{Kind: CallSessions, Group: r.Group}, m.session, m.seats[r.Group])
			m.calls[len(m.calls)-1].request = r
		}
	}
}

// refuses says why a request cannot be met, as far as that is known here.
func (m *Machine) refuses(r *store.Request) string {
	s := m.seats[r.Group]
	switch {
	case s == nil || !s.leads():
		return fmt.Sprintf("group %q is not led by this session", r.Group)
	case r.Token != 0 && r.Token != s.hold.record.Token:
		return fmt.Sprintf("group %q is led with token %d, not %d", r.Group, s.hold.record.Token, r.Token)
	case r.Verb != store.StepDown && r.Verb != store.Transfer:
		return fmt.Sprintf("unknown request %q", r.Verb)
	case r.Verb == store.Transfer && r.To == m.cfg.Candidate.ID:
		return fmt.Sprintf("group %q is led by %q already", r.Group, r.To)
	}
	return ""
}

// transferable: the sessions were listed for the candidate that a request names.
func (m *Machine) transferable(r *store.Request, answer *Reply) {
	if answer.Err != nil {
		m.note(Note{Kind: NoteFailed, Call: CallSessions.String(), Group: r.Group, Err: answer.Err})
		m.forget(r.ID) // the next beat asks again
		return
	}
	refusal := m.refuses(r)
	to := Newest(answer.Sessions, r.To, m.session.ID)
	if refusal == "" && to == "" {
		refusal = fmt.Sprintf("candidate %q does not stand for group %q", r.To, r.Group)
	}
	if refusal != "" {
		m.answer(r.ID, store.Answer{Outcome: store.Refused, Detail: refusal})
		return
	}
	m.comply(r, to)
}

// comply ends the term, as it was asked to.
func (m *Machine) comply(r *store.Request, to store.SessionID) {
	s := m.seats[r.Group]
	token := s.hold.record.Token
	cause, why := tenure.ErrResigned, store.SteppedDown
	if r.Verb == store.Transfer {
		s.hold.to, s.hold.toSession, s.hold.toHint = r.To, to, true
		cause, why = tenure.ErrTransferred, store.Transferred
	}
	m.note(Note{Kind: NoteAsked, Group: r.Group, Token: token, Detail: string(r.Verb) + ": " + r.Reason})
	s.notBefore = m.now.Add(r.CoolDown)
	s.hold.requests = append(s.hold.requests, r.ID)
	m.remember(r.ID, store.Answer{})
	m.endTerm(s, cause, why)
	m.update(s)
}

// maxAnswers bounds what is remembered to answer again.
const maxAnswers = 4 * store.MaxRequests

func (m *Machine) remember(id string, a store.Answer) {
	if _, ok := m.answers[id]; !ok {
		if len(m.answered) == maxAnswers {
			delete(m.answers, m.answered[0])
			m.answered = m.answered[1:]
		}
		m.answered = append(m.answered, id)
	}
	m.answers[id] = a
}

func (m *Machine) forget(id string) {
	delete(m.answers, id)
	m.answered = slices.DeleteFunc(m.answered, func(known string) bool { return known == id })
}

func (m *Machine) answer(id string, a store.Answer) {
	m.remember(id, a)
	m.answerBy = m.now.Add(m.cfg.Timing.TTL)
	if m.session != nil && m.room(CallAnswer) {
		m.send(&Call{Kind: CallAnswer, Session: m.session.ID, Request: id, Answer: a}, m.session)
	}
}
