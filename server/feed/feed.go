package feed

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
)

// Config configures a feed. Store, Reader and Deployment are required.
type Config struct {
	Store      store.Store
	Reader     *Reader
	Deployment string // for cursors: a cursor of another deployment is reset
	// Timeout bounds a read of the history. Default 5 s.
	Timeout time.Duration
	Clock   clock.Clock  // default clock.System()
	Log     *slog.Logger // default slog.Default()
	// OnChange gets each change of the watch, in order. The feed waits for it, so it must be
	// quick. terms is how many terms began since the last change: a watch may skip some.
	// vacant is how long the group had no leader, if it has one again and the feed saw both
	// ends. back: the token went back, because the store was restored from a backup.
	OnChange func(v store.View, terms int, vacant time.Duration, back bool)
	// Sessions, if set, is called for each watch and returns a function that gets all its
	// updates, in order.
	Sessions func() func(store.Update)
	// OnSight gets nil when the engine can be watched, and an error when it cannot.
	OnSight func(error)
}

// Feed watches every group with one watch. Run runs it. Its methods are safe for concurrent
// use.
type Feed struct {
	cfg Config

	mu     sync.Mutex
	synced bool // the snapshot of the watch is complete
	topics map[string]*topic
	leads  map[string]int // by candidate: how many groups it leads
	holds  map[store.SessionID]int
	changeOrder
}

// topic is a group that has a record or subscribers.
type topic struct {
	groupState
	subs       map[*Sub]struct{}
	emptySince clock.Instant // Never: it is led, or the feed did not see the vacancy begin
	// now is the state for subscribers. Thousands of them may be woken at once, so they read it
	// without the lock of the feed.
	now atomic.Pointer[groupState]
	// revision and place are those of the last change, for tails.
	revision uint64
	place    *list.Element
}

// groupState is the state of a group at one moment.
type groupState struct {
	moves  uint64 // how often subscribers were woken
	view   store.View
	era    int // how often the token went back
	synced bool
	// step has the messages of the last change, for subscribers of this group alone that have
	// seen everything before it.
	step     []Message
	from, to store.Cursor
}

// New returns an empty feed.
func New(cfg Config) *Feed {
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Second
	}
	return &Feed{
		cfg: cfg, topics: make(map[string]*topic), leads: make(map[string]int), holds: make(map[store.SessionID]int),
		changeOrder: changeOrder{revision: 1, tails: make(map[*Tail]struct{})},
	}
}

const (
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
)

// Run watches the engine until ctx ends, and starts again after interruptions.
func (f *Feed) Run(ctx context.Context) {
	wait, lost := retryMin, false
	for ctx.Err() == nil {
		err := errors.New("the watch ended")
		snapshot := make(map[string]bool) // nil after Synced
		sessions := func(store.Update) {}
		if f.cfg.Sessions != nil {
			sessions = f.cfg.Sessions()
		}
		for u, werr := range f.cfg.Store.Watch(ctx, store.Scope{"*"}) {
			if werr != nil {
				err = werr
				break
			}
			sessions(u)
			switch u.Kind {
			case store.Synced:
				wait = retryMin
				f.resetMissing(snapshot)
				snapshot = nil
				f.setSynced(true, nil)
				if lost {
					f.cfg.Log.Info("watching the engine again")
					lost = false
				}
			case store.GroupChanged:
				if snapshot != nil {
					snapshot[u.View.Group] = true
				}
				if u.View.Version == 0 {
					f.retired(u.View.Group)
				} else {
					f.apply(u.View)
				}
			case store.SessionBegan, store.SessionEnded:
			}
		}
		if ctx.Err() != nil {
			break
		}
		f.setSynced(false, err)
		if !lost {
			f.cfg.Log.Warn("cannot watch the engine; retrying", "err", err)
			lost = true
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, retryMax)
	}
	f.setSynced(false, context.Cause(ctx))
}

// resetMissing resets the groups that have no record any more: a restore can remove records.
func (f *Feed) resetMissing(except map[string]bool) {
	f.mu.Lock()
	var gone []string
	for g, t := range f.topics {
		if t.view.Version > 0 && !except[g] {
			gone = append(gone, g)
		}
	}
	f.mu.Unlock()
	for _, g := range gone {
		if _, ok := store.Prefix(g); ok {
			f.retired(g)
			continue
		}
		f.apply(store.View{Record: store.Record{Group: g}, State: tenure.Vacant})
	}
}

// retired handles the removal of a group's record. The group is vacant after its last token.
func (f *Feed) retired(group string) {
	f.mu.Lock()
	t := f.topics[group]
	if t == nil {
		f.mu.Unlock()
		return
	}
	v := t.view
	f.mu.Unlock()
	v.Version, v.State = 0, tenure.Vacant
	f.apply(v)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(t.subs) == 0 && f.topics[group] == t {
		delete(f.topics, group)
	}
}

// setSynced sets whether the feed is up to date, and wakes all subscribers.
func (f *Feed) setSynced(synced bool, err error) {
	f.mu.Lock()
	changed := f.synced != synced
	f.synced = synced
	if changed {
		for _, t := range f.topics {
			if !synced {
				t.emptySince = clock.Never // changes are not seen now
			}
			f.mark(t)
		}
		f.wakeTails()
	}
	f.mu.Unlock()
	if f.cfg.OnSight != nil {
		f.cfg.OnSight(err)
	}
}

func (f *Feed) topic(group string) *topic {
	t := f.topics[group]
	if t == nil {
		t = &topic{
			groupState: groupState{view: store.View{Record: store.Record{Group: group}, State: tenure.Vacant}},
			subs:       make(map[*Sub]struct{}),
			emptySince: clock.Never,
		}
		f.topics[group] = t
		f.mark(t)
	}
	return t
}

// mark publishes the state of the topic to its subscribers, and wakes them.
func (f *Feed) mark(t *topic) {
	t.moves++
	t.synced = f.synced
	t.show()
	for s := range t.subs {
		s.nudge()
	}
}

func (t *topic) show() {
	now := t.groupState
	t.now.Store(&now)
}

// apply applies a view from the watch.
func (f *Feed) apply(v store.View) {
	now := f.cfg.Clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topic(v.Group)
	old, next := at(t.view), at(v)
	back := next.Token < old.Token
	switch {
	case back:
		t.era++
	case old == next:
		// The same state, perhaps with more details, such as a reason.
		more := v.Version != t.view.Version
		t.view = v
		t.show()
		if more {
			f.changed(t)
		}
		return
	}
	t.step = nil
	changes, complete := store.Since(v, old)
	if complete && !back {
		t.step, t.from, t.to = f.messages(v.Group, changes), old, next
	}
	f.count(t.view, -1)
	f.count(v, 1)
	t.view = v
	var vacant time.Duration
	if v.State == tenure.Led && t.emptySince != clock.Never {
		vacant = now.Sub(t.emptySince)
	}
	t.emptySince = clock.Never
	if v.State == tenure.Vacant && f.synced {
		t.emptySince = now
	}
	if f.cfg.OnChange != nil && (f.synced || back) {
		f.cfg.OnChange(v, begun(changes), vacant, back)
	}
	f.changed(t)
	f.mark(t) // last, so that a subscriber that sees the change finds it counted
}

// begun counts the terms that began.
func begun(changes []tenure.Leader) int {
	n := 0
	for _, l := range changes {
		if l.State == tenure.Led {
			n++
		}
	}
	return n
}

func (f *Feed) count(v store.View, by int) {
	if v.State != tenure.Led {
		return
	}
	if f.leads[v.Candidate.ID] += by; f.leads[v.Candidate.ID] <= 0 {
		delete(f.leads, v.Candidate.ID)
	}
	if f.holds[v.Holder] += by; f.holds[v.Holder] <= 0 {
		delete(f.holds, v.Holder)
	}
}

// Leads returns how many groups a candidate leads.
func (f *Feed) Leads(candidate string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leads[candidate]
}

// Holds returns how many groups a session leads.
func (f *Feed) Holds(id store.SessionID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holds[id]
}

// Followers returns how many subscribers a group has.
func (f *Feed) Followers(group string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.topics[group]; t != nil {
		return len(t.subs)
	}
	return 0
}

// Held returns the groups of a session, sorted.
func (f *Feed) Held(id store.SessionID) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	groups := []string{}
	for g, t := range f.topics {
		if t.view.State == tenure.Led && t.view.Holder == id {
			groups = append(groups, g)
		}
	}
	slices.Sort(groups)
	return groups
}

// messages encodes the changes of one group for subscribers of that group alone.
func (f *Feed) messages(group string, changes []tenure.Leader) []Message {
	step := make([]Message, len(changes))
	for i, l := range changes {
		place := Place{Group: group, Cursor: store.Cursor{Token: l.Token, State: l.State}}
		step[i] = newMessage(Changed, eventOf(l), Cursor{Deployment: f.cfg.Deployment, Places: []Place{place}}.String())
	}
	return step
}

// View returns the last view of a group, and whether the feed is up to date.
func (f *Feed) View(group string) (store.View, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.topics[group]; t != nil {
		return t.view, f.synced
	}
	return store.View{Record: store.Record{Group: group}, State: tenure.Vacant}, f.synced
}

// Leaders returns who leads each group that was ever led ("" is nobody), and how many groups
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
