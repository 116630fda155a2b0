package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

// sessions caches the living sessions from the watch of the feed. The data of a session never
// changes and its id is never reused, so the cache cannot be wrong about them. Whether a
// session lives is asked of the engine where it matters.
type sessions struct {
	s      *Service
	roster machine.Roster

	mu    sync.Mutex
	by    map[store.SessionID]*known
	names map[string]int // number of sessions for each name or pattern in a scope
	nodes map[string][]*known
}

type known struct {
	store.Session
	asked time.Duration // the TTL that the client asked for, if this instance opened it
	here  bool          // this instance opened it
	beat  clock.Instant // when this instance sent the last acknowledged keep-alive
	beats bool
}

func newSessions(s *Service) *sessions {
	return &sessions{s: s, by: make(map[store.SessionID]*known), names: make(map[string]int), nodes: make(map[string][]*known)}
}

// feed starts with a new watch and returns the function that takes its updates.
func (m *sessions) feed() func(store.Update) {
	roster := m.roster.Feed()
	snapshot := make(map[store.SessionID]bool) // nil after Synced
	return func(u store.Update) {
		roster(u)
		m.mu.Lock()
		defer m.mu.Unlock()
		switch u.Kind {
		case store.SessionBegan:
			if snapshot != nil {
				snapshot[u.Session.ID] = true
			}
			m.add(u.Session)
		case store.SessionEnded:
			m.remove(u.Session.ID)
		case store.Synced:
			for id := range m.by {
				if !snapshot[id] {
					m.remove(id)
				}
			}
			snapshot = nil
		case store.GroupChanged:
		}
	}
}

// add adds a session. m.mu is held.
func (m *sessions) add(l store.Session) *known {
	k := m.by[l.ID]
	if k == nil {
		k = &known{Session: l}
		m.by[l.ID] = k
		m.nodes[l.Candidate.ID] = append(m.nodes[l.Candidate.ID], k)
		for _, p := range l.Scope {
			m.names[p]++
		}
	}
	return k
}

// remove removes a session. m.mu is held.
func (m *sessions) remove(id store.SessionID) {
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

// closed removes a session that this instance closed.
func (m *sessions) closed(id store.SessionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(id)
}

// room returns a problem (429) if a group in the scope has the most candidates already. A
// retry of the same opening needs no room.
func (m *sessions) room(node string, o store.OpenOptions) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	digest := store.InstanceDigest(o.Instance)
	if slices.ContainsFunc(m.nodes[node], func(k *known) bool { return k.Instance == digest && slices.Equal(k.Scope, o.Scope) }) {
		return nil
	}
	for _, p := range o.Scope {
		if err := m.s.gate.Room(auth.CandidateIn, m.candidates(p), 1); err != nil {
			return err
		}
	}
	return nil
}

// candidates counts the sessions whose scope includes a group, or all groups of a pattern.
func (m *sessions) candidates(pattern string) int {
	n := m.names[pattern]
	for end := len(strings.TrimSuffix(pattern, "*")); end >= 0; end-- {
		if broader := pattern[:end] + "*"; broader != pattern {
			n += m.names[broader]
		}
	}
	return n
}

// beaten records an acknowledged keep-alive.
func (m *sessions) beaten(id store.SessionID, sent clock.Instant, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.by[id]; k != nil {
		k.beat, k.beats, k.TTL = sent, true, ttl
	}
}

// remaining is how long a session lasts at most without another keep-alive. If this instance
// has sent none, that is the whole TTL. known is false if the cache does not have the session.
func (m *sessions) remaining(id store.SessionID, now clock.Instant) (left time.Duration, known bool) {
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

// known returns a session from the cache.
func (m *sessions) known(id store.SessionID) (store.Session, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.by[id]; k != nil {
		return k.Session, true
	}
	return store.Session{}, false
}

// opened adds a session that Open returned, which may be an older one of the same attempt, and
// reports other processes with the same node id. It returns whether the client asks for the
// same TTL as when the session was opened.
func (m *sessions) opened(l store.Session, sent clock.Instant, asked, ttl time.Duration) (same bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.by[l.ID]
	if k == nil {
		for _, other := range m.nodes[l.Candidate.ID] {
			if m.s.duplicates.met(other.Session, l) {
				break
			}
		}
		k = m.add(l)
	}
	k.beat, k.beats = sent, true
	if k.here {
		return k.asked == asked
	}
	k.asked, k.here = asked, true
	ttl = max(ttl, m.s.store.Caps().MinTTL)
	return asked == 0 || l.TTL >= ttl && l.TTL < ttl+time.Second // engines may count in seconds
}

// leaders returns who leads each group, and how many groups each node with a living session leads.
func (s *Service) leaders() (leaders map[string]string, nodes map[string]int) {
	leaders, nodes = s.feed.Leaders()
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	for node := range s.sessions.nodes {
		nodes[node] += 0
	}
	return leaders, nodes
}

// find returns a session from the cache or from the engine. A cached session may have ended
// since. ErrSessionDead: there is none.
func (m *sessions) find(ctx context.Context, id store.SessionID) (store.Session, error) {
	if l, ok := m.known(id); ok {
		return l, nil
	}
	return m.s.engine.Session(ctx, id)
}

// engine is the store of an instance. It bounds and measures calls.
type engine struct {
	store.Store
	s *Service
}

func bounded[T any](ctx context.Context, e engine, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := e.s.call(ctx)
	defer cancel()
	sent := e.s.clock.Now()
	got, err := f(ctx)
	e.s.metrics.EngineCall(e.s.clock.Now().Sub(sent), err)
	return got, err
}

func (e engine) Session(ctx context.Context, id store.SessionID) (store.Session, error) {
	return bounded(ctx, e, func(ctx context.Context) (store.Session, error) { return e.Store.Session(ctx, id) })
}

func (e engine) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	sent := e.s.clock.Now()
	beat, err := bounded(ctx, e, func(ctx context.Context) (store.Beat, error) { return e.Store.KeepAlive(ctx, id, groups...) })
	if err == nil {
		e.s.sessions.beaten(id, sent, beat.TTL)
	}
	return beat, err
}

func (e engine) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	_, err := bounded(ctx, e, func(ctx context.Context) (any, error) { return nil, e.Store.End(ctx, id, why, seen...) })
	if err == nil {
		e.s.sessions.closed(id)
	}
	return err
}

func (e engine) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	granted, err := bounded(ctx, e, func(ctx context.Context) ([]store.Record, error) { return e.Store.Acquire(ctx, id, seen...) })
	e.s.spans.Granted(granted...)
	return granted, err
}

func (e engine) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	released, err := bounded(ctx, e, func(ctx context.Context) ([]store.Record, error) { return e.Store.Release(ctx, id, to, why, held...) })
	if to != "" {
		e.s.spans.Granted(released...)
	}
	return released, err
}

func (e engine) Answer(ctx context.Context, id store.SessionID, request string, a store.Answer) error {
	_, err := bounded(ctx, e, func(ctx context.Context) (any, error) { return nil, e.Store.Answer(ctx, id, request, a) })
	return err
}

// Read shares reads of a group.
func (e engine) Read(ctx context.Context, group string) (store.View, error) {
	a, err := e.s.reader.Read(ctx, group)
	return a.View, err
}

// open opens a session and caches it. asked is the TTL that the client asked for, ttl the one
// that it gets.
func (s *Service) open(ctx context.Context, c tenure.Candidate, asked, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	sent := s.clock.Now()
	session, err := bounded(ctx, s.engine, func(ctx context.Context) (store.Session, error) { return s.store.Open(ctx, c, ttl, o) })
	var argument *store.ArgumentError
	if errors.As(err, &argument) && argument.Field == "attempt" || err == nil && !s.sessions.opened(session, sent, asked, ttl) {
		return store.Session{}, instanceReused(c.ID)
	}
	return session, err
}

// duplicates reports processes that use one node id.
type duplicates struct {
	s *Service

	mu   sync.Mutex
	told map[string]bool // nodes that were logged
}

// duplicatesTold bounds told.
const duplicatesTold = 1024

// met reports whether two sessions belong to different processes with one node id. It counts
// that, and logs it once for each node.
func (t *duplicates) met(a, b store.Session) bool {
	if !operator.Duplicate(a, b) {
		return false
	}
	t.s.metrics.Duplicates.Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	node := a.Candidate.ID
	if t.told[node] {
		return true
	}
	if len(t.told) >= duplicatesTold {
		clear(t.told)
	}
	t.told[node] = true
	t.s.cfg.Log.Warn("two processes use one node id, or one was restarted and its old session has not expired; give each process its own id",
		"node", node, "session", fingerprint(a), "other", fingerprint(b), "address", a.Candidate.Address, "other_address", b.Candidate.Address)
	return true
}

// fingerprint names a session in a log without its id, which is a secret of its owner. A
// caller without a session is named by its instance.
func fingerprint(l store.Session) string {
	const figures = 8
	sum := sha256.Sum256([]byte("session\x00" + string(l.ID) + "\x00" + l.Instance))
	return hex.EncodeToString(sum[:])[:figures]
}
