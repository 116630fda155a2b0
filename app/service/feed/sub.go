package feed

import "github.com/tenurehq/tenure/lease"

// Sub is told when any of its groups changes.
type Sub struct {
	feed  *Feed
	seats []*seat
	wake  chan struct{} // buffered by one
	dirty []*seat       // guarded by the feed's lock
}

// Subscribe begins to follow the groups. All of them count as changed at first. Close
// ends it.
func (f *Feed) Subscribe(groups ...string) *Sub {
	s := &Sub{feed: f, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range groups {
		t := f.topic(g)
		at := &seat{sub: s, topic: t}
		t.seats[at] = struct{}{}
		s.seats = append(s.seats, at)
		at.mark()
	}
	return s
}

// Wake receives when something may have changed.
func (s *Sub) Wake() <-chan struct{} { return s.wake }

// Take returns the groups that have changed since the last call, as they are now, and
// whether that is the present.
func (s *Sub) Take() ([]lease.View, bool) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	views := make([]lease.View, len(s.dirty))
	for i, at := range s.dirty {
		at.dirty = false
		views[i] = at.topic.view
	}
	s.dirty = s.dirty[:0]
	return views, s.feed.synced
}

// Close ends the subscription.
func (s *Sub) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	for _, at := range s.seats {
		delete(at.topic.seats, at)
		// A name that somebody asked for and nobody has led is not kept.
		if g := at.topic.view.Group; len(at.topic.seats) == 0 && at.topic.view.Version == 0 {
			delete(s.feed.topics, g)
		}
	}
	s.seats, s.dirty = nil, nil
}
