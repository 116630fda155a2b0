package machine

import (
	"sync"

	"github.com/tenurehq/tenure/store"
)

// Line orders the candidates of a group. A machine uses it when a group falls vacant and
// when it hands one over. A wrong answer costs time, never safety.
type Line interface {
	// Ahead counts the sessions that try for the group before s. The last holder does not
	// count: it is dead, or has just given the group up.
	Ahead(s store.Session, group string, last store.SessionID) int
	// First is the session to which a leader hands over when it resigns: the first in line of
	// those that are marked Successor, leaving out the session but.
	First(group string, but store.SessionID) (store.SessionID, bool)
	// Newest is the newest session of the candidate for the group, leaving out the session
	// but. An older session may be left over from before a restart.
	Newest(group, candidate string, but store.SessionID) (store.SessionID, bool)
	// Len counts the sessions.
	Len() int
}

// Roster is a Line. A higher priority comes first. At the same priority, sessions for a single
// group come first, the oldest before the others. Then come sessions for several groups, in an
// order that differs from group to group, so that groups are spread over the sessions.
//
// It gets the living sessions from a watch. One roster serves all machines of a process. The
// zero value is ready to use. Its methods are safe for concurrent use.
type Roster struct {
	mu       sync.RWMutex
	feed     uint64 // counts the watches
	sessions []member
	at       map[store.SessionID]int // in sessions
	ranks    map[string]Rank
}

// Rank orders the candidates of those groups for which ok is true: the largest number first.
type Rank func(group, candidate string) (number float64, ok bool)

// SetRank sets the rank with the name, or removes it if rank is nil. Two ranks must not know the
// same group.
func (r *Roster) SetRank(name string, rank Rank) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ranks == nil {
		r.ranks = map[string]Rank{}
	}
	if r.ranks[name] = rank; rank == nil {
		delete(r.ranks, name)
	}
}

// Sessions lists the sessions.
func (r *Roster) Sessions() []store.Session {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]store.Session, len(r.sessions))
	for i := range r.sessions {
		all[i] = r.sessions[i].Session
	}
	return all
}

// order returns the order in which sessions try for a group. r.mu is held.
func (r *Roster) order(group string) func(m, o *member) bool {
	for _, rank := range r.ranks {
		if _, ok := rank(group, ""); ok {
			return func(m, o *member) bool {
				a, _ := rank(group, m.Candidate.ID)
				b, _ := rank(group, o.Candidate.ID)
				return a > b || a == b && m.Opened > o.Opened
			}
		}
	}
	of := hashOf(group)
	return func(m, o *member) bool { return m.before(of, o) }
}

type member struct {
	store.Session
	feed uint64 // the watch that showed it last
	hash uint64 // of its ID
}

// hashOf is FNV-1a.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// place orders the sessions for several groups by rendezvous hashing: it mixes both hashes as SplitMix64 does.
func place(group, session uint64) uint64 {
	h := group ^ session*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// before reports whether m tries for a group before o.
func (m *member) before(group uint64, o *member) bool {
	alone := m.Scope.Single()
	switch {
	case m.Candidate.Priority != o.Candidate.Priority:
		return m.Candidate.Priority > o.Candidate.Priority
	case alone != o.Scope.Single():
		return alone
	case alone:
		return store.InLine(m.Session, o.Session) < 0
	}
	if a, b := place(group, m.hash), place(group, o.hash); a != b {
		return a < b
	}
	return m.ID < o.ID
}

// Feed begins a new watch and returns the function that takes its updates. Later updates of
// earlier watches are ignored. Sessions from an earlier watch stay until Synced, and are then
// removed if the new watch has not shown them.
func (r *Roster) Feed() func(store.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.feed++
	number := r.feed
	return func(u store.Update) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.feed == number {
			r.take(u)
		}
	}
}

func (r *Roster) take(u store.Update) {
	i, known := r.at[u.Session.ID]
	switch {
	case u.Kind == store.SessionBegan && known:
		r.sessions[i] = member{u.Session, r.feed, hashOf(string(u.Session.ID))}
	case u.Kind == store.SessionBegan:
		if r.at == nil {
			r.at = map[store.SessionID]int{}
		}
		r.at[u.Session.ID] = len(r.sessions)
		r.sessions = append(r.sessions, member{u.Session, r.feed, hashOf(string(u.Session.ID))})
	case u.Kind == store.SessionEnded && known:
		r.remove(i)
	case u.Kind == store.Synced:
		for i := len(r.sessions) - 1; i >= 0; i-- {
			if r.sessions[i].feed != r.feed {
				r.remove(i)
			}
		}
	}
}

func (r *Roster) remove(i int) {
	last := len(r.sessions) - 1
	delete(r.at, r.sessions[i].ID)
	if i < last {
		r.sessions[i] = r.sessions[last]
		r.at[r.sessions[i].ID] = i
	}
	r.sessions[last] = member{}
	r.sessions = r.sessions[:last]
}

// Len implements Line.
func (r *Roster) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.sessions)
}

// Ahead implements Line. s need not be in the roster.
func (r *Roster) Ahead(s store.Session, group string, last store.SessionID) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	ahead := 0
	us, before := member{Session: s, hash: hashOf(string(s.ID))}, r.order(group)
	for i := range r.sessions {
		if m := &r.sessions[i]; m.ID != s.ID && m.ID != last && before(m, &us) && m.Scope.Covers(group) {
			ahead++
		}
	}
	return ahead
}

// First implements Line.
func (r *Roster) First(group string, but store.SessionID) (store.SessionID, bool) {
	r.mu.RLock()
	before := r.order(group)
	r.mu.RUnlock()
	return r.best(group, but, func(m, than *member) bool { return m.Successor && (than == nil || before(m, than)) })
}

// Newest implements Line.
func (r *Roster) Newest(group, candidate string, but store.SessionID) (store.SessionID, bool) {
	return r.best(group, but, func(m, than *member) bool {
		return m.Candidate.ID == candidate && (than == nil || m.Opened > than.Opened)
	})
}

// best returns the best session for the group, leaving out the session but. better is first
// called with a nil than.
func (r *Roster) best(group string, but store.SessionID, better func(m, than *member) bool) (store.SessionID, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var best *member
	for i := range r.sessions {
		if m := &r.sessions[i]; m.ID != but && better(m, best) && m.Scope.Covers(group) {
			best = m
		}
	}
	if best == nil {
		return "", false
	}
	return best.ID, true
}
