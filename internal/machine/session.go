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

// session is what the machine knows about a session.
type session struct {
	store.Session
	heard  clock.Instant // when the newest acknowledged keep-alive was sent
	trust  clock.Instant // until when the process may act on it
	beatAt clock.Instant
	misses int
	atRisk bool
	// open counts the terms whose work has not returned. The session is not closed
	// while there are any: their groups must not be granted to others.
	open       int
	retired    bool
	why        store.Reason
	closeTries int
}

// start returns the state of a session that is known to be alive.
func (m *Machine) start(of store.Session, sent clock.Instant) *session {
	s := &session{Session: of, trust: sent, beatAt: sent.Add(m.cfg.Timing.Beat)}
	if m.lent() {
		s.trust, s.beatAt = clock.Never, clock.Never
		return s
	}
	m.extend(s, sent, s.TTL)
	return s
}

// lent: see Config.Lent.
func (m *Machine) lent() bool { return m.cfg.Lent && !m.cfg.Plant.Has(plant.ReopenLent) }

// stopAt is when the terms of the session end: Grace before the end of trust.
func (m *Machine) stopAt(s *session) clock.Instant {
	if s.trust == clock.Never || m.cfg.Plant.Has(plant.IgnoreTrustEnd) {
		return clock.Never
	}
	return s.trust.Add(-m.cfg.Timing.Grace)
}

// riskAt is when the terms are at risk: Misses keep-alives were not acknowledged.
func (m *Machine) riskAt(s *session) clock.Instant {
	if s.atRisk || m.lent() {
		return clock.Never
	}
	return s.heard.Add(Times(m.cfg.Timing.Beat, m.cfg.Timing.Misses))
}

// extend extends trust. It counts from when the keep-alive was sent, not from when its
// reply came: the store may have started the TTL at any moment in between.
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
		// The reply took longer than the trust that it gives, or the machine stops.
		m.openAt = m.now.Add(m.pause(m.openFails))
		m.openFails++
		m.retire(store.Resigned)
		return
	}
	m.openFails = 0
	m.note(Note{Kind: NoteOpened, Session: s.ID, Took: m.now.Sub(f.sent)})
	for _, g := range m.order {
		// The session exists since an earlier try of this Open, and has got the group since.
		if g.known && g.view.State == tenure.Led && g.view.Holder == s.ID {
			m.namesUs(g, g.view.Record, false)
		}
		m.schedule(g)
		m.update(g)
	}
}

func (m *Machine) beat() {
	s := m.session
	s.beatAt = clock.Never // the reply sets it
	if !m.mayCall(CallBeat) {
		return
	}
	m.send(&Call{Kind: CallBeat, Session: s.ID, Groups: m.beatGroups()}, s)
}

// beatGroups returns the groups whose records the next keep-alive reads: those that this
// process leads or campaigns for. If there are too many for one call, it takes turns.
func (m *Machine) beatGroups() []string {
	var groups []string
	for range m.order {
		if len(groups) == m.cfg.Caps.Batch {
			break
		}
		m.beatFrom %= len(m.order)
		if s := m.order[m.beatFrom]; s.wants || s.hold != nil {
			groups = append(groups, s.group)
		}
		m.beatFrom++
	}
	return groups
}

// compare compares the records that a keep-alive has read with those of the watch. If they
// still differ one beat later, the watch is stale, and the machine starts another one, whose
// snapshot is complete. An older record counts as a difference too: the store was rewound.
func (m *Machine) compare(records []store.Record) {
	silent := false
	for i := range records {
		r := &records[i]
		s := m.groups[r.Group]
		if s == nil || m.watching != watchSynced {
			continue
		}
		ended := len(r.Terms) > 0 && !r.Terms[len(r.Terms)-1].End.IsZero()
		switch {
		case r.Version == s.view.Version && !(ended && s.view.State == tenure.Led):
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

func (m *Machine) beatDone(f *flight, r *Reply) {
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
		m.endSession(tenure.ErrLost, store.Lost, false)
	case errors.Is(r.Err, store.ErrRewound):
		// The store may have lost our grants.
		m.endSession(tenure.ErrLost, store.Lost, true)
	case !f.late || errors.Is(r.Err, errTimeout):
		s.misses++
		m.note(Note{Kind: NoteMissed, Call: CallBeat.String(), Session: s.ID, Count: s.misses, Silent: m.now.Sub(s.heard), Err: r.Err, Took: m.now.Sub(f.sent)})
		s.beatAt = m.now.Add(m.backoff(s.misses - 1))
	}
}

// expire ends every term, because no keep-alive was acknowledged in time.
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
	m.endSession(tenure.ErrExpired, store.Expired, true)
}

// reopen is a planted bug: an ended term goes on.
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

// retire gives up the session: it holds nothing, or the machine stops.
func (m *Machine) retire(why store.Reason) {
	if m.session != nil {
		m.endSession(tenure.ErrResigned, why, true)
	}
}

// endSession ends the session and all its grants. living means that it may still be
// alive in the store.
func (m *Machine) endSession(cause error, why store.Reason, living bool) {
	s := m.session
	m.session = nil
	for _, f := range m.calls {
		if f.session == s && !f.late && f.Kind != CallClose {
			// These calls must not delay those of the next session.
			f.late = true
			m.inFlight[f.Kind]--
		}
	}
	s.retired, s.why = true, why
	m.note(Note{Kind: NoteSession, Session: s.ID, Detail: string(why), Err: cause})
	for _, g := range m.order {
		g.unsure, g.call, g.confirming = false, 0, false
		g.tryAt, g.readAt = clock.Never, clock.Never
		if h := g.hold; h != nil {
			// A shutdown closes the session next, and reports if that fails.
			m.loseGrant(g, cause, living && !m.stopping)
		}
		if m.lent() {
			m.fail(g, store.ErrSessionDead)
		}
		m.update(g)
	}
	if living && !m.lent() {
		m.retired = append(m.retired, s)
		m.closeRetired()
	}
}

// closeRetired closes retired sessions whose work has returned, so that the other
// candidates need not wait for their expiry. If a close fails, the session expires.
func (m *Machine) closeRetired() {
	m.retired = slices.DeleteFunc(m.retired, func(s *session) bool {
		if s.open > 0 || !m.mayCall(CallClose) {
			return false
		}
		m.send(&Call{Kind: CallClose, Session: s.ID, Reason: s.why}, s)
		return true
	})
}

const maxCloseTries = 3

func (m *Machine) closed(f *flight, r *Reply) {
	defer m.closeRetired() // another close may be sent now
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

// listed handles the list of a group's sessions, for a transfer.
func (m *Machine) listed(f *flight, r *Reply) {
	if f.request != nil {
		m.transferable(f.request, r)
	} else {
		m.successorFound(f, r)
	}
}

// rank is how many candidates try for the group before this one. The last holder does
// not count, and a candidate that has just given the group up goes last.
func (m *Machine) rank(s *groupState) int {
	if m.cfg.Plant.Has(plant.Herd) {
		return 0
	}
	last := s.view.Holder
	if n := len(s.view.Terms); last == "" && n > 0 {
		last = s.view.Terms[n-1].Session
	}
	us := m.session.Session
	if s.goesLast {
		us.Candidate.Priority = math.MinInt
	}
	return m.cfg.Line.Ahead(us, s.group, last)
}

// watch starts a watch, in place of the one before.
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

func (m *Machine) onView(v *store.View) {
	if m.watching == watchOff {
		return
	}
	if v.Group != "" {
		if m.watching == watchStarting {
			m.watchAt = m.now.Add(m.cfg.Timing.TTL)
		}
		m.apply(m.group(v.Group), *v, fromWatch, 0)
		return
	}
	m.watching, m.watchFails, m.watchAt = watchSynced, 0, clock.Never
	first := !m.lineKnown
	m.lineKnown = true
	for _, s := range m.order {
		switch {
		case !s.known:
			m.apply(s, VacantFromTheStart(s.group), fromWatch, 0)
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

// health ends every term if the process reports that it is unhealthy, and suspends its
// campaigns until it is healthy again.
func (m *Machine) health(err error) {
	change := (err == nil) != (m.unhealthy == nil)
	m.unhealthy = err
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

// stop reports DoStopped when nothing is left to wait for.
func (m *Machine) stop() {
	if m.lent() {
		m.stopped = true
		m.do(Action{Kind: DoStopped})
		return
	}
	if m.opening || m.inFlight[CallRelease] > 0 {
		return
	}
	for _, s := range m.order {
		if s.lostHold != nil || s.hold != nil && (!s.hold.returned || s.hold.to != "") {
			return
		}
	}
	m.retire(store.Resigned)
	if len(m.retired) > 0 || m.inFlight[CallClose] > 0 || m.inFlight[CallAnswer] > 0 {
		return
	}
	m.stopped = true
	m.do(Action{Kind: DoStopped, Cause: m.stopErr})
}

// asked handles operators' requests.
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
		case m.mayCall(CallSessions):
			// The roster may be outdated: list the sessions before the term ends for it. If
			// no call can be sent now, the next keep-alive delivers the request again.
			m.remember(r.ID, store.Answer{})
			m.send(&Call{Kind: CallSessions, Group: r.Group}, m.session, m.groups[r.Group])
			m.calls[len(m.calls)-1].request = r
		}
	}
}

// refuses says why a request must be refused; "" if this process knows no reason.
func (m *Machine) refuses(r *store.Request) string {
	s := m.groups[r.Group]
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

// transferable handles the list of sessions for a transfer that an operator requests.
func (m *Machine) transferable(r *store.Request, answer *Reply) {
	if answer.Err != nil {
		m.note(Note{Kind: NoteFailed, Call: CallSessions.String(), Group: r.Group, Err: answer.Err})
		m.forget(r.ID) // the next keep-alive delivers the request again
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

// comply ends the term because of an operator's request.
func (m *Machine) comply(r *store.Request, to store.SessionID) {
	s := m.groups[r.Group]
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

// maxAnswers bounds the answers that are kept, to send them again if one is lost.
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
	if m.session != nil && m.mayCall(CallAnswer) {
		m.send(&Call{Kind: CallAnswer, Session: m.session.ID, Request: id, Answer: a}, m.session)
	}
}
