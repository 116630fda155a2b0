package lease

import (
	"sync"
)

// Line says where the candidates of a group stand. A machine asks it when a group falls
// vacant and when it hands one over. A wrong answer costs time, never safety.
type Line interface {
	// Ahead counts the sessions that try for the group before s. The last holder does
	// not count: it is dead, or has just given the group up.
	Ahead(s Session, group string, last SessionID) int
	// First is the session that tries for the group before all others, except one.
	First(group string, but SessionID) (SessionID, bool)
	// Newest is the newest session of the candidate for the group, except one: an older
	// session may be left over from before a restart.
	Newest(group, candidate string, but SessionID) (SessionID, bool)
	// Len counts the sessions.
	Len() int
}

// Roster is a Line that knows the living sessions from a watch, so that nobody has to
// list them. One roster serves all machines of a process. The zero value is empty and
// ready. Its methods may be called concurrently.
type Roster struct {
	mu       sync.RWMutex
	feed     uint64 // counts the watches
	sessions []member
	at       map[SessionID]int // in sessions
}

type member struct {
	Session
	feed uint64 // the watch that showed it last
}

// Feed begins a new watch and returns the function that takes its updates. What the
// watches before it still bring is ignored. Sessions that an earlier watch showed stay
// until Synced says that the new one does not know them.
func (r *Roster) Feed() func(Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.feed++
	mine := r.feed
	return func(u Update) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.feed == mine {
			r.take(u)
		}
	}
}

func (r *Roster) take(u Update) {
	i, known := r.at[u.Session.ID]
	switch {
	case u.Kind == SessionBegan && known:
		r.sessions[i] = member{u.Session, r.feed}
	case u.Kind == SessionBegan:
		if r.at == nil {
			r.at = map[SessionID]int{}
		}
		r.at[u.Session.ID] = len(r.sessions)
		r.sessions = append(r.sessions, member{u.Session, r.feed})
	case u.Kind == SessionEnded && known:
		r.remove(i)
	case u.Kind == Synced:
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

// Ahead implements Line. s need not be known here.
func (r *Roster) Ahead(s Session, group string, last SessionID) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	ahead := 0
	for i := range r.sessions {
		if m := &r.sessions[i].Session; m.ID != s.ID && m.ID != last && InLine(*m, s) < 0 && m.Scope.Covers(group) {
			ahead++
		}
	}
	return ahead
}

// First implements Line.
func (r *Roster) First(group string, but SessionID) (SessionID, bool) {
	return r.best(group, but, func(m, than *Session) bool { return than == nil || InLine(*m, *than) < 0 })
}

// Newest implements Line.
func (r *Roster) Newest(group, candidate string, but SessionID) (SessionID, bool) {
	return r.best(group, but, func(m, than *Session) bool {
		return m.Candidate.ID == candidate && (than == nil || m.Opened > than.Opened)
	})
}

// best returns the session that is better than all others for the group. than is nil
// for the first one.
func (r *Roster) best(group string, but SessionID, better func(m, than *Session) bool) (SessionID, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var best *Session
	for i := range r.sessions {
		if m := &r.sessions[i].Session; m.ID != but && better(m, best) && m.Scope.Covers(group) {
			best = m
		}
	}
	if best == nil {
		return "", false
	}
	return best.ID, true
}
