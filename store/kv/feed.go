package kv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// feed keeps one picture of all groups and living sessions for all watches of a store.
//
// What it takes in may come in any order and more than once: versions grow and a session
// dies once, so the newer of two views can always be told.
type feed struct {
	s *Store

	mu       sync.Mutex
	subs     map[*Sub]struct{}
	cancel   context.CancelFunc // of the loop that is running; nil: none
	life     uint64             // counts the loops
	views    map[string]lease.View
	holds    map[lease.SessionID]map[string]bool
	sessions map[lease.SessionID]described
	begun    uint64 // refreshes so far
	done     uint64 // the newest of them that has read everything
	turn     chan struct{}

	swept   clock.Instant
	corpses map[string]clock.Instant // keys of dead sessions: when they were first seen
}

func newFeed(s *Store) *feed {
	f := &feed{s: s, subs: map[*Sub]struct{}{}, corpses: map[string]clock.Instant{}, turn: make(chan struct{}, 1)}
	f.reset()
	return f
}

func (f *feed) reset() {
	f.views = map[string]lease.View{}
	f.holds = map[lease.SessionID]map[string]bool{}
	f.sessions = map[lease.SessionID]described{}
}

// Sub is one watch. Updates wait in it until they are taken, each group and session once.
type Sub struct {
	feed     *feed
	scope    lease.Scope
	wake     func()
	groups   []string
	dirty    map[string]bool
	sessions []lease.Update
	synced   bool // Synced was taken
	ready    bool // the snapshot is complete
	err      error
}

// Subscribe begins a watch. wake is called, without blocking, whenever there is something
// to take.
func (s *Store) Subscribe(ctx context.Context, scope lease.Scope, wake func()) (*Sub, error) {
	if err := scope.Validate(); err != nil {
		return nil, err
	}
	f := s.feed
	sub := &Sub{feed: f, scope: slices.Clone(scope), wake: wake, dirty: map[string]bool{}}
	f.mu.Lock()
	f.subs[sub] = struct{}{}
	if f.cancel == nil {
		f.start()
	}
	f.mu.Unlock()
	if err := f.shared(ctx); err != nil {
		sub.Close()
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// The snapshot is the picture as it is now. What was noted before is in it.
	sub.groups, sub.sessions = nil, nil
	clear(sub.dirty)
	for _, id := range slices.Sorted(maps.Keys(f.sessions)) {
		if d := f.sessions[id]; d.Scope.Overlaps(scope) {
			sub.sessions = append(sub.sessions, lease.Update{Kind: lease.SessionBegan, Session: d.Session})
		}
	}
	for _, g := range slices.Sorted(maps.Keys(f.views)) {
		sub.note(g)
	}
	sub.ready = true
	return sub, sub.err
}

// Close ends the watch.
func (sub *Sub) Close() {
	f := sub.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.subs, sub)
	if len(f.subs) == 0 && f.cancel != nil {
		f.cancel()
		f.cancel = nil
		f.reset()
	}
}

// note marks a group as changed. f.mu is held.
func (sub *Sub) note(group string) {
	if !sub.dirty[group] && sub.scope.Covers(group) {
		sub.dirty[group] = true
		sub.groups = append(sub.groups, group)
	}
}

// Take returns what there is to tell, as it is now. After an error there is nothing more.
func (sub *Sub) Take() ([]lease.Update, error) {
	f := sub.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if !sub.ready {
		return nil, sub.err
	}
	out := sub.sessions
	for _, g := range sub.groups {
		out = append(out, lease.Update{Kind: lease.GroupChanged, View: f.views[g]})
	}
	sub.sessions, sub.groups = nil, nil
	clear(sub.dirty)
	if !sub.synced {
		sub.synced = true
		out = append(out, lease.Update{Kind: lease.Synced})
	}
	return out, sub.err
}

// start begins the loop. f.mu is held.
func (f *feed) start() {
	ctx, cancel := context.WithCancel(f.s.ctx)
	f.cancel = cancel
	f.life++
	life := f.life
	f.s.cfg.spawn(func() { f.run(ctx, life) })
}

// sweepEvery is how often the keys of dead sessions are looked for, keepDead how long they
// are kept, so that everybody can learn why a session ended.
const (
	sweepEvery = time.Minute
	keepDead   = 10 * time.Minute
)

func (f *feed) tick() time.Duration {
	if f.s.leaser != nil {
		return sweepEvery
	}
	return max(f.s.caps.MinTTL/observations, 10*time.Millisecond)
}

func (f *feed) run(ctx context.Context, life uint64) {
	err := errors.New("kv: the engine's watch ended")
	for c, e := range f.s.driver.Watch(ctx, f.tick(), recordAt, sessionAt, beatAt) {
		if e == nil {
			e = f.take(ctx, c)
		}
		if e != nil {
			err = e
			break
		}
	}
	if f.s.ctx.Err() != nil {
		err = ErrShutdown
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.life != life || f.cancel == nil {
		return // nobody watches any more, or another loop has begun
	}
	f.cancel()
	f.cancel = nil
	f.reset()
	for sub := range f.subs {
		delete(f.subs, sub)
		sub.err = err
		sub.wake()
	}
}

// take takes in one change.
func (f *feed) take(ctx context.Context, c Change) error {
	group, isRecord := strings.CutPrefix(c.Key, recordAt)
	id, isBeat := strings.CutPrefix(c.Key, beatAt)
	switch {
	case c.Tick:
		return f.ticked(ctx)
	case c.Key == "":
		return f.refresh(ctx)
	case c.Item != nil && isRecord:
		return f.record(ctx, *c.Item)
	case c.Item != nil && isBeat:
		if c.Item.Version == 0 {
			f.died(lease.SessionID(id))
		}
		return nil
	case c.Item != nil:
		f.described(*c.Item)
		return nil
	case isRecord:
		return f.resolve(ctx, []string{group})
	case isBeat:
		return f.look(ctx, []lease.SessionID{lease.SessionID(id)})
	default:
		return f.look(ctx, []lease.SessionID{lease.SessionID(strings.TrimPrefix(c.Key, sessionAt))})
	}
}

// record takes in a record in the order of changes: its holder began before it was granted
// anything, so a holder that is not known here needs a look.
func (f *feed) record(ctx context.Context, i Item) error {
	r, err := decodeRecord(i)
	if i.Version == 0 {
		f.s.mu.Lock()
		f.s.proves(fmt.Sprintf("the record of group %q was deleted", r.Group))
		f.s.mu.Unlock()
		_, err := f.s.loadMeta(ctx) // tells everybody
		return err
	}
	if err != nil {
		// A newer program wrote it: somebody leads.
		f.set(lease.View{Record: r.Record, State: tenure.Led})
		return nil
	}
	f.s.mu.Lock()
	if known, _ := f.s.records.get(r.Group); r.Version > known.Version {
		f.s.records.put(r.Group, r)
	}
	f.s.mu.Unlock()
	f.mu.Lock()
	_, alive := f.sessions[r.Holder]
	f.mu.Unlock()
	if r.Holder != "" && !alive {
		return f.resolve(ctx, []string{r.Group})
	}
	f.set(f.s.view(r.Record, alive))
	return nil
}

// described takes in a session, or why it ended.
func (f *feed) described(i Item) {
	if i.Version == 0 {
		return // its beat tells
	}
	d, err := decodeSession(i)
	if err != nil {
		return
	}
	f.s.mu.Lock()
	if d.ended != "" {
		f.s.ended.put(d.ID, d.ended)
	} else {
		f.s.sessions.put(d.ID, d)
	}
	f.s.mu.Unlock()
	if d.ended == "" {
		f.began(d)
	}
}

// newer reports whether a view replaces another: versions grow, and a holder dies once.
func newer(a, b lease.View) bool {
	return a.Version > b.Version || a.Version == b.Version && a.State == tenure.Vacant && b.State == tenure.Led
}

func (f *feed) set(v lease.View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, ok := f.views[v.Group]
	if ok && !newer(v, old) || v.Version == 0 {
		return
	}
	if h := old.Holder; h != "" {
		if delete(f.holds[h], v.Group); len(f.holds[h]) == 0 {
			delete(f.holds, h)
		}
	}
	f.views[v.Group] = v
	if v.State == tenure.Led {
		if f.holds[v.Holder] == nil {
			f.holds[v.Holder] = map[string]bool{}
		}
		f.holds[v.Holder][v.Group] = true
	}
	for sub := range f.subs {
		sub.note(v.Group)
		sub.wake()
	}
}

func (f *feed) began(d described) {
	f.s.mu.Lock()
	_, over := f.s.ended.get(d.ID)
	f.s.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.sessions[d.ID]; ok || over {
		return
	}
	f.sessions[d.ID] = d
	f.tell(lease.Update{Kind: lease.SessionBegan, Session: d.Session})
}

// tell tells everybody who watches a group that the session may lead. f.mu is held.
func (f *feed) tell(u lease.Update) {
	for sub := range f.subs {
		if u.Session.Scope.Overlaps(sub.scope) {
			sub.sessions = append(sub.sessions, u)
			sub.wake()
		}
	}
}

// died takes a session out and returns the groups that it held. Where changes come in their
// order, these are vacant.
func (f *feed) died(id lease.SessionID) []string {
	why := f.s.reason(id)
	f.s.mu.Lock()
	f.s.ended.put(id, why)
	delete(f.s.silences, id)
	f.s.mu.Unlock()
	f.mu.Lock()
	if d, ok := f.sessions[id]; ok {
		delete(f.sessions, id)
		f.tell(lease.Update{Kind: lease.SessionEnded, Session: d.Session, Reason: why})
	}
	groups := slices.Sorted(maps.Keys(f.holds[id]))
	var vacant []lease.View
	for _, g := range groups {
		vacant = append(vacant, f.views[g])
	}
	f.mu.Unlock()
	if f.s.caps.Ordered && !f.s.cfg.plant.Has(plant.WatchForgetsDeath) {
		for _, v := range vacant {
			f.set(f.s.view(v.Record, false))
		}
	}
	return groups
}

// watched reports whether anybody watches the group. Others are read when somebody does.
func (f *feed) watched(group string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for sub := range f.subs {
		if sub.scope.Covers(group) {
			return true
		}
	}
	return false
}

// resolve reads groups and shows them as they are.
func (f *feed) resolve(ctx context.Context, groups []string) error {
	groups = slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return !f.watched(g) })
	for part := range slices.Chunk(groups, max(1, f.s.caps.Keys/3)) {
		views, err := f.s.views(ctx, part)
		if err != nil {
			if errors.Is(err, lease.ErrNewer) {
				continue
			}
			return err
		}
		for _, v := range views {
			f.set(v)
		}
	}
	return nil
}

// look reads sessions: one that is gone has died, and what it held is looked at.
func (f *feed) look(ctx context.Context, ids []lease.SessionID) error {
	for part := range slices.Chunk(ids, max(1, f.s.caps.Keys/2)) {
		var keys []string
		for _, id := range part {
			keys = append(keys, sessionKey(id), beatKey(id))
		}
		items, err := f.s.read(ctx, keys...)
		if err != nil {
			return err
		}
		for i, id := range part {
			session, beat := items[2*i], items[2*i+1]
			f.s.sawSession(id, beat, session)
			if beat.Version != 0 {
				f.described(session)
				continue
			}
			f.mu.Lock()
			_, known := f.sessions[id]
			f.mu.Unlock()
			if !known && session.Version != 0 && f.s.reason(id) == lease.Expired {
				continue // being opened: its beat comes last
			}
			groups := f.died(id)
			if f.s.cfg.plant.Has(plant.WatchForgetsDeath) {
				continue
			}
			if err := f.resolve(ctx, groups); err != nil {
				return err
			}
		}
	}
	return nil
}

// shared returns after a refresh that began after the call. Callers that wait for the same
// one share it.
func (f *feed) shared(ctx context.Context) error {
	f.mu.Lock()
	arrived := f.begun
	f.mu.Unlock()
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	f.mu.Lock()
	if f.done > arrived {
		f.mu.Unlock()
		return nil
	}
	f.begun++
	mine := f.begun
	f.mu.Unlock()
	if err := f.refresh(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	f.done = mine
	f.mu.Unlock()
	return nil
}

// refresh reads everything. Records come before the sessions: a holder that is missing
// then has died.
func (f *feed) refresh(ctx context.Context) error {
	f.mu.Lock()
	before := slices.Collect(maps.Keys(f.sessions))
	shown := maps.Clone(f.views)
	f.mu.Unlock()
	records, err := f.s.list(ctx, recordAt)
	if err != nil {
		return err
	}
	if err := f.wentBack(records, shown); err != nil {
		return err
	}
	living, err := f.s.allSessions(ctx)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(living)) {
		f.began(living[id])
	}
	for _, id := range before {
		if _, ok := living[id]; !ok {
			if err := f.resolve(ctx, f.died(id)); err != nil {
				return err
			}
		}
	}
	unclear := map[string]uint64{}
	for _, i := range records {
		r, err := decodeRecord(i)
		f.s.sawItem(i, 0)
		_, alive := living[r.Holder]
		switch {
		case !f.watched(r.Group):
		case err != nil:
			f.set(lease.View{Record: r.Record, State: tenure.Led})
		case alive || r.Holder == "":
			f.set(f.s.view(r.Record, alive))
		default:
			unclear[r.Group] = r.Version
		}
	}
	if len(unclear) == 0 {
		return nil
	}
	// Their holders have died. Those that were not handed over before are vacant.
	if records, err = f.s.list(ctx, recordAt); err != nil {
		return err
	}
	var moved []string
	for _, i := range records {
		r, err := decodeRecord(i)
		switch was, ok := unclear[r.Group]; {
		case !ok || err != nil:
		case r.Version == was:
			f.set(f.s.view(r.Record, false))
		default:
			moved = append(moved, r.Group)
		}
	}
	return f.resolve(ctx, moved)
}

// wentBack returns an error if records are older than those that were shown: the engine
// lost data. Watches end then, for what they yielded is not so.
func (f *feed) wentBack(records []Item, shown map[string]lease.View) error {
	for _, i := range records {
		group := strings.TrimPrefix(i.Key, recordAt)
		if i.Version >= shown[group].Version {
			delete(shown, group)
		}
	}
	for group := range shown {
		f.s.mu.Lock()
		defer f.s.mu.Unlock()
		f.s.proves(fmt.Sprintf("the record of group %q went back or was deleted", group))
		return fmt.Errorf("kv: watch: group %q: %w", group, lease.ErrRewound)
	}
	return nil
}

// ticked does what is done from time to time: observe sessions and sweep up.
func (f *feed) ticked(ctx context.Context) error {
	if f.s.leaser == nil {
		f.mu.Lock()
		holders := slices.Sorted(maps.Keys(f.holds))
		leads := slices.ContainsFunc(holders, f.s.mine)
		if leads {
			holders = slices.Sorted(maps.Keys(f.sessions)) // leaders look after those who wait
		}
		f.mu.Unlock()
		if err := f.look(ctx, f.s.due(holders)); err != nil {
			return err
		}
		over := slices.Sorted(maps.Keys(f.s.silent()))
		if err := f.s.expire(ctx); err != nil {
			return err
		}
		if err := f.look(ctx, over); err != nil {
			return err
		}
	}
	return f.sweep(ctx)
}

// sweep deletes what dead sessions left behind. The oldest living session's process does.
func (f *feed) sweep(ctx context.Context) error {
	now := f.s.cfg.Clock.Now()
	f.mu.Lock()
	var oldest lease.Session
	for _, d := range f.sessions {
		if oldest.ID == "" || d.Opened < oldest.Opened {
			oldest = d.Session
		}
	}
	f.mu.Unlock()
	if now.Sub(f.swept) < sweepEvery || oldest.ID == "" || !f.s.mine(oldest.ID) {
		return nil
	}
	f.swept = now
	sessions, err := f.s.list(ctx, sessionAt)
	if err != nil {
		return err
	}
	living, err := f.s.allSessions(ctx)
	if err != nil {
		return err
	}
	seen := map[string]clock.Instant{}
	for _, i := range sessions {
		d, err := decodeSession(i)
		if _, alive := living[d.ID]; alive || err != nil {
			continue
		}
		first, ok := f.corpses[i.Key]
		if !ok {
			first = now
		}
		if now.Sub(first) < keepDead {
			seen[i.Key] = first
			continue
		}
		for _, key := range []string{requestsKey(d.ID), beatKey(d.ID), i.Key} {
			if key == beatKey(d.ID) {
				continue
			}
			if _, err := f.s.commit(ctx, Txn{Then: []Write{{Key: key, Quiet: true}}}); err != nil {
				return err
			}
		}
	}
	f.corpses = seen
	return nil
}
