package feed

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

// Stream is a subscription with a memory: it yields every change of its groups after
// its cursor, once and in order. It is for one goroutine.
type Stream struct {
	feed   *Feed
	sub    *Sub
	cursor Cursor
	legs   map[string]*leg
	ready  []Message // made, and not taken yet
}

// leg is where a stream stands with one group.
type leg struct {
	begun bool
	era   int
	told  tenure.State
}

// Stream follows the groups, at most MaxGroups, from the cursor on; groups that the
// cursor does not name, and all of them if it is another deployment's, begin with a
// snapshot. Close ends it.
func (f *Feed) Stream(groups []string, from Cursor) *Stream {
	foreign := from.Deployment != f.cfg.Deployment && len(from.Places) > 0
	s := &Stream{feed: f, cursor: Cursor{Deployment: f.cfg.Deployment}, legs: make(map[string]*leg, len(groups))}
	for _, g := range groups {
		if s.legs[g] != nil {
			continue
		}
		s.legs[g] = &leg{}
		p := Place{Group: g}
		if !foreign {
			p.Cursor = from.place(g)
		} else if from.has(g) {
			s.ready = append(s.ready, newMessage(Reset, Event{Group: g, State: tenure.Unknown.String(), Reason: "the cursor is of another deployment"}, ""))
		}
		s.cursor.Places = append(s.cursor.Places, p)
	}
	s.sub = f.Subscribe(groups...)
	return s
}

// Close ends the stream.
func (s *Stream) Close() { s.sub.Close() }

// Cursor is where the stream stands after all that Next has returned.
func (s *Stream) Cursor() Cursor { return s.cursor }

// Wake receives when Next may have something to return.
func (s *Stream) Wake() <-chan struct{} { return s.sub.Wake() }

// look is a group that has moved.
type look struct {
	view   lease.View
	era    int
	synced bool
	step   []Message
	from   lease.Cursor
	to     lease.Cursor
}

// Next returns what there is to tell now, perhaps nothing. It waits for the engine
// where it must read, at first and when a long gap is filled, not longer than ctx.
func (s *Stream) Next(ctx context.Context) []Message {
	moved := s.take()
	out := s.ready
	s.ready = nil
	present := s.begin(ctx, moved)
	for _, m := range moved {
		group := m.view.Group
		l := s.legs[group]
		if !l.begun {
			l.begun, l.era = true, m.era
			out = append(out, s.first(ctx, group, l, present[group], m)...)
			continue
		}
		out = append(out, s.next(ctx, group, l, m)...)
	}
	return out
}

func (s *Stream) take() []look {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	moved := make([]look, len(s.sub.dirty))
	for i, at := range s.sub.dirty {
		at.dirty = false
		t := at.topic
		moved[i] = look{t.view, t.era, f.synced, t.step, t.from, t.to}
	}
	s.sub.dirty = s.sub.dirty[:0]
	return moved
}

// begin reads the groups that are looked at for the first time: the feed may be behind
// what the subscriber has seen on another instance.
func (s *Stream) begin(ctx context.Context, moved []look) map[string]lease.View {
	var mu sync.Mutex
	var all sync.WaitGroup
	present := make(map[string]lease.View)
	for _, m := range moved {
		group := m.view.Group
		if s.legs[group].begun {
			continue
		}
		all.Go(func() {
			a, err := s.feed.cfg.Reader.Read(ctx, group)
			if err != nil {
				return
			}
			mu.Lock()
			present[group] = a.View
			mu.Unlock()
		})
	}
	all.Wait()
	return present
}

func (s *Stream) first(ctx context.Context, group string, l *leg, read lease.View, m look) []Message {
	v := m.view
	switch {
	case read.Group != "" && !(m.synced && before(at(read), at(v))):
		v = read
	case read.Group == "" && !m.synced:
		return s.unknown(group, l)
	}
	place := s.cursor.place(group)
	l.told = place.State // whoever resumes where nothing has changed is told nothing
	switch {
	case place.State == tenure.Unknown:
		return []Message{s.snapshot(v, l)}
	case read.Group != "" && before(at(v), place):
		return s.reset(v, l, "the engine went back behind the cursor")
	}
	return s.since(ctx, v, l)
}

// next is what a change means after all that was told.
func (s *Stream) next(ctx context.Context, group string, l *leg, m look) []Message {
	place := s.cursor.place(group)
	switch {
	case !m.synced:
		if l.told == tenure.Unknown {
			return nil
		}
		return s.unknown(group, l)
	case l.era != m.era:
		l.era = m.era
		return s.reset(m.view, l, "the engine went back behind what was told")
	case place.State == tenure.Unknown:
		return []Message{s.snapshot(m.view, l)}
	case before(at(m.view), place):
		return nil // the feed is behind; it will come
	case len(m.step) > 0 && m.from == place && len(s.cursor.Places) == 1 && l.told != tenure.Unknown:
		s.move(group, m.to)
		l.told = m.to.State
		return m.step
	}
	return s.since(ctx, m.view, l)
}

// since tells every change up to the view. After a blind spell without one, it says
// that things are as they were.
func (s *Stream) since(ctx context.Context, v lease.View, l *leg) []Message {
	changes, complete := s.feed.changes(ctx, v, s.cursor.place(v.Group))
	if !complete {
		return s.reset(v, l, "the changes since the cursor are no longer remembered")
	}
	var out []Message
	for _, c := range changes {
		s.move(v.Group, lease.Cursor{Token: c.Token, State: c.State})
		out = append(out, newMessage(Changed, eventOf(c), s.cursor.String()))
	}
	if len(out) == 0 && l.told == tenure.Unknown && !before(at(v), s.cursor.place(v.Group)) {
		e := eventOf(v.Leader())
		e.Snapshot = true
		out = append(out, newMessage(Changed, e, s.cursor.String()))
	}
	l.told = v.State
	return out
}

func (s *Stream) unknown(group string, l *leg) []Message {
	l.told = tenure.Unknown
	place := s.cursor.place(group)
	return []Message{newMessage(Changed, Event{Group: group, State: tenure.Unknown.String(), Token: place.Token, Reason: "the engine cannot be seen"}, "")}
}

func (s *Stream) snapshot(v lease.View, l *leg) Message {
	s.move(v.Group, at(v))
	l.told = v.State
	e := eventOf(v.Leader())
	e.Snapshot = true
	return newMessage(Changed, e, s.cursor.String())
}

func (s *Stream) reset(v lease.View, l *leg, why string) []Message {
	e := Event{Group: v.Group, State: v.State.String(), Token: v.Token, Reason: why}
	return []Message{newMessage(Reset, e, ""), s.snapshot(v, l)}
}

func (s *Stream) move(group string, to lease.Cursor) {
	i := slices.IndexFunc(s.cursor.Places, func(p Place) bool { return p.Group == group })
	s.cursor.Places[i].Cursor = to
}

// changes lists what happened after the place, from the record and where that does not
// reach from the history beside it; complete is false if that does not reach either.
func (f *Feed) changes(ctx context.Context, v lease.View, place lease.Cursor) ([]tenure.Leader, bool) {
	if before(at(v), place) {
		return nil, true
	}
	changes, complete := lease.Since(v, place)
	if complete {
		return changes, true
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	older, err := f.cfg.Store.History(ctx, v.Group, lease.Page{})
	if err != nil {
		f.cfg.Log.Warn("the history cannot be read; a stream begins anew", "group", v.Group, "err", fmt.Errorf("after token %d: %w", place.Token, err))
		return nil, false
	}
	slices.Reverse(older)
	for len(older) > 0 && len(v.Terms) > 0 && older[len(older)-1].Token >= v.Terms[0].Token {
		older = older[:len(older)-1]
	}
	v.Terms = append(older, v.Terms...)
	return lease.Since(v, place)
}
