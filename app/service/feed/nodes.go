package feed

import (
	"maps"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

// nodes are the candidates that have living sessions, by session.
type nodes struct {
	now  map[lease.SessionID]string
	next map[lease.SessionID]string // while a snapshot comes in
}

// session takes a birth or death from the watch.
func (f *Feed) session(u lease.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range []map[lease.SessionID]string{f.nodes.now, f.nodes.next} {
		switch {
		case m == nil:
		case u.Kind == lease.SessionBegan:
			m[u.Session.ID] = u.Session.Candidate.ID
		default:
			delete(m, u.Session.ID)
		}
	}
}

// snapshot begins or ends a snapshot of the watch.
func (f *Feed) snapshot(begins bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if begins {
		f.nodes.next = make(map[lease.SessionID]string)
	} else {
		f.nodes.now, f.nodes.next = f.nodes.next, nil
	}
}

// Nodes says of each candidate that has a living session how many groups it leads.
func (f *Feed) Nodes() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]int, len(f.nodes.now))
	for _, node := range f.nodes.now {
		all[node] = 0
	}
	maps.Copy(all, f.leads)
	return all
}

// Leaders says who leads each group that was ever led, "" is nobody.
func (f *Feed) Leaders() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]string, len(f.topics))
	for g, t := range f.topics {
		switch {
		case t.view.Version == 0:
		case t.view.State == tenure.Led:
			all[g] = t.view.Candidate.ID
		default:
			all[g] = ""
		}
	}
	return all
}
