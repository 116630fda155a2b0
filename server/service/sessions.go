package service

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
)

// sessions knows the living sessions from the feed's watch. What a session says of itself
// never changes and its id is never used again, so it cannot be wrong; whether it lives is
// asked of the engine where that counts.
type sessions struct {
	s      *Service
	roster lease.Roster

	mu    sync.Mutex
	by    map[lease.SessionID]*known
	names map[string]int // sessions by the names, and by the patterns, of their scope
	nodes map[string][]*known
}

type known struct {
	lease.Session
	asked time.Duration // the TTL that the client asked for, if it was opened from here
	here  bool          // it was opened from here
	beat  clock.Instant // when the last acknowledged keep-alive was sent from here
	beats bool
}

func newSessions(s *Service) *sessions {
	return &sessions{s: s, by: make(map[lease.SessionID]*known), names: make(map[string]int), nodes: make(map[string][]*known)}
}

// feed begins with a new watch, and returns what takes its updates.
func (m *sessions) feed() func(lease.Update) {
	roster := m.roster.Feed()
	pictured := make(map[lease.SessionID]bool) // nil when the snapshot is complete
	return func(u lease.Update) {
		roster(u)
		m.mu.Lock()
		defer m.mu.Unlock()
		switch u.Kind {
		case lease.SessionBegan:
			if pictured != nil {
				pictured[u.Session.ID] = true
			}
			m.learn(u.Session)
		case lease.SessionEnded:
			m.forget(u.Session.ID)
		case lease.Synced:
			for id := range m.by {
				if !pictured[id] {
					m.forget(id)
				}
			}
			pictured = nil
		case lease.GroupChanged:
		}
	}
}

// learn takes in a session. m.mu is held.
func (m *sessions) learn(l lease.Session) *known {
	if k := m.by[l.ID]; k != nil {
		return k
	}
	k := &known{Session: l}
	m.by[l.ID] = k
	m.nodes[l.Candidate.ID] = append(m.nodes[l.Candidate.ID], k)
	for _, p := range l.Scope {
		m.names[p]++
	}
	return k
}

// forget takes a session out. m.mu is held.
func (m *sessions) forget(id lease.SessionID) {
	k := m.by[id]
	if k == nil {
		return
	}
	delete(m.by, id)
	node := k.Candidate.ID
	if m.nodes[node] = slices.DeleteFunc(m.nodes[node], func(o *known) bool { return o == k }); len(m.nodes[node]) == 0 {
		delete(m.nodes, node)
	}
	for _, p := range k.Scope {
		if m.names[p]--; m.names[p] == 0 {
			delete(m.names, p)
		}
	}
}

// closed takes out a session that was closed from here.
func (m *sessions) closed(id lease.SessionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(id)
}

// room returns a problem (429) if there are as many candidates for one of the groups in
// scope as there may be. An opening that is retried needs no more room.
func (m *sessions) room(node string, o lease.OpenOptions) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	digest := lease.InstanceDigest(o.Instance)
	if slices.ContainsFunc(m.nodes[node], func(k *known) bool { return k.Instance == digest && slices.Equal(k.Scope, o.Scope) }) {
		return nil
	}
	for _, p := range o.Scope {
		if err := m.s.gate.Room(auth.CandidateIn, m.stand(p), 1); err != nil {
			return err
		}
	}
	return nil
}

// stand counts the sessions that stand for a group, or for all that begin so.
func (m *sessions) stand(pattern string) int {
	n := m.names[pattern]
	for end := len(strings.TrimSuffix(pattern, "*")); end >= 0; end-- {
		if broader := pattern[:end] + "*"; broader != pattern {
			n += m.names[broader]
		}
	}
	return n
}

// beaten notes an acknowledged keep-alive.
func (m *sessions) beaten(id lease.SessionID, sent clock.Instant, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.by[id]; k != nil {
		k.beat, k.beats, k.TTL = sent, true, ttl
	}
}

// remaining is how long a session lasts at most without another keep-alive: its whole TTL
// where others carry all of its beats, nothing when those from here are too old. It is not
// told of a session that is not known here.
func (m *sessions) remaining(id lease.SessionID, now clock.Instant) (left time.Duration, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.by[id]
	switch {
	case k == nil:
		return 0, false
	case !k.beats:
		return k.TTL, true
	}
	return max(0, k.TTL-now.Sub(k.beat)), true
}

// known returns what a session said of itself, if this instance has heard it.
func (m *sessions) known(id lease.SessionID) (lease.Session, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.by[id]; k != nil {
		return k.Session, true
	}
	return lease.Session{}, false
}

// opened takes in a session that Open returned, which may be an older one of the same
// attempt, and reports those of other processes with the same node id. It returns whether
// the client asked for the same TTL then.
func (m *sessions) opened(l lease.Session, sent clock.Instant, asked, ttl time.Duration) (same bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.by[l.ID]
	if k == nil {
		for _, other := range m.nodes[l.Candidate.ID] {
			if m.s.duplicates.met(other.Session, l) {
				break
			}
		}
		k = m.learn(l)
	}
	k.beat, k.beats = sent, true
	if k.here {
		return k.asked == asked
	}
	k.asked, k.here = asked, true
	ttl = max(ttl, m.s.store.Caps().MinTTL)
	return asked == 0 || l.TTL >= ttl && l.TTL < ttl+time.Second // engines may count in seconds
}

// find returns a session from memory or from the engine. ErrSessionDead: there is none. One
// that is known may have died since.
func (m *sessions) find(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	if l, ok := m.known(id); ok {
		return l, nil
	}
	return m.s.engine.Session(ctx, id)
}

// engine is the store of an instance, with the bounds and the metrics of its calls.
type engine struct {
	lease.Store
	s *Service
}

func bounded[T any](ctx context.Context, e engine, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := e.s.call(ctx)
	defer cancel()
	sent := e.s.clock.Now()
	got, err := f(ctx)
	e.s.metrics.engineCall(e.s.clock.Now().Sub(sent), err)
	return got, err
}

func (e engine) Session(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	return bounded(ctx, e, func(ctx context.Context) (lease.Session, error) { return e.Store.Session(ctx, id) })
}

func (e engine) KeepAlive(ctx context.Context, id lease.SessionID, groups ...string) (lease.Beat, error) {
	sent := e.s.clock.Now()
	beat, err := bounded(ctx, e, func(ctx context.Context) (lease.Beat, error) { return e.Store.KeepAlive(ctx, id, groups...) })
	if err == nil {
		e.s.sessions.beaten(id, sent, beat.TTL)
	}
	return beat, err
}

func (e engine) Close(ctx context.Context, id lease.SessionID, why lease.Reason, seen ...lease.Record) error {
	_, err := bounded(ctx, e, func(ctx context.Context) (struct{}, error) { return struct{}{}, e.Store.Close(ctx, id, why, seen...) })
	if err == nil {
		e.s.sessions.closed(id)
	}
	return err
}

func (e engine) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	return bounded(ctx, e, func(ctx context.Context) ([]lease.Record, error) { return e.Store.Acquire(ctx, id, seen...) })
}

func (e engine) Release(ctx context.Context, id, to lease.SessionID, why lease.Reason, held ...lease.Record) ([]lease.Record, error) {
	return bounded(ctx, e, func(ctx context.Context) ([]lease.Record, error) { return e.Store.Release(ctx, id, to, why, held...) })
}

func (e engine) Answer(ctx context.Context, id lease.SessionID, request string, a lease.Answer) error {
	_, err := bounded(ctx, e, func(ctx context.Context) (struct{}, error) { return struct{}{}, e.Store.Answer(ctx, id, request, a) })
	return err
}

// Read shares reads of a group.
func (e engine) Read(ctx context.Context, group string) (lease.View, error) {
	a, err := e.s.reader.Read(ctx, group)
	return a.View, err
}

// open opens a session and notes it. asked is the TTL that the client asked for, ttl the
// one that it gets.
func (s *Service) open(ctx context.Context, c tenure.Candidate, asked, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	sent := s.clock.Now()
	session, err := bounded(ctx, s.engine, func(ctx context.Context) (lease.Session, error) { return s.store.Open(ctx, c, ttl, o) })
	var argument *lease.ArgumentError
	switch {
	case errors.As(err, &argument) && argument.Field == "attempt":
		return lease.Session{}, instanceReused(c.ID)
	case err != nil:
		return lease.Session{}, err
	}
	if !s.sessions.opened(session, sent, asked, ttl) {
		return lease.Session{}, instanceReused(c.ID)
	}
	return session, nil
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
	return session, s.covers(auth.From(ctx), auth.Campaign, session.Scope)
}

func notYours() *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusForbidden, Code: "not_your_session",
		Detail: "the session of the handle belongs to another node: a node speaks for its own only",
	}
}

// requestsFor are those about a term of the group, or all of them.
func requestsFor(all []lease.Request, group string, term fence.Token) []Request {
	var out []Request
	for _, r := range all {
		if group == "" || election.Concerns(r, group, term) {
			out = append(out, Request{
				ID: r.ID, Verb: string(r.Verb), Group: r.Group, Term: r.Token, To: r.To, Reason: r.Reason, CoolDown: r.CoolDown.Milliseconds(),
			})
		}
	}
	return out
}
