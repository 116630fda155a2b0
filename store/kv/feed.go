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

// feed keeps one cache of all groups and living sessions for all watches of a store.
//
// Changes may arrive in any order and more than once. Versions only grow and a session
// dies only once, so feed can always tell which of two views is newer.
type feed struct {
	s *Store

	mu       sync.Mutex
	subs     map[*Sub]struct{}
	cancel   context.CancelFunc // of the loop that is running; nil: none
	loop     uint64             // number of the newest loop
	views    map[string]store.View
	holds    map[store.SessionID]map[string]bool
	sessions map[store.SessionID]described
	before   knowledge // what the store knew when the loop started

	startedRefresh uint64        // number of the newest refresh that was started
	sessionRefresh uint64        // number of the newest whose sessions are in the cache
	fullRefresh    uint64        // number of the newest that is complete
	refreshLock    chan struct{} // held during a shared refresh

	swept    clock.Instant
	deadKeys map[string]clock.Instant // keys of dead sessions, and when they were first seen
}

// round is the feed as one loop sees it. A loop that has ended changes the cache no more: what it
// read may be from before a loss of data.
type round struct {
	*feed
	loop uint64
}

// over reports whether the loop has ended. f.mu is held.
func (f round) over() bool { return f.loop != f.feed.loop || f.cancel == nil }

func newFeed(s *Store) *feed {
	f := &feed{s: s, subs: map[*Sub]struct{}{}, deadKeys: map[string]clock.Instant{}, refreshLock: make(chan struct{}, 1)}
	f.reset()
	return f
}

func (f *feed) reset() {
	f.views = map[string]store.View{}
	f.holds = map[store.SessionID]map[string]bool{}
	f.sessions = map[store.SessionID]described{}
}

// Sub is one watch. It queues updates until Take, at most one for each group and session. A
// session that began and ended between two calls of Take is left out.
type Sub struct {
	feed     *feed
	scope    store.Scope
	wake     func()
	groups   []string
	dirty    map[string]bool
	sessions []store.Update
	begins   map[store.SessionID]bool // sessions whose beginning is queued
	synced   bool                     // Take has returned Synced
	first    bool                     // this watch started the loop: the first refresh is its snapshot
	ready    bool                     // the snapshot is complete
	err      error
}

// Subscribe begins a watch. It calls wake whenever Take has something to return, for the
// first time when the snapshot is complete. wake must not block.
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
	if err := f.sharedRefresh(ctx); err != nil {
		sub.Close()
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sub.snapshot()
	return sub, sub.err
}

// snapshot queues the whole cache. f.mu is held.
func (sub *Sub) snapshot() {
	f := sub.feed
	sub.ready = true
	for _, id := range slices.Sorted(maps.Keys(f.sessions)) {
		sub.sessionChanged(store.Update{Kind: store.SessionBegan, Session: f.sessions[id].Session})
	}
	for _, g := range slices.Sorted(maps.Keys(f.views)) {
		sub.groupChanged(g)
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

// groupChanged queues a group. f.mu is held.
func (sub *Sub) groupChanged(group string) {
	if sub.ready && !sub.dirty[group] && sub.scope.Covers(group) {
		sub.dirty[group] = true
		sub.groups = append(sub.groups, group)
		sub.wake()
	}
}

// sessionChanged queues the beginning or the end of a session. f.mu is held.
func (sub *Sub) sessionChanged(u store.Update) {
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

// Take returns the queued updates, with the current view of each group. An error is final.
func (sub *Sub) Take() ([]store.Update, error) {
	f := sub.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.outdated(); err != nil {
		round{f, f.loop}.end(err)
	}
	if !sub.ready || sub.err != nil {
		return nil, sub.err // queued updates may no longer be true
	}
	out := sub.sessions
	for _, g := range sub.groups {
		v, ok := f.views[g]
		if !ok {
			v = retired(g)
		}
		out = append(out, store.Update{Kind: store.GroupChanged, View: v})
	}
	sub.sessions, sub.groups = nil, nil
	clear(sub.dirty)
	clear(sub.begins)
	if !sub.synced {
		sub.synced = true
		out = append(out, store.Update{Kind: store.Synced})
	}
	return out, nil
}

// start begins the loop, unless the store is closed. f.mu is held.
func (f *feed) start() bool {
	ctx, cancel := context.WithCancel(f.s.ctx)
	loop := f.loop + 1
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if !f.s.start(func() { round{f, loop}.run(ctx) }) {
		cancel()
		return false
	}
	f.cancel, f.loop, f.before = cancel, loop, f.s.knowledge
	return true
}

// end ends all watches of the loop, unless it has ended. f.mu is held.
func (f round) end(err error) {
	if f.over() {
		return // there is no watch left, or another loop has started
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

// outdated returns an error if what the watches yielded may no longer be true: since the loop
// started the engine lost data, or an operator raised the epoch, which is done after a loss.
// f.mu is held.
func (f *feed) outdated() error {
	f.s.mu.Lock()
	now := f.s.knowledge
	f.s.mu.Unlock()
	if f.before.lost != "" && now.raises == f.before.raises+1 {
		f.before = knowledge{raises: now.raises} // the loop started after that loss
	}
	switch {
	case now.raises != f.before.raises:
		return fmt.Errorf("kv: watch: the epoch was raised; watch again: %w", store.ErrRewound)
	case now.lost != "" && now.lost != f.before.lost:
		return fmt.Errorf("kv: watch: %s: %w", now.lost, store.ErrRewound)
	}
	return nil
}

// sweepEvery is the interval between two sweeps. keepDead is how long the keys of dead
// sessions are kept, so that every process can read why a session ended.
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

func (f round) run(ctx context.Context) {
	err := errors.New("kv: the engine's watch ended")
	for c, e := range f.s.driver.Watch(ctx, f.tick(), recordAt, sessionAt, beatAt) {
		if e == nil {
			e = f.take(ctx, c)
		}
		if e != nil {
			err = e
			break
		}
		if c.Key == "" && !c.Tick {
			f.firstSnapshots() // only after the check for lost data
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.s.ctx.Err() != nil {
		err = ErrClosed
	} else if lost := f.outdated(); lost != nil {
		err = lost
	}
	f.end(err)
}

// take applies one change, and records in the engine that it lost data if the change shows it.
func (f round) take(ctx context.Context, c Change) error {
	err := f.check()
	if err == nil {
		err = f.change(ctx, c)
	}
	if err == nil {
		err = f.s.report(ctx)
	}
	if err == nil {
		err = f.check()
	}
	return err
}

func (f *feed) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.outdated()
}

func (f round) change(ctx context.Context, c Change) error {
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
		if f.s.markEnded(beat); beat[0].Version == 0 {
			f.died(store.SessionID(id), true)
		}
		return nil
	case c.Item != nil:
		f.described(*c.Item)
		return nil
	case isRecord:
		return f.resolve(ctx, []string{group})
	case isBeat:
		return f.readSessions(ctx, []store.SessionID{store.SessionID(id)})
	default:
		return f.readSessions(ctx, []store.SessionID{store.SessionID(strings.TrimPrefix(c.Key, sessionAt))})
	}
}

// record applies a record from an ordered watch. The holder's session began before the grant,
// so an unknown holder has probably died: read the group.
func (f round) record(ctx context.Context, i Item) error {
	r, err := f.s.parsedRecords.get(i)
	if i.Version != 0 && err != nil {
		// A newer program wrote the record. Show the group as led.
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
	switch {
	case lost && floorKey(r.Group) != "":
		return f.resolve(ctx, []string{r.Group})
	case lost:
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

// described applies the description of a session, which also says why it ended.
func (f round) described(i Item) {
	if i.Version == 0 {
		return // the session ends when its beat is deleted, not now
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

// newer reports whether view a replaces view b: versions grow, and a holder dies once.
func newer(a, b store.View) bool {
	return a.Version > b.Version || a.Version == b.Version && a.State == tenure.Vacant && b.State == tenure.Led
}

// set caches a view, unless a newer one is cached. It returns false if the view names a holder
// that has died since: the caller must read the group again.
func (f round) set(v store.View) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over() {
		return true
	}
	if v.State == tenure.Led && f.hasEnded(v.Holder) {
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
		sub.groupChanged(v.Group)
	}
	return true
}

// retired is the view of a group whose record was removed.
func retired(group string) store.View {
	return store.View{Record: store.Record{Group: group}, State: tenure.Vacant}
}

// retire drops the view of a group whose record was missing after the view had been shown.
func (f round) retire(shown store.View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over() || shown.Version == 0 || f.views[shown.Group].Version != shown.Version {
		return
	}
	delete(f.views, shown.Group)
	if delete(f.holds[shown.Holder], shown.Group); len(f.holds[shown.Holder]) == 0 {
		delete(f.holds, shown.Holder)
	}
	for sub := range f.subs {
		sub.groupChanged(shown.Group)
	}
}

// hasEnded reports whether the session is known to have ended.
func (f *feed) hasEnded(id store.SessionID) bool {
	_, ended := f.s.ended.get(id)
	return ended
}

// began caches a session. f.mu is held.
func (f round) began(d described) {
	if f.over() || f.hasEnded(d.ID) {
		return
	}
	if _, ok := f.sessions[d.ID]; ok {
		return
	}
	f.sessions[d.ID] = d
	f.sessionChanged(store.Update{Kind: store.SessionBegan, Session: d.Session})
}

// sessionChanged queues the update in every watch of a group that the session may lead. f.mu is held.
func (f *feed) sessionChanged(u store.Update) {
	for sub := range f.subs {
		sub.sessionChanged(u)
	}
}

// died removes a session and returns the groups that it held. If the watch is ordered, these
// groups are vacant. Otherwise the session may have released them before it died.
func (f round) died(id store.SessionID, inOrder bool) []string {
	why := f.s.reason(id)
	f.s.noteEnd(id, why)
	f.mu.Lock()
	if d, ok := f.sessions[id]; ok && !f.over() {
		delete(f.sessions, id)
		f.sessionChanged(store.Update{Kind: store.SessionEnded, Session: d.Session, Reason: why})
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

// watched reports whether any watch covers the group. Other groups are not read.
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

// resolve reads the watched ones of the groups and caches their views.
func (f round) resolve(ctx context.Context, groups []string) error {
	groups = slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return !f.watched(g) })
	for range resolveTries {
		var again []string
		for part := range slices.Chunk(groups, max(1, f.s.caps.Keys/3)) {
			f.mu.Lock()
			shown := map[string]store.View{}
			for _, g := range part {
				shown[g] = f.views[g]
			}
			f.mu.Unlock()
			views, _, err := f.s.viewsAndMeta(ctx, part, false)
			if err != nil {
				if errors.Is(err, store.ErrNewer) {
					continue
				}
				return err
			}
			for _, v := range views {
				if v.Version == 0 && floorKey(v.Group) != "" {
					f.retire(shown[v.Group])
				} else if !f.set(v) {
					again = append(again, v.Group)
				}
			}
		}
		if groups = again; len(groups) == 0 {
			return nil
		}
	}
	return errUnstable
}

// readSessions reads sessions. For each one that has died it reads the groups that it held.
func (f round) readSessions(ctx context.Context, ids []store.SessionID) error {
	for part := range slices.Chunk(ids, max(1, f.s.caps.Keys/2)) {
		var keys []string
		known := map[store.SessionID]bool{} // sessions that were cached before the read
		f.mu.Lock()
		for _, id := range part {
			keys = append(keys, beatKey(id), sessionKey(id)) // in this order: the description is written before the beat
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
			if !known[id] && session.Version != 0 && !f.hasEnded(id) {
				continue // the session is being opened: its beat is written last
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

// sharedRefresh returns after a refresh that started after the call. Concurrent callers share
// one refresh.
func (f *feed) sharedRefresh(ctx context.Context) error {
	f.mu.Lock()
	arrived, now := f.startedRefresh, round{f, f.loop}
	f.mu.Unlock()
	select {
	case f.refreshLock <- struct{}{}:
		defer func() { <-f.refreshLock }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	f.mu.Lock()
	shared := f.fullRefresh > arrived
	f.mu.Unlock()
	if shared {
		return nil
	}
	return now.refresh(ctx)
}

// refresh reads everything. It lists the records before the sessions, so a holder that is
// not in the second list has died.
func (f round) refresh(ctx context.Context) error {
	f.mu.Lock()
	f.startedRefresh++
	number := f.startedRefresh
	shown := maps.Clone(f.views)
	f.mu.Unlock()
	records, err := f.s.listRecords(ctx)
	if err != nil {
		return err
	}
	if err := f.wentBack(shown, records); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.end(err)
		return err
	}
	living, err := f.s.allSessions(ctx)
	if err != nil {
		return err
	}
	if err := f.readSessions(ctx, f.replace(living, number)); err != nil {
		return err
	}
	var moved []string
	unclear := map[string]uint64{}
	for _, i := range records {
		r, err := f.s.parsedRecords.get(i)
		_, alive := living[r.Holder]
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
		// Their holders have died. A group whose record is still the same is vacant.
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
	f.fullRefresh = max(f.fullRefresh, number)
	return nil
}

// wentBack returns an error if a record was shown that is missing or older in a later listing.
func (f round) wentBack(shown map[string]store.View, records []Item) error {
	for _, i := range records {
		if r, err := f.s.parsedRecords.get(i); err != nil || r.Version >= shown[r.Group].Version {
			delete(shown, r.Group)
		}
	}
	for g, v := range shown {
		if floorKey(g) != "" {
			f.retire(v)
			continue
		}
		return fmt.Errorf("kv: watch: the record of group %q (token %d) was deleted or went back: %w", g, v.Token, store.ErrRewound)
	}
	return nil
}

// firstSnapshots gives a snapshot to the watches that started the loop.
func (f *feed) firstSnapshots() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for sub := range f.subs {
		if sub.first && !sub.ready {
			sub.snapshot()
		}
	}
}

// replace caches the sessions that a refresh has listed, unless a later refresh was faster. It
// returns the cached sessions that are not listed: they died, or were opened after the listing.
func (f round) replace(living map[store.SessionID]described, number uint64) (unlisted []store.SessionID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over() || f.sessionRefresh > number {
		return nil
	}
	f.sessionRefresh = number
	for _, id := range slices.Sorted(maps.Keys(living)) {
		f.began(living[id])
	}
	for _, id := range slices.Sorted(maps.Keys(f.sessions)) {
		if _, listed := living[id]; !listed {
			unlisted = append(unlisted, id)
		}
	}
	return unlisted
}

// ticked runs at every tick: it observes sessions and sweeps.
func (f round) ticked(ctx context.Context) error {
	if f.s.leaser == nil {
		f.mu.Lock()
		holders := slices.Sorted(maps.Keys(f.holds))
		leads := slices.ContainsFunc(holders, f.s.openedHere)
		if leads {
			holders = slices.Sorted(maps.Keys(f.sessions)) // a process that leads also observes the candidates
		}
		f.mu.Unlock()
		if err := f.readSessions(ctx, f.s.due(holders)); err != nil {
			return err
		}
		silent := slices.Sorted(maps.Keys(f.s.silent()))
		if err := f.s.expire(ctx); err != nil {
			return err
		}
		if err := f.readSessions(ctx, silent); err != nil {
			return err
		}
	}
	return f.sweep(ctx)
}

// sweep deletes old keys of dead sessions, in the process that has the oldest living session.
func (f *feed) sweep(ctx context.Context) error {
	now := f.s.cfg.Clock.Now()
	f.mu.Lock()
	var oldest store.Session
	for _, d := range f.sessions {
		if oldest.ID == "" || d.Opened < oldest.Opened {
			oldest = d.Session
		}
	}
	due := now.Sub(f.swept) >= sweepEvery && oldest.ID != "" && f.s.openedHere(oldest.ID)
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
	beats, err := f.s.list(ctx, beatAt)
	if err != nil {
		return err
	}
	needed := map[string]bool{} // ids
	for _, i := range beats {
		if needed[i.Key[len(beatAt):]] = i.Version != 0; i.Version == 0 {
			keys = append(keys, i.Key)
		}
	}
	for _, i := range records {
		r, _ := f.s.parsedRecords.get(i)
		needed[string(r.Holder)] = true // its key says why the term ended
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

// old returns those of the keys that were first seen keepDead ago or earlier.
func (f *feed) old(now clock.Instant, keys []string) (old []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := map[string]clock.Instant{}
	for _, key := range keys {
		first, ok := f.deadKeys[key]
		if !ok {
			first = now
		}
		if left[key] = first; now.Sub(first) >= keepDead {
			old = append(old, key)
		}
	}
	f.deadKeys = left
	return old
}
