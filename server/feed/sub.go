package feed

import "github.com/tenurehq/tenure/store"

// Sub is a subscription to changes of some groups. It is for one goroutine.
type Sub struct {
	feed   *Feed
	topics []subscribed
	wake   chan struct{} // buffered by one
}

// subscribed is one group of a subscription.
type subscribed struct {
	topic *topic
	seen  uint64 // the last value of moves that was seen
}

// Subscribe subscribes to the groups. All of them count as changed at first. Close ends the
// subscription.
func (f *Feed) Subscribe(groups ...string) *Sub {
	s := &Sub{feed: f, topics: make([]subscribed, len(groups)), wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, g := range groups {
		t := f.topic(g)
		t.subs[s] = struct{}{}
		s.topics[i].topic = t
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

// moved returns the i-th group if it has changed since the last call, and nil otherwise.
func (s *Sub) moved(i int) *groupState {
	at := &s.topics[i]
	now := at.topic.now.Load()
	if now.moves == at.seen {
		return nil
	}
	at.seen = now.moves
	return now
}

// Take returns the groups that have changed since the last call, and whether the feed is up to
// date.
func (s *Sub) Take() ([]store.View, bool) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	var views []store.View
	for i := range s.topics {
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
	for _, at := range s.topics {
		t := at.topic
		delete(t.subs, s)
		// A group without a record is not kept for nobody.
		if len(t.subs) == 0 && t.view.Version == 0 && s.feed.topics[t.view.Group] == t {
			s.feed.forget(t)
		}
	}
	s.topics = nil
}
