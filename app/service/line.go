package service

import (
	"slices"
	"sync"

	"github.com/tenurehq/tenure/lease"
)

// line is who waits on this instance, group by group, in the order in which they try
// when it falls vacant: each a step after the one before, so that a vacancy is not a
// stampede. Between instances the engine decides.
type line struct {
	mu     sync.Mutex
	groups map[string][]lease.Session
}

func newLine() *line { return &line{groups: make(map[string][]lease.Session)} }

// enter takes a place in the lines of the groups.
func (l *line) enter(session lease.Session, groups ...string) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		i, _ := slices.BinarySearchFunc(l.groups[g], session, lease.InLine)
		l.groups[g] = slices.Insert(l.groups[g], i, session)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, g := range groups {
			i, found := slices.BinarySearchFunc(l.groups[g], session, lease.InLine)
			if found {
				l.groups[g] = slices.Delete(l.groups[g], i, i+1)
			}
			if len(l.groups[g]) == 0 {
				delete(l.groups, g)
			}
		}
	}
}

// place is how many come before a session.
func (l *line) place(session lease.Session, group string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.groups[group], session, lease.InLine)
	return i
}
