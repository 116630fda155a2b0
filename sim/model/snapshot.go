package model

import (
	"maps"
	"slices"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// Snapshot is a backup of a State: a copy of everything that an engine would
// have on its disk.
type Snapshot struct{ data data }

// Snapshot copies what is stored. The copy shares nothing that changes.
func (s *State) Snapshot() *Snapshot { return &Snapshot{data: s.data.clone()} }

// Restore puts a backup in the place of what is stored, as an operator would,
// and gives its sessions their whole TTL: also those that have died since, for
// no engine remembers what its backup does not know.
//
// If the backup is older than what was acknowledged, State is rewound. What
// Restore cannot take back is what it takes to notice that and to go on safely:
// the highest index, the highest epoch, and the number of the last session.
func (s *State) Restore(now clock.Instant, backup *Snapshot) {
	s.Expire(now)
	before := s.sortedNames()
	for _, g := range s.changed {
		g.changed = false
	}
	s.changed = s.changed[:0]

	s.data = backup.data.clone()
	s.rewound = s.rewound || s.index < s.peakIndex
	s.names = slices.Sorted(maps.Keys(s.groups))
	s.sorted = true
	s.queue, s.line = nil, nil
	clear(s.attempts)
	for _, n := range slices.SortedFunc(maps.Values(s.sessions), inLine) {
		s.admit(now, n)
	}

	// Every view may have changed, and some groups are no more.
	all := slices.Concat(before, s.names)
	slices.Sort(all)
	for _, name := range slices.Compact(all) {
		g := s.groups[name]
		if g == nil {
			g = &group{rec: lease.Record{Group: name}}
		}
		s.touch(g)
	}
}

func (d *data) clone() data {
	c := *d
	c.sessions = make(map[lease.SessionID]*session, len(d.sessions))
	c.groups = make(map[string]*group, len(d.groups))
	c.attributes = maps.Clone(d.attributes)
	c.graves = make([]grave, len(d.graves))
	for name, g := range d.groups {
		n := *g
		n.terms = slices.Clone(g.terms)
		n.changed = false
		c.groups[name] = &n
	}
	for id, n := range d.sessions {
		m := *n
		m.requests = slices.Clone(n.requests)
		m.holds = make([]*group, len(n.holds))
		for i, g := range n.holds {
			m.holds[i] = c.groups[g.rec.Group]
			m.holds[i].holder = &m
		}
		c.sessions[id] = &m
	}
	for i, g := range d.graves {
		c.graves[i] = grave{id: g.id, answered: slices.Clone(g.answered)}
	}
	return c
}
