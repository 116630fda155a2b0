package feed

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// Config is what a feed is made of. Store, Reader and Deployment are required.
type Config struct {
	Store      lease.Store
	Reader     *Reader
	Deployment string // for cursors: those of another deployment begin anew
	// Timeout bounds a read of the history. Default 5 s.
	Timeout time.Duration
	Clock   clock.Clock  // default clock.System()
	Log     *slog.Logger // default slog.Default()
	// OnChange is told each change that the watch brings, in order, while nothing else
	// of the feed goes on: it must be quick. terms is how many began since the change
	// before, for a watch may skip some. vacant is how long the group had no leader,
	// where it has one again and the feed saw both. back: the token went back, which a
	// store never does unless it was restored from a backup.
	OnChange func(v lease.View, terms int, vacant time.Duration, back bool)
	// Sessions, if set, begins to take the updates of each watch, in order: those of groups
	// too.
	Sessions func() func(lease.Update)
	// OnSight is told when the engine can be watched (nil) and when no longer.
	OnSight func(error)
}

// Feed follows every group with one watch. Run makes it go; its methods are safe for
// concurrent use.
type Feed struct {
	cfg Config

	mu     sync.Mutex
	synced bool // the watch runs, and its snapshot is complete
	topics map[string]*topic
	leads  map[string]int // by candidate: how many groups it leads
	holds  map[lease.SessionID]int
}

// topic is a group that the engine has a record of, or that somebody asks about.
type topic struct {
	look
	subs       map[*Sub]struct{}
	emptySince clock.Instant // Never: it is led, or its vacancy began unseen
	// now is the look that subscribers see. They do not take the feed's lock: thousands of
	// them are woken at once.
	now atomic.Pointer[look]
}

// look is a group at one moment.
type look struct {
	moves  uint64 // how often subscribers were woken
	view   lease.View
	era    int // how often the token went back
	synced bool
	// step is what the last change means to a subscriber that had seen all before it, and
	// to no other group.
	step     []Message
	from, to lease.Cursor
}

// New returns a feed that knows nothing yet.
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
	return &Feed{cfg: cfg, topics: make(map[string]*topic), leads: make(map[string]int), holds: make(map[lease.SessionID]int)}
}

const (
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
)

// Run follows the engine until ctx ends, through every interruption.
func (f *Feed) Run(ctx context.Context) {
	wait := retryMin
	for ctx.Err() == nil {
		err := errors.New("the watch ended")
		pictured := make(map[string]bool) // nil when the snapshot is complete
		sessions := func(lease.Update) {}
		if f.cfg.Sessions != nil {
			sessions = f.cfg.Sessions()
		}
		for u, werr := range f.cfg.Store.Watch(ctx, lease.Scope{"*"}) {
			if werr != nil {
				err = werr
				break
			}
			sessions(u)
			switch u.Kind {
			case lease.Synced:
				wait = retryMin
				f.lose(pictured)
				pictured = nil
				f.sight(true, nil)
			case lease.GroupChanged:
				if pictured != nil {
					pictured[u.View.Group] = true
				}
				f.apply(u.View)
			case lease.SessionBegan, lease.SessionEnded:
			}
		}
		if ctx.Err() != nil {
			break
		}
		if f.sight(false, err) {
			f.cfg.Log.Warn("the engine cannot be watched; trying again", "err", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, retryMax)
	}
	f.sight(false, context.Cause(ctx))
}

// lose takes back the groups that the engine has no record of any more: a restore can
// undo that they were ever led.
func (f *Feed) lose(except map[string]bool) {
	f.mu.Lock()
	var gone []string
	for g, t := range f.topics {
		if t.view.Version > 0 && !except[g] {
			gone = append(gone, g)
		}
	}
	f.mu.Unlock()
	for _, g := range gone {
		f.apply(lease.View{Record: lease.Record{Group: g}, State: tenure.Vacant})
	}
}

// sight notes whether what is known is the present, and wakes everybody. It reports
// whether that is news.
func (f *Feed) sight(synced bool, err error) bool {
	f.mu.Lock()
	news := f.synced != synced
	f.synced = synced
	if news {
		for _, t := range f.topics {
			if !synced {
				t.emptySince = clock.Never // what happens now is not seen
			}
			f.mark(t)
		}
	}
	f.mu.Unlock()
	if f.cfg.OnSight != nil {
		f.cfg.OnSight(err)
	}
	return news
}

func (f *Feed) topic(group string) *topic {
	t := f.topics[group]
	if t == nil {
		t = &topic{
			look:       look{view: lease.View{Record: lease.Record{Group: group}, State: tenure.Vacant}},
			subs:       make(map[*Sub]struct{}),
			emptySince: clock.Never,
		}
		f.topics[group] = t
		f.mark(t)
	}
	return t
}

// mark shows subscribers how the topic is, and wakes them.
func (f *Feed) mark(t *topic) {
	t.moves++
	t.synced = f.synced
	t.show()
	for s := range t.subs {
		s.nudge()
	}
}

func (t *topic) show() {
	now := t.look
	t.now.Store(&now)
}

// apply takes a view from the watch.
func (f *Feed) apply(v lease.View) {
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
		// The same place, perhaps with more known about it: its reason, say.
		t.view = v
		t.show()
		return
	}
	t.step = nil
	changes, complete := lease.Since(v, old)
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
	f.mark(t) // last: a subscriber that sees the change finds it counted
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

func (f *Feed) count(v lease.View, by int) {
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

// Leads says how many groups a candidate leads.
func (f *Feed) Leads(candidate string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leads[candidate]
}

// Holds says how many groups a session leads.
func (f *Feed) Holds(id lease.SessionID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holds[id]
}

// Followers says how many follow a group.
func (f *Feed) Followers(group string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.topics[group]; t != nil {
		return len(t.subs)
	}
	return 0
}

// Held returns the groups of a session, sorted.
func (f *Feed) Held(id lease.SessionID) []string {
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

// messages writes the changes of one group for subscribers of that group alone.
func (f *Feed) messages(group string, changes []tenure.Leader) []Message {
	step := make([]Message, len(changes))
	for i, l := range changes {
		place := Place{Group: group, Cursor: lease.Cursor{Token: l.Token, State: l.State}}
		step[i] = newMessage(Changed, eventOf(l), Cursor{Deployment: f.cfg.Deployment, Places: []Place{place}}.String())
	}
	return step
}

// View returns what the feed knows of a group, and whether that is the present.
func (f *Feed) View(group string) (lease.View, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.topics[group]; t != nil {
		return t.view, f.synced
	}
	return lease.View{Record: lease.Record{Group: group}, State: tenure.Vacant}, f.synced
}

// Counts says how many groups have had a leader, and how many of them have none now.
func (f *Feed) Counts() (groups, vacant int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.topics {
		if t.view.Version == 0 {
			continue
		}
		groups++
		if t.view.State != tenure.Led {
			vacant++
		}
	}
	return groups, vacant
}
