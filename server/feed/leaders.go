package feed

import (
	"maps"

	"github.com/tenurehq/tenure"
)

// Leaders says who leads each group that was ever led, "" is nobody, and how many groups
// each candidate leads.
func (f *Feed) Leaders() (groups map[string]string, candidates map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	groups = make(map[string]string, len(f.topics))
	for g, t := range f.topics {
		switch {
		case t.view.Version == 0:
		case t.view.State == tenure.Led:
			groups[g] = t.view.Candidate.ID
		default:
			groups[g] = ""
		}
	}
	return groups, maps.Clone(f.leads)
}
