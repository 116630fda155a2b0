package feed

import "github.com/tenurehq/tenure/lease"

// Sub is told when any of its groups changes. It is for one goroutine.
type Sub struct {
	feed  *Feed
	seats []seat
	wake  chan struct{} // buffered by one
}

// seat is a subscriber's interest in one group.
type seat struct {
	topic *topic
	seen  uint64 // the move of the topic that was looked at last
}

// Subscribe begins to follow the groups. All of them count as changed at first. Close
// ends it.
func (f *Feed) Subscribe(groups ...string) *Sub {
	s := &Sub{feed: f, seats: make([]seat, len(groups)), wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, g := range groups {
		t := f.topic(g)
		t.subs[s] = struct{}{}
		s.seats[i].topic = t
	}
	s.nudge()
	return s
}

func (s *Sub) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Wake receives when something may have changed.
func (s *Sub) Wake() <-chan struct{} { return s.wake }

// moved returns the i-th group as it is now, nil if it has not moved since the last call.
func (s *Sub) moved(i int) *look {
	at := &s.seats[i]
	now := at.topic.now.Load()
	if now.moves == at.seen {
		return nil
	}
	at.seen = now.moves
	return now
}

// Take returns the groups that have changed since the last call, as they are now, and
// whether that is the present.
func (s *Sub) Take() ([]lease.View, bool) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	var views []lease.View
	for i := range s.seats {
		if now := s.moved(i); now != nil {
			views = append(views, now.view)
		}
	}
	return views, s.feed.synced
}

// Close ends the subscription.
func (s *Sub) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	for _, at := range s.seats {
		t := at.topic
		delete(t.subs, s)
		// A name that somebody asked for and nobody has led is not kept.
		if len(t.subs) == 0 && t.view.Version == 0 && s.feed.topics[t.view.Group] == t {
			delete(s.feed.topics, t.view.Group)
		}
	}
	s.seats = nil
}
