package model

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// Options configure a store. The zero value is complete.
type Options struct {
	// Deployment names the store, for stamps. Default "mem".
	Deployment string
	// Caps of the store. Default 10 ms to 24 h, 128 records in a batch; fields
	// that are zero get their default.
	Caps lease.Caps
	// Wall tells people's time at an instant, for the terms. Default the instant
	// as nanoseconds since 1970, which is reproducible; New uses time.Now.
	Wall func(clock.Instant) time.Time
	// Plant is what the tests plant.
	Plant plant.Set
	// Clock is what a Store runs on. Default clock.System(). A State has none.
	Clock clock.Clock
}

func (o Options) withDefaults() Options {
	if o.Deployment == "" {
		o.Deployment = "mem"
	}
	if o.Caps.MinTTL <= 0 {
		o.Caps.MinTTL = 10 * time.Millisecond
	}
	if o.Caps.MaxTTL <= 0 {
		o.Caps.MaxTTL = 24 * time.Hour
	}
	if o.Caps.Batch <= 0 {
		o.Caps.Batch = 128
	}
	if o.Wall == nil {
		o.Wall = func(now clock.Instant) time.Time { return time.Unix(0, int64(now)).UTC() }
	}
	return o
}

// State is a whole store as a value. Its methods are those of lease.Store with
// the present instant in place of the context; instants must not go back. It is
// for one goroutine at a time.
//
// I1: every session in sessions is in queue and in line, once, and its deadline
// is after the last instant that State was told.
// I2: group.holder is a session of sessions that has the group in holds, or nil.
// I3: due ≤ deadline, so no session outlives the head of the queue unseen.
type State struct {
	deployment string
	limits     lease.Caps
	wall       func(clock.Instant) time.Time
	plant      plant.Set

	data

	// What follows is derived from data.
	queue    queue               // sessions by due
	line     []*session          // sessions as lease.InLine orders them
	attempts map[string]*session // sessions by their attempt
	names    []string            // of groups, sorted when sorted says so
	sorted   bool

	changed []*group // since Changed was last called
	news    []lease.Update
	buried  map[lease.SessionID]*session

	// What follows is never taken back, not even by Restore.
	lastSession uint64
	peakIndex   uint64
	peakEpoch   uint64
	rewound     bool
}

// data is what an engine would have on its disk.
type data struct {
	index      uint64 // of the last change
	epoch      uint64
	sessions   map[lease.SessionID]*session
	groups     map[string]*group
	attributes map[string]lease.Attributes
	graves     []grave
}

// NewState returns an empty store.
func NewState(o Options) *State {
	o = o.withDefaults()
	return &State{
		deployment: o.Deployment,
		limits:     o.Caps,
		wall:       o.Wall,
		plant:      o.Plant,
		attempts:   make(map[string]*session),
		data: data{
			sessions:   make(map[lease.SessionID]*session),
			groups:     make(map[string]*group),
			attributes: make(map[string]lease.Attributes),
		},
	}
}

// Caps are the ones of the options.
func (s *State) Caps() lease.Caps { return s.limits }

// bump counts a change.
func (s *State) bump() {
	s.index++
	s.peakIndex = max(s.peakIndex, s.index)
}

// touch notes that the view of a group changed.
func (s *State) touch(g *group) {
	if !g.changed {
		g.changed = true
		s.changed = append(s.changed, g)
	}
}

// Changed returns the names of the groups whose view changed since the last
// call, each once, in the order of their first change: by a grant, a release,
// the death of a holder, or a Restore.
func (s *State) Changed() []string {
	if len(s.changed) == 0 {
		return nil
	}
	names := make([]string, len(s.changed))
	for i, g := range s.changed {
		names[i] = g.rec.Group
		g.changed = false
	}
	s.changed = s.changed[:0]
	return names
}

// News returns the sessions that began and ended since the last call.
func (s *State) News() []lease.Update {
	news := s.news
	s.news = nil
	return news
}

// Meta describes the store.
func (s *State) Meta(now clock.Instant) (lease.Meta, error) {
	s.Expire(now)
	return lease.Meta{Deployment: s.deployment, Epoch: s.epoch, Index: s.peakIndex, Rewound: s.rewound}, nil
}

// RaiseEpoch refuses an epoch that State ever had, or one that a Restore took
// away: its tokens may be out there.
func (s *State) RaiseEpoch(now clock.Instant, to uint64) (lease.Meta, error) {
	s.Expire(now)
	if err := lease.CheckEpoch(to, s.peakEpoch); err != nil {
		return lease.Meta{}, err
	}
	s.epoch, s.peakEpoch = to, to
	s.rewound = false
	// Go on above every index that was ever acknowledged, so that the next step
	// back is seen as one.
	s.index = s.peakIndex
	s.bump()
	return s.Meta(now)
}

// Suspect sets Rewound, unless the report is late.
func (s *State) Suspect(now clock.Instant, group string, seen fence.Token) error {
	s.Expire(now)
	if err := errors.Join(lease.CheckGroup(group), lease.CheckToken(seen)); err != nil {
		return err
	}
	if g := s.groups[group]; s.epoch > seen.Epoch() || g != nil && g.rec.Token > seen {
		return nil
	}
	s.rewound = true
	s.bump()
	return nil
}

// Attributes reads; never set is version 0.
func (s *State) Attributes(now clock.Instant, name string) (lease.Attributes, error) {
	s.Expire(now)
	if err := (lease.Attributes{Name: name}).Validate(); err != nil {
		return lease.Attributes{}, err
	}
	a := s.attributes[name]
	a.Name = name
	return a, nil
}

// SetAttributes replaces all values from the version seen. An empty value
// removes its key. The version goes on when nothing is left, so that a late
// copy from before still conflicts.
func (s *State) SetAttributes(now clock.Instant, seen lease.Attributes) (lease.Attributes, error) {
	s.Expire(now)
	if err := seen.Validate(); err != nil {
		return lease.Attributes{}, err
	}
	if s.attributes[seen.Name].Version != seen.Version {
		return lease.Attributes{}, fmt.Errorf("mem: attributes of %q are at version %d, not %d: %w",
			seen.Name, s.attributes[seen.Name].Version, seen.Version, &lease.ConflictError{})
	}
	next := lease.Attributes{Name: seen.Name, Version: seen.Version + 1}
	for k, v := range seen.Values {
		if v == "" {
			continue
		}
		if next.Values == nil {
			next.Values = make(map[string]string, len(seen.Values))
		}
		next.Values[k] = v
	}
	s.attributes[seen.Name] = next
	s.bump()
	return next, nil
}
