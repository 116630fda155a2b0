// Package sessions caches the living sessions for one instance of the service.
package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

// Cache caches the living sessions from the watch of the feed. The data of a session never
// changes and its id is never reused, so the cache cannot be wrong about them. Whether a
// session lives is asked of the engine where it matters.
type Cache struct {
	// Roster is the order of the candidates.
	Roster machine.Roster

	cfg   Config
	mu    sync.Mutex
	by    map[store.SessionID]*known
	names map[string]int // number of sessions for each name or pattern in a scope
	nodes map[string][]*known
	told  map[string]bool // nodes whose duplicates were logged
}

// Config says where the cache asks.
type Config struct {
	// Session asks the engine. MinTTL is the shortest TTL that it grants.
	Session func(context.Context, store.SessionID) (store.Session, error)
	MinTTL  time.Duration
	// Room returns a problem if a group with so many candidates may have no further one.
	Room func(candidates int) error
	// Ended is called for each session that is removed; why is "" if that is not known.
	Ended func(id store.SessionID, why store.Reason)
	// Duplicate is called for each process that uses the node id of another.
	Duplicate func()
	Log       *slog.Logger
}

type known struct {
	store.Session
	asked time.Duration // the TTL that the client asked for, if this instance opened it
	here  bool          // this instance opened it
	beat  clock.Instant // when this instance sent the last acknowledged keep-alive
	beats bool
}

// New returns an empty cache.
func New(cfg Config) *Cache {
	return &Cache{
		cfg: cfg, by: make(map[store.SessionID]*known), names: make(map[string]int), nodes: make(map[string][]*known), told: make(map[string]bool),
	}
}

// Feed starts with a new watch and returns the function that takes its updates.
func (m *Cache) Feed() func(store.Update) {
	roster := m.Roster.Feed()
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
			m.remove(u.Session.ID, u.Reason)
		case store.Synced:
			for id := range m.by {
				if !snapshot[id] {
					m.remove(id, "")
				}
			}
			snapshot = nil
		case store.GroupChanged:
		}
	}
}

// add adds a session. m.mu is held.
func (m *Cache) add(l store.Session) *known {
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
func (m *Cache) remove(id store.SessionID, why store.Reason) {
	k := m.by[id]
	if k == nil {
		return
	}
	m.cfg.Ended(id, why)
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

// Closed removes a session that this instance closed.
func (m *Cache) Closed(id store.SessionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(id, "")
}

// Room returns a problem (429) if a group in the scope has the most candidates already. A
// retry of the same opening needs no room.
func (m *Cache) Room(node string, o store.OpenOptions) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	digest := store.InstanceDigest(o.Instance)
	if slices.ContainsFunc(m.nodes[node], func(k *known) bool { return k.Instance == digest && slices.Equal(k.Scope, o.Scope) }) {
		return nil
	}
	for _, p := range o.Scope {
		if err := m.cfg.Room(m.candidates(p)); err != nil {
			return err
		}
	}
	return nil
}

// candidates counts the sessions whose scope includes a group, or all groups of a pattern.
func (m *Cache) candidates(pattern string) int {
	n := m.names[pattern]
	for end := len(strings.TrimSuffix(pattern, "*")); end >= 0; end-- {
		if broader := pattern[:end] + "*"; broader != pattern {
			n += m.names[broader]
		}
	}
	return n
}

// Candidates counts the sessions whose scope includes a group.
func (m *Cache) Candidates(group string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.candidates(group)
}

// Beaten records an acknowledged keep-alive.
func (m *Cache) Beaten(id store.SessionID, sent clock.Instant, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.by[id]; k != nil {
		k.beat, k.beats, k.TTL = sent, true, ttl
	}
}

// Remaining is how long a session lasts at most without another keep-alive. If this instance
// has sent none, that is the whole TTL. known is false if the cache does not have the session.
func (m *Cache) Remaining(id store.SessionID, now clock.Instant) (left time.Duration, known bool) {
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

// Known returns a session from the cache.
func (m *Cache) Known(id store.SessionID) (store.Session, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.by[id]; k != nil {
		return k.Session, true
	}
	return store.Session{}, false
}

// Opened adds a session that Open returned, which may be an older one of the same attempt, and
// reports other processes with the same node id. It returns whether the client asks for the
// same TTL as when the session was opened.
func (m *Cache) Opened(l store.Session, sent clock.Instant, asked, ttl time.Duration) (same bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.by[l.ID]
	if k == nil {
		for _, other := range m.nodes[l.Candidate.ID] {
			if m.met(other.Session, l) {
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
	ttl = max(ttl, m.cfg.MinTTL)
	return asked == 0 || l.TTL >= ttl && l.TTL < ttl+time.Second // engines may count in seconds
}

// Find returns a session from the cache or from the engine. A cached session may have ended
// since. ErrSessionDead: there is none.
func (m *Cache) Find(ctx context.Context, id store.SessionID) (store.Session, error) {
	if l, ok := m.Known(id); ok {
		return l, nil
	}
	return m.cfg.Session(ctx, id)
}

// Nodes calls f for each node that has a living session.
func (m *Cache) Nodes(f func(node string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for node := range m.nodes {
		f(node)
	}
}

// maxTold bounds told.
const maxTold = 1024

// Met reports whether two sessions belong to different processes with one node id. It counts
// that, and logs it once for each node.
func (m *Cache) Met(a, b store.Session) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.met(a, b)
}

// met is Met; m.mu is held.
func (m *Cache) met(a, b store.Session) bool {
	if !operator.Duplicate(a, b) {
		return false
	}
	m.cfg.Duplicate()
	node := a.Candidate.ID
	if m.told[node] {
		return true
	}
	if len(m.told) >= maxTold {
		clear(m.told)
	}
	m.told[node] = true
	m.cfg.Log.Warn("two processes use one node id, or one was restarted and its old session has not expired; give each process its own id",
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
