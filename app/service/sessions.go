package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/service/access"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// sessionsKept bounds what an instance remembers of sessions; beyond it, it begins anew.
const sessionsKept = 1 << 16

// sessions remembers what saves a look at the engine. What a session says of itself never
// changes and its id is never used again, so it cannot be wrong; whether it lives is
// always asked.
type sessions struct {
	s  *Service
	mu sync.Mutex
	by map[lease.SessionID]*known

	unknown chan struct{} // a session was met that is not known
}

type known struct {
	node string
	lease.Session
	whole bool          // Session is known, not only whose it is
	asked time.Duration // the TTL that the client asked for, if it was opened from here
	here  bool          // it was opened from here
	beat  clock.Instant // when the last acknowledged keep-alive was sent from here
	beats bool
}

func newSessions(s *Service) *sessions {
	return &sessions{s: s, by: make(map[lease.SessionID]*known), unknown: make(chan struct{}, 1)}
}

// meet has a session looked for that this instance has not heard of, soon and beside what
// is under way: an engine lists all of its sessions or none.
func (m *sessions) meet() {
	select {
	case m.unknown <- struct{}{}:
	default:
	}
}

// acquaint looks for sessions that were met, until the instance ends.
func (m *sessions) acquaint() {
	for {
		select {
		case <-m.s.ctx.Done():
			return
		case <-m.unknown:
		}
		begin := m.s.clock.Now()
		if err := m.each(m.s.ctx, lease.Scope{"*"}, func(lease.Session) bool { return m.s.ctx.Err() == nil }); err != nil {
			m.s.cfg.Log.Warn("sessions could not be listed", "err", err)
		}
		select {
		case <-m.s.ctx.Done():
			return
		case <-time.After(max(time.Second, censusShare*m.s.clock.Now().Sub(begin))):
		}
	}
}

func (m *sessions) entry(id lease.SessionID) *known {
	k := m.by[id]
	if k == nil {
		if len(m.by) >= sessionsKept {
			clear(m.by)
		}
		k = &known{}
		m.by[id] = k
	}
	return k
}

// learn takes in a session.
func (m *sessions) learn(l lease.Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.entry(l.ID)
	k.node, k.Session, k.whole = l.Candidate.ID, l, true
}

// seen takes in who holds a group.
func (m *sessions) seen(v lease.View) {
	if v.Holder == "" || v.Candidate.ID == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entry(v.Holder).node = v.Candidate.ID
}

// owner returns whose session it is, "" if that is not known here.
func (m *sessions) owner(id lease.SessionID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.by[id]; k != nil {
		return k.node
	}
	return ""
}

// beaten notes an acknowledged keep-alive.
func (m *sessions) beaten(id lease.SessionID, sent clock.Instant, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.entry(id)
	k.beat, k.beats, k.TTL = sent, true, ttl
}

// remaining is how long a session lasts at most without another keep-alive: its whole TTL
// where others carry all of its beats, nothing when those from here are too old. It is not
// told of a session whose TTL is not known here.
func (m *sessions) remaining(id lease.SessionID, now clock.Instant) (left time.Duration, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.by[id]
	switch {
	case k == nil || k.TTL == 0:
		m.meet()
		return 0, false
	case !k.beats:
		return k.TTL, true
	}
	return max(0, k.TTL-now.Sub(k.beat)), true
}

// ttl is a session's TTL; where it is not known here, that which sessions mostly have.
func (m *sessions) ttl(id lease.SessionID) time.Duration {
	if ttl := m.ttlOf(id); ttl > 0 {
		return ttl
	}
	return m.s.cfg.TTL
}

// ttlOf is a session's TTL, 0 if it is not known here.
func (m *sessions) ttlOf(id lease.SessionID) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.by[id]; k != nil {
		return k.TTL
	}
	return 0
}

// known returns what a session said of itself, if this instance has heard it.
func (m *sessions) known(id lease.SessionID) (lease.Session, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.by[id]; k != nil && k.whole {
		return k.Session, true
	}
	return lease.Session{}, false
}

// opened takes in a session that Open returned, which may be an older one of the same
// attempt. It reports whether the client asked for the same TTL then.
func (m *sessions) opened(l lease.Session, asked, ttl time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.entry(l.ID)
	if k.here {
		return k.asked == asked
	}
	k.node, k.Session, k.whole, k.asked, k.here = l.Candidate.ID, l, true, asked, true
	ttl = max(ttl, m.s.store.Caps().MinTTL)
	return asked == 0 || l.TTL >= ttl && l.TTL < ttl+time.Second // engines may count in seconds
}

// find returns a living session by its handle, from memory or from the engine.
// ErrSessionDead: there is none.
func (m *sessions) find(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	if l, ok := m.known(id); ok {
		return l, nil
	}
	ctx, cancel := m.s.call(ctx)
	defer cancel()
	l, err := m.s.store.Session(ctx, id)
	if err == nil {
		m.learn(l)
	}
	return l, err
}

// each passes the living sessions in scope on, in line, until it is enough.
func (m *sessions) each(ctx context.Context, scope lease.Scope, f func(lease.Session) bool) error {
	for page := (lease.Page{}); ; {
		ctx, cancel := m.s.call(ctx)
		line, err := m.s.store.Sessions(ctx, scope, page)
		cancel()
		if err != nil {
			return err
		}
		for _, l := range line {
			m.learn(l)
			if !f(l) {
				return nil
			}
		}
		if len(line) < lease.MaxPage {
			return nil
		}
		page.After = string(line[len(line)-1].ID)
	}
}

// newest is the youngest living session of a candidate that stands for the group.
func (m *sessions) newest(ctx context.Context, group, candidate string) (lease.Session, error) {
	var found lease.Session
	err := m.each(ctx, lease.Scope{group}, func(l lease.Session) bool {
		if l.Candidate.ID == candidate && l.Scope.Covers(group) && (found.ID == "" || l.Opened > found.Opened) {
			found = l
		}
		return true
	})
	return found, err
}

// keep keeps a session alive, reads the records of groups, and notes it.
func (s *Service) keep(ctx context.Context, id lease.SessionID, groups ...string) (lease.Beat, clock.Instant, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	sent := s.clock.Now()
	beat, err := s.store.KeepAlive(ctx, id, groups...)
	s.metrics.engineCall(s.clock.Now().Sub(sent), err)
	if err != nil {
		return lease.Beat{}, sent, err
	}
	s.sessions.beaten(id, sent, beat.TTL)
	return beat, sent, nil
}

// open opens a session and notes it. asked is the TTL that the client asked for, ttl the
// one that it gets.
func (s *Service) open(ctx context.Context, c tenure.Candidate, asked, ttl time.Duration, o lease.OpenOptions) (lease.Session, clock.Instant, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	sent := s.clock.Now()
	session, err := s.store.Open(ctx, c, ttl, o)
	s.metrics.engineCall(s.clock.Now().Sub(sent), err)
	var argument *lease.ArgumentError
	switch {
	case errors.As(err, &argument) && argument.Field == "attempt":
		return lease.Session{}, sent, instanceReused(c.ID)
	case err != nil:
		return lease.Session{}, sent, err
	}
	same := s.sessions.opened(session, asked, ttl)
	s.census.opened(session)
	s.sessions.beaten(session.ID, sent, session.TTL)
	if !same {
		return lease.Session{}, sent, instanceReused(c.ID)
	}
	return session, sent, nil
}

// own returns the session of a handle if it is the node's, which may stand for all that
// the session does.
func (s *Service) own(ctx context.Context, h handle, node string) (lease.Session, error) {
	session, err := s.sessions.find(ctx, h.session)
	if err != nil {
		return lease.Session{}, err
	}
	if session.Candidate.ID != node {
		return lease.Session{}, notYours()
	}
	return session, s.covers(access.From(ctx), access.Campaign, session.Scope)
}

func notYours() *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusForbidden, Code: "not_your_session",
		Detail: "the session of the handle belongs to another node: a node speaks for its own only",
	}
}

// concerns reports whether a request is about a term of the group. One that was left with an
// earlier term of the same session is not.
func concerns(r lease.Request, group string, term fence.Token) bool {
	return r.Group == group && (r.Token == 0 || r.Token == term)
}

// requestsFor are those about a term of the group, or all of them.
func requestsFor(all []lease.Request, group string, term fence.Token) []Request {
	var out []Request
	for _, r := range all {
		if !closes(r) && (group == "" || concerns(r, group, term)) {
			out = append(out, Request{
				ID: r.ID, Verb: string(r.Verb), Group: r.Group, Term: r.Token, To: r.To, Reason: r.Reason, CoolDown: r.CoolDown.Milliseconds(),
			})
		}
	}
	return out
}

// settle answers what was asked about the term of v, which has been given up to the
// candidate to, or to nobody.
func (s *Service) settle(ctx context.Context, v lease.View, waiting []lease.Request, to string) {
	for _, r := range waiting {
		if r.Group != v.Group || closes(r) {
			continue
		}
		answer := lease.Answer{Outcome: lease.Done, Detail: "resigned"}
		switch {
		case r.Verb != lease.Transfer || r.To == to:
		case to == "":
			answer = lease.Answer{Outcome: lease.Refused, Detail: fmt.Sprintf("candidate %q left or may not lead; the group was released", r.To)}
		default:
			answer = lease.Answer{Outcome: lease.Refused, Detail: fmt.Sprintf("the group was handed to %q", to)}
		}
		ctx, cancel := s.call(ctx)
		err := s.store.Answer(ctx, v.Holder, r.ID, answer)
		cancel()
		if err != nil && !errors.Is(err, lease.ErrNotFound) && !errors.Is(err, lease.ErrSessionDead) {
			s.cfg.Log.Warn("cannot write the answer to a request", "group", v.Group, "request", r.ID, "err", err)
		}
	}
}
