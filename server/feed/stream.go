package feed

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Stream yields every change of its groups after a cursor, once and in order. It is for one
// goroutine.
type Stream struct {
	feed   *Feed
	sub    *Sub
	cursor Cursor
	states []streamed // one for each place of the cursor
	ready  []Message  // not taken yet
}

// streamed is the state of one group of a stream.
type streamed struct {
	begun bool
	era   int
	told  tenure.State
}

// Stream streams the groups, at most MaxGroups, from the cursor on. Groups that are not in the
// cursor begin with a snapshot; so do all groups if the cursor is of another deployment. Close
// ends the stream.
func (f *Feed) Stream(groups []string, from Cursor) *Stream {
	foreign := from.Deployment != f.cfg.Deployment && len(from.Places) > 0
	s := &Stream{feed: f, cursor: Cursor{Deployment: f.cfg.Deployment}}
	var once []string
	for _, g := range groups {
		if s.cursor.has(g) {
			continue
		}
		once = append(once, g)
		p := Place{Group: g}
		if !foreign {
			p.Cursor = from.place(g)
		} else if from.has(g) {
			s.ready = append(s.ready, newMessage(Reset, Event{Group: g, State: tenure.Unknown.String(), Reason: "the cursor belongs to another deployment"}, ""))
		}
		s.cursor.Places = append(s.cursor.Places, p)
	}
	s.states = make([]streamed, len(once))
	s.sub = f.Subscribe(once...)
	return s
}

// Close ends the stream.
func (s *Stream) Close() { s.sub.Close() }

// Cursor is the position after everything that Next has returned.
func (s *Stream) Cursor() Cursor { return s.cursor }

// Wake receives when Next may have something to return, and after Nudge.
func (s *Stream) Wake() <-chan struct{} { return s.sub.Wake() }

// Nudge makes Wake receive. It may be called from any goroutine.
func (s *Stream) Nudge() { s.sub.nudge() }

// Next returns the messages that are due, perhaps none. The first call, and a call after a long
// gap, read the engine, not longer than ctx allows.
func (s *Stream) Next(ctx context.Context) []Message {
	out := s.ready
	s.ready = nil
	moved := make([]*groupState, 0, 4) // usually one group: it stays on the stack
	first := false
	for i := range s.states {
		m := s.sub.moved(i)
		moved = append(moved, m)
		first = first || m != nil && !s.states[i].begun
	}
	var present []store.View
	if first {
		present = s.begin(ctx, moved)
	}
	for i, m := range moved {
		if m == nil {
			continue
		}
		var told []Message
		if l := &s.states[i]; l.begun {
			told = s.next(ctx, i, m)
		} else {
			l.begun, l.era = true, m.era
			told = s.first(ctx, i, present[i], m)
		}
		if len(out) == 0 {
			out = told
		} else {
			out = append(slices.Clip(out), told...)
		}
	}
	return out
}

// begin reads the groups that are new to the stream: the feed may be behind what the client
// has seen on another instance.
func (s *Stream) begin(ctx context.Context, moved []*groupState) []store.View {
	present := make([]store.View, len(moved))
	var all sync.WaitGroup
	for i, m := range moved {
		if m == nil || s.states[i].begun {
			continue
		}
		all.Go(func() {
			if a, err := s.feed.cfg.Reader.Read(ctx, s.cursor.Places[i].Group); err == nil {
				present[i] = a.View
			}
		})
	}
	all.Wait()
	return present
}

func (s *Stream) first(ctx context.Context, i int, read store.View, m *groupState) []Message {
	v := m.view
	switch {
	case read.Group != "" && !(m.synced && before(at(read), at(v))):
		v = read
	case read.Group == "" && !m.synced:
		return s.unknown(i)
	}
	place := s.cursor.Places[i].Cursor
	s.states[i].told = place.State // a client that resumes gets nothing if nothing has changed
	switch {
	case place.State == tenure.Unknown:
		return []Message{s.snapshot(v, i)}
	case read.Group != "" && before(at(v), place):
		return s.reset(v, i, "the engine lost data after the cursor")
	}
	return s.since(ctx, v, i)
}

// next returns the messages for a change.
func (s *Stream) next(ctx context.Context, i int, m *groupState) []Message {
	l, place := &s.states[i], s.cursor.Places[i].Cursor
	switch {
	case !m.synced:
		if l.told == tenure.Unknown {
			return nil
		}
		return s.unknown(i)
	case l.era != m.era:
		l.era = m.era
		return s.reset(m.view, i, "the engine lost data that was sent")
	case place.State == tenure.Unknown:
		return []Message{s.snapshot(m.view, i)}
	case before(at(m.view), place):
		// The feed is behind a read that this stream made. It will catch up, unless the engine
		// was restored meanwhile: only another read can tell.
		a, err := s.feed.cfg.Reader.Read(ctx, s.cursor.Places[i].Group)
		if err != nil || !before(at(a.View), place) {
			return nil
		}
		return s.reset(a.View, i, "the engine lost data that was sent")
	case len(m.step) > 0 && m.from == place && len(s.states) == 1 && l.told != tenure.Unknown:
		s.cursor.Places[i].Cursor = m.to
		l.told = m.to.State
		return m.step
	}
	return s.since(ctx, m.view, i)
}

// since returns every change up to the view. If there is none after an interruption, it returns
// a snapshot.
func (s *Stream) since(ctx context.Context, v store.View, i int) []Message {
	place := &s.cursor.Places[i].Cursor
	changes, complete := s.feed.changes(ctx, v, *place)
	if !complete {
		return s.reset(v, i, "the changes after the cursor are no longer available")
	}
	var out []Message
	for _, c := range changes {
		*place = store.Cursor{Token: c.Token, State: c.State}
		out = append(out, newMessage(Changed, eventOf(c), s.cursor.String()))
	}
	if len(out) == 0 && s.states[i].told == tenure.Unknown && !before(at(v), *place) {
		e := eventOf(v.Leader())
		e.Snapshot = true
		out = append(out, newMessage(Changed, e, s.cursor.String()))
	}
	s.states[i].told = v.State
	return out
}

func (s *Stream) unknown(i int) []Message {
	s.states[i].told = tenure.Unknown
	p := s.cursor.Places[i]
	return []Message{newMessage(Changed, Event{Group: p.Group, State: tenure.Unknown.String(), Token: p.Token, Reason: "the engine cannot be watched"}, "")}
}

func (s *Stream) snapshot(v store.View, i int) Message {
	s.cursor.Places[i].Cursor = at(v)
	s.states[i].told = v.State
	e := eventOf(v.Leader())
	e.Snapshot = true
	return newMessage(Changed, e, s.cursor.String())
}

func (s *Stream) reset(v store.View, i int, why string) []Message {
	e := Event{Group: v.Group, State: v.State.String(), Token: v.Token, Reason: why}
	return []Message{newMessage(Reset, e, ""), s.snapshot(v, i)}
}

// changes lists the changes after the place, from the record and, if that is not enough, from
// the history. It reports false if the history is not enough either.
func (f *Feed) changes(ctx context.Context, v store.View, place store.Cursor) ([]tenure.Leader, bool) {
	if before(at(v), place) {
		return nil, true
	}
	changes, complete := store.Since(v, place)
	if complete {
		return changes, true
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	older, err := f.cfg.Store.History(ctx, v.Group, store.Page{})
	if err != nil {
		f.cfg.Log.Warn("cannot read the history; a stream is reset", "group", v.Group, "err", fmt.Errorf("after token %d: %w", place.Token, err))
		return nil, false
	}
	slices.Reverse(older)
	for len(older) > 0 && len(v.Terms) > 0 && older[len(older)-1].Token >= v.Terms[0].Token {
		older = older[:len(older)-1]
	}
	v.Terms = append(older, v.Terms...)
	return store.Since(v, place)
}
