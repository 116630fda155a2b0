package feed

import (
	"container/list"

	"github.com/tenurehq/tenure/store"
)

// Tail yields the changes of all groups. States in between may be skipped. It is for one
// goroutine, except Nudge.
type Tail struct {
	feed *Feed
	seen uint64
	wake chan struct{} // buffered by one
}

// Tail returns the changes after a revision that Take returned. 0, or a revision from which the
// changes are not complete, begins with all groups. Close ends it.
func (f *Feed) Tail(after uint64) *Tail {
	t := &Tail{feed: f, seen: after, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if after < f.floor || after > f.revision {
		t.seen = 0
	}
	f.tails[t] = struct{}{}
	t.Nudge()
	return t
}

// Close ends the subscription.
func (t *Tail) Close() {
	t.feed.mu.Lock()
	defer t.feed.mu.Unlock()
	delete(t.feed.tails, t)
}

// Wake receives when Take may have something to return, and after Nudge.
func (t *Tail) Wake() <-chan struct{} { return t.wake }

// Nudge makes Wake receive. It may be called from any goroutine.
func (t *Tail) Nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Take returns the groups that have changed since the last call, the revision after them, and
// whether the feed is up to date. A group of version 0 has no record any more. whole: these are
// all groups. While the feed is not up to date there are none.
func (t *Tail) Take() (views []store.View, revision uint64, whole, synced bool) {
	f := t.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return nil, t.seen, false, false
	}
	if t.seen < f.floor {
		t.seen = 0
	}
	whole = t.seen == 0
	for e := f.order.Back(); e != nil; e = e.Prev() {
		c, ok := e.Value.(*topic)
		if !ok || c.revision <= t.seen {
			break
		}
		if !whole || c.view.Version > 0 {
			views = append(views, c.view)
		}
	}
	t.seen = f.revision
	return views, t.seen, whole, true
}

// changed puts a topic at the end of the order of changes, and wakes the tails. f.mu is held.
func (f *Feed) changed(t *topic) {
	f.revision++
	t.revision = f.revision
	if t.place == nil {
		t.place = f.order.PushBack(t)
	} else {
		f.order.MoveToBack(t.place)
	}
	f.wakeTails()
}

func (f *Feed) wakeTails() {
	for t := range f.tails {
		t.Nudge()
	}
}

// forget removes a topic. Who has seen it must begin again. f.mu is held.
func (f *Feed) forget(t *topic) {
	delete(f.topics, t.view.Group)
	if t.place != nil {
		f.order.Remove(t.place)
		f.floor = f.revision
	}
}

// changes of all groups, in order.
type changeOrder struct {
	revision uint64 // of the newest change; the first is 2, so that 1 is "no group yet"
	floor    uint64 // tails that have seen less begin again
	order    list.List
	tails    map[*Tail]struct{}
}
