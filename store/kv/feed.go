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
	"github.com/tenurehq/tenure/store"
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
	views    map[string]store.View
	holds    map[store.SessionID]map[string]bool
	sessions map[store.SessionID]described
	epoch    uint64 // that the picture is of
	begun    uint64 // refreshes so far
	told     uint64 // the newest of them whose sessions are in the picture
	done     uint64 // the newest of them that is in the picture
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
	f.views = map[string]store.View{}
	f.holds = map[store.SessionID]map[string]bool{}
	f.sessions = map[store.SessionID]described{}
}

// Sub is one watch. Updates wait in it until they are taken, each group and session once: a
// session that began and ended meanwhile is not told at all.
type Sub struct {
	feed     *feed
	scope    store.Scope
	wake     func()
	groups   []string
	dirty    map[string]bool
	sessions []store.Update
	begins   map[store.SessionID]bool // in sessions
	synced   bool                     // Synced was taken
	first    bool                     // the loop began for it, so its next refresh is the snapshot
	ready    bool                     // the snapshot is complete
	err      error
}

// Subscribe begins a watch. wake is called, without blocking, whenever there is something
// to take: for the first time when the snapshot is complete.
func (s *Store) Subscribe(ctx context.Context, scope store.Scope, wake func()) (*Sub, error) {
	if err := scope.Validate(); err != nil {
		return nil, err
	}
	f := s.feed
	sub := &Sub{feed: f, scope: slices.Clone(scope), wake: wake, dirty: map[string]bool{}, begins: map[store.SessionID]bool{}}
	f.mu.Lock()
	if sub.first = f.cancel == nil; sub.first && !f.start() {
		f.mu.Unlock()
		return nil, ErrClosed
	}
	f.subs[sub] = struct{}{}
	f.mu.Unlock()
	if sub.first {
		return sub, nil
	}
	if err := f.shared(ctx); err != nil {
		sub.Close()
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sub.show()
	return sub, sub.err
}

// show makes the picture as it is now the snapshot. f.mu is held.
func (sub *Sub) show() {
	f := sub.feed
	sub.ready = true
	for _, id := range slices.Sorted(maps.Keys(f.sessions)) {
		sub.tell(store.Update{Kind: store.SessionBegan, Session: f.sessions[id].Session})
	}
	for _, g := range slices.Sorted(maps.Keys(f.views)) {
		sub.note(g)
	}
	sub.wake()
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
	if sub.ready && !sub.dirty[group] && sub.scope.Covers(group) {
		sub.dirty[group] = true
		sub.groups = append(sub.groups, group)
		sub.wake()
	}
}

// tell notes that a session began or ended. f.mu is held.
func (sub *Sub) tell(u store.Update) {
	if !sub.ready || !u.Session.Scope.Overlaps(sub.scope) {
		return
	}
	id := u.Session.ID
	if u.Kind == store.SessionEnded && sub.begins[id] {
		delete(sub.begins, id)
		sub.sessions = slices.DeleteFunc(sub.sessions, func(w store.Update) bool { return w.Session.ID == id })
		return
	}
	if u.Kind == store.SessionBegan {
		sub.begins[id] = true
	}
	sub.sessions = append(sub.sessions, u)
	sub.wake()
}

// Take returns what there is to tell, as it is now. After an error there is nothing more.
func (sub *Sub) Take() ([]store.Update, error) {
	f := sub.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if !sub.ready {
		return nil, sub.err
	}
	out := sub.sessions
	for _, g := range sub.groups {
		if v, ok := f.views[g]; ok { // else the picture begins anew
			out = append(out, store.Update{Kind: store.GroupChanged, View: v})
		}
	}
	sub.sessions, sub.groups = nil, nil
	clear(sub.dirty)
	clear(sub.begins)
	if !sub.synced {
		sub.synced = true
		out = append(out, store.Update{Kind: store.Synced})
	}
	return out, sub.err
}

// start begins the loop, unless the store is closed. f.mu is held.
func (f *feed) start() bool {
	ctx, cancel := context.WithCancel(f.s.ctx)
	life := f.life + 1
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if !f.s.start(func() { f.run(ctx, life) }) {
		cancel()
		return false
	}
	f.cancel, f.life, f.epoch = cancel, life, f.s.epoch
	return true
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
	return max(f.s.caps.MinTTL/store.Observations, 10*time.Millisecond)
}

func (f *feed) run(ctx context.Context, life uint64) {
	err := errors.New("kv: the engine's watch ended")
	lost := f.s.lostData()
	for c, e := range f.s.driver.Watch(ctx, f.tick(), recordAt, sessionAt, beatAt) {
		if e == nil {
			e = f.take(ctx, c)
		}
		if now := f.s.lostData(); e == nil && now != "" && now != lost {
			// The views that watchers have got are no longer true.
			e = fmt.Errorf("kv: watch: %s: %w", now, store.ErrRewound)
		}
		if e != nil {
			err = e
			break
		}
		if c.Key == "" && !c.Tick {
			f.showFirst() // not before it is known that the engine lost no data
		}
	}
	if f.s.ctx.Err() != nil {
		err = ErrClosed
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

// take takes in one change, and tells everybody if it shows that the engine lost data.
func (f *feed) take(ctx context.Context, c Change) error {
	if f.raised() {
		c = Change{}
	}
	if err := f.change(ctx, c); err != nil {
		return err
	}
	return f.s.report(ctx)
}

// raised reports whether the epoch was raised. It then drops all views, because those from before
// the loss of data may have larger versions than the present ones.
func (f *feed) raised() bool {
	epoch := f.s.ask().epoch
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.epoch == epoch {
		return false
	}
	f.epoch = epoch
	f.views, f.holds = map[string]store.View{}, map[store.SessionID]map[string]bool{}
	return true
}

func (f *feed) change(ctx context.Context, c Change) error {
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
		beat := []Item{*c.Item}
		if f.s.ends(beat); beat[0].Version == 0 {
			f.died(store.SessionID(id), true)
		}
		return nil
	case c.Item != nil:
		f.described(*c.Item)
		return nil
	case isRecord:
		return f.resolve(ctx, []string{group})
	case isBeat:
		return f.look(ctx, []store.SessionID{store.SessionID(id)})
	default:
		return f.look(ctx, []store.SessionID{store.SessionID(strings.TrimPrefix(c.Key, sessionAt))})
	}
}

// record takes in a record in the order of changes: its holder began before it was granted
// anything, so a holder that is not known here needs a look.
func (f *feed) record(ctx context.Context, i Item) error {
	r, err := f.s.parsedRecords.get(i)
	if i.Version != 0 && err != nil {
		// A newer program wrote it: somebody leads.
		f.set(store.View{Record: r.Record, State: tenure.Led})
		return nil
	}
	f.s.mu.Lock()
	known, _ := f.s.records.get(r.Group)
	lost := i.Version == 0 || r.stored > known.stored && r.Token < known.Token
	if !lost && r.stored > known.stored {
		r.read = known.read
		f.s.records.put(r.Group, r)
	}
	f.s.mu.Unlock()
	if lost {
		_, err := f.s.read(ctx, i.Key) // proves it, unless the epoch was raised since
		return err
	}
	f.mu.Lock()
	_, alive := f.sessions[r.Holder]
	f.mu.Unlock()
	if r.Holder != "" && !alive || !f.set(f.s.view(r.Record, alive)) {
		return f.resolve(ctx, []string{r.Group})
	}
	return nil
}

// described takes in a session, or why it ended.
func (f *feed) described(i Item) {
	if i.Version == 0 {
		return // the deletion of its beat is the death
	}
	d, err := f.s.parsedSessions.get(i)
	if err != nil {
		return
	}
	if d.ended != "" {
		f.s.noteEnd(d.ID, d.ended)
		return
	}
	f.s.sessions.put(d.ID, d)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.began(d)
}

// newer reports whether a view replaces another: versions grow, and a holder dies once.
func newer(a, b store.View) bool {
	return a.Version > b.Version || a.Version == b.Version && a.State == tenure.Vacant && b.State == tenure.Led
}

// set puts a view into the picture, unless there is a newer one. It returns false if the view
// is older than the death of its holder: read the group again.
func (f *feed) set(v store.View) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.State == tenure.Led && f.over(v.Holder) {
		return false
	}
	old, ok := f.views[v.Group]
	if ok && !newer(v, old) || v.Version == 0 {
		return true
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
	}
	return true
}

// over reports whether the session is known to have ended.
func (f *feed) over(id store.SessionID) bool {
	_, over := f.s.ended.get(id)
	return over
}

// began puts a session into the picture. f.mu is held.
func (f *feed) began(d described) {
	if f.over(d.ID) {
		return
	}
	if _, ok := f.sessions[d.ID]; ok {
		return
	}
	f.sessions[d.ID] = d
	f.tell(store.Update{Kind: store.SessionBegan, Session: d.Session})
}

// tell tells everybody who watches a group that the session may lead. f.mu is held.
func (f *feed) tell(u store.Update) {
	for sub := range f.subs {
		sub.tell(u)
	}
}

// died takes a session out and returns the groups that it held. If the death was told in the
// order of changes, these are vacant; else they may have been handed over before.
func (f *feed) died(id store.SessionID, inOrder bool) []string {
	why := f.s.reason(id)
	f.s.noteEnd(id, why)
	f.mu.Lock()
	if d, ok := f.sessions[id]; ok {
		delete(f.sessions, id)
		f.tell(store.Update{Kind: store.SessionEnded, Session: d.Session, Reason: why})
	}
	groups := slices.Sorted(maps.Keys(f.holds[id]))
	var vacant []store.View
	for _, g := range groups {
		vacant = append(vacant, f.views[g])
	}
	f.mu.Unlock()
	if inOrder && !f.s.cfg.plant.Has(plant.WatchForgetsDeath) {
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

// resolveTries bounds how often the holder of a group may end while the group is read. In a busy
// group that happens in every other read.
const resolveTries = 100

// resolve reads groups and shows them as they are.
func (f *feed) resolve(ctx context.Context, groups []string) error {
	groups = slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return !f.watched(g) })
	for range resolveTries {
		var again []string
		for part := range slices.Chunk(groups, max(1, f.s.caps.Keys/3)) {
			views, _, err := f.s.viewsAndMeta(ctx, part, false)
			if err != nil {
				if errors.Is(err, store.ErrNewer) {
					continue
				}
				return err
			}
			for _, v := range views {
				if !f.set(v) {
					again = append(again, v.Group)
				}
			}
		}
		if groups = again; len(groups) == 0 {
			return nil
		}
	}
	return errHands
}

// look reads sessions: one that is gone has died, and what it held is looked at.
func (f *feed) look(ctx context.Context, ids []store.SessionID) error {
	for part := range slices.Chunk(ids, max(1, f.s.caps.Keys/2)) {
		var keys []string
		known := map[store.SessionID]bool{} // to have lived, before the read
		f.mu.Lock()
		for _, id := range part {
			keys = append(keys, beatKey(id), sessionKey(id)) // in this order: a session is described before it begins
			_, known[id] = f.sessions[id]
		}
		f.mu.Unlock()
		items, err := f.s.read(ctx, keys...)
		if err != nil {
			return err
		}
		for i, id := range part {
			beat, session := items[2*i], items[2*i+1]
			f.s.sawSession(id, beat, session)
			if beat.Version != 0 {
				f.described(session)
				continue
			}
			if !known[id] && session.Version != 0 && !f.over(id) {
				continue // it is being opened: Open writes the beat last
			}
			groups := f.died(id, false)
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
	shared := f.done > arrived
	f.mu.Unlock()
	if shared {
		return nil
	}
	return f.refresh(ctx)
}

// refresh reads everything. Records come before the sessions: a holder that is missing
// then has died.
func (f *feed) refresh(ctx context.Context) error {
	f.mu.Lock()
	f.begun++
	mine := f.begun
	f.mu.Unlock()
	records, err := f.s.listRecords(ctx)
	if err != nil {
		return err
	}
	lives, err := f.s.allSessions(ctx)
	if err != nil {
		return err
	}
	if err := f.look(ctx, f.replace(lives, mine)); err != nil {
		return err
	}
	var moved []string
	unclear := map[string]uint64{}
	for _, i := range records {
		r, err := f.s.parsedRecords.get(i)
		_, alive := lives[r.Holder]
		switch {
		case !f.watched(r.Group):
		case err != nil:
			f.set(store.View{Record: r.Record, State: tenure.Led})
		case alive || r.Holder == "":
			if !f.set(f.s.view(r.Record, alive)) {
				moved = append(moved, r.Group)
			}
		default:
			unclear[r.Group] = r.Version
		}
	}
	records = nil
	if len(unclear) > 0 {
		// Their holders have died. Those that were not handed over before are vacant.
		if records, err = f.s.listRecords(ctx); err != nil {
			return err
		}
	}
	for _, i := range records {
		r, err := f.s.parsedRecords.get(i)
		switch was, ok := unclear[r.Group]; {
		case !ok || err != nil:
		case r.Version == was:
			f.set(f.s.view(r.Record, false))
		default:
			moved = append(moved, r.Group)
		}
	}
	if err := f.resolve(ctx, moved); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = max(f.done, mine)
	return nil
}

// showFirst gives the watches that began the loop their snapshot.
func (f *feed) showFirst() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for sub := range f.subs {
		if sub.first && !sub.ready {
			sub.show()
		}
	}
}

// replace puts the sessions that a refresh has listed into the picture, unless a later refresh
// was faster. It returns those of the picture that are not listed: they have died, or were
// opened since.
func (f *feed) replace(lives map[store.SessionID]described, mine uint64) (unlisted []store.SessionID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told > mine {
		return nil
	}
	f.told = mine
	for _, id := range slices.Sorted(maps.Keys(lives)) {
		f.began(lives[id])
	}
	for _, id := range slices.Sorted(maps.Keys(f.sessions)) {
		if _, listed := lives[id]; !listed {
			unlisted = append(unlisted, id)
		}
	}
	return unlisted
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
	var oldest store.Session
	for _, d := range f.sessions {
		if oldest.ID == "" || d.Opened < oldest.Opened {
			oldest = d.Session
		}
	}
	due := now.Sub(f.swept) >= sweepEvery && oldest.ID != "" && f.s.mine(oldest.ID)
	if due {
		f.swept = now
	}
	f.mu.Unlock()
	if !due {
		return nil
	}
	var keys []string
	for _, prefix := range []string{requestsAt, sessionAt} {
		items, err := f.s.list(ctx, prefix)
		if err != nil {
			return err
		}
		for _, i := range items {
			keys = append(keys, i.Key)
		}
	}
	records, err := f.s.listRecords(ctx)
	if err != nil {
		return err
	}
	lives, err := f.s.list(ctx, beatAt)
	if err != nil {
		return err
	}
	needed := map[string]bool{} // ids
	for _, i := range lives {
		if needed[i.Key[len(beatAt):]] = i.Version != 0; i.Version == 0 {
			keys = append(keys, i.Key)
		}
	}
	for _, i := range records {
		r, _ := f.s.parsedRecords.get(i)
		needed[string(r.Holder)] = true // its key tells why the term ended
	}
	for _, key := range f.old(now, slices.DeleteFunc(keys, func(key string) bool {
		_, id, _ := strings.Cut(key, "/")
		return needed[id]
	})) {
		if _, err := f.s.commit(ctx, Txn{Then: []Write{{Key: key, Quiet: true}}}); err != nil {
			return err
		}
	}
	return nil
}

// old returns those of the keys that have been left behind for long.
func (f *feed) old(now clock.Instant, keys []string) (old []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := map[string]clock.Instant{}
	for _, key := range keys {
		first, ok := f.corpses[key]
		if !ok {
			first = now
		}
		if left[key] = first; now.Sub(first) >= keepDead {
			old = append(old, key)
		}
	}
	f.corpses = left
	return old
}
