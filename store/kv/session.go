package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

func dead(id store.SessionID) error {
	return fmt.Errorf("kv: session %q: %w", id, store.ErrSessionDead)
}

// Open implements store.Store.
func (s *Store) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	return s.begin(ctx, nil, c, ttl, o)
}

// begin is Open with further conditions.
func (s *Store) begin(ctx context.Context, rules []Cond, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	if err := errors.Join(store.CheckCandidate(c), o.Validate(), store.CheckTTL(s.Caps(), ttl)); err != nil {
		return store.Session{}, err
	}
	if _, err := s.grantMeta(ctx); err != nil {
		return store.Session{}, err
	}
	if s.cfg.plant.Has(plant.AdoptByNode) && o.Instance != "" {
		o.Instance = "whichever process"
	}
	c.Metadata = maps.Clone(c.Metadata)
	d := described{attempt: o.AttemptDigest(c.ID), Session: store.Session{
		Candidate: c, Instance: store.InstanceDigest(o.Instance), Scope: slices.Clone(o.Scope), TTL: max(ttl, s.caps.MinTTL),
		Fenced: o.Fenced, Successor: o.Successor, Deployment: s.deployment(),
	}}
	for range 3 {
		session, err := s.open(ctx, rules, d, o, ttl)
		if !errors.Is(err, errReplaced) {
			return session, err
		}
	}
	return store.Session{}, errReplaced
}

// errReplaced means that the session that was found or made has died. A new one needs another id.
var errReplaced = errors.New("kv: the session of the attempt ended during the call")

// opening is the id of a session that is being opened. Retries of an Open with an unknown outcome
// use the same id: otherwise each retry would leave a lease behind until it expires.
//
// Two sessions must never have the same id. So a lease is granted only while no session can
// exist under the id (ttl is 0), and the id is dropped before a sweep can delete the keys of a
// session that ended under it.
type opening struct {
	id    string
	ttl   time.Duration // granted; 0: not known to be granted
	begun clock.Instant
	// shared: another call got this id too, and may have opened a session with it.
	shared bool
}

type openingKey struct {
	attempt string
	ttl     time.Duration // requested
}

// open makes the attempt's session, or finds it.
func (s *Store) open(ctx context.Context, rules []Cond, d described, o store.OpenOptions, ttl time.Duration) (store.Session, error) {
	key := openingKey{d.attempt, ttl}
	l, retried, err := s.grant(ctx, key, d.TTL)
	if err != nil {
		return store.Session{}, err
	}
	d.ID, d.TTL = store.SessionID(l.id), l.ttl
	session, err := s.openAs(ctx, rules, d, o, key, retried)
	if err == nil || store.Definite(err) || errors.Is(err, errReplaced) { // otherwise a retry uses the same id
		s.openings.drop(key)
	}
	return session, err
}

// grant returns an id for a session, with a lease if the engine has leases. The same attempt
// gets the same id until its session is open. retried means that an earlier call got the id.
func (s *Store) grant(ctx context.Context, key openingKey, ttl time.Duration) (l opening, retried bool, err error) {
	now := s.cfg.Clock.Now()
	s.mu.Lock()
	l, retried = s.openings.get(key)
	if !retried || key.attempt == "" || now.Sub(l.begun) >= keepDead/2 {
		l, retried = opening{id: s.cfg.random(), begun: now}, false
		if s.leaser == nil {
			l.ttl = ttl
		}
	}
	l.shared = retried
	s.keepOpening(key, l)
	s.mu.Unlock()
	if l.ttl != 0 {
		return l, retried, nil
	}
	want := l.id
	id, granted, err := s.leaser.Grant(ctx, l.id, ttl)
	if err != nil {
		if key.attempt == "" {
			s.revoke(store.SessionID(l.id)) // there is no retry without an attempt
		}
		return l, retried, err
	}
	l.id, l.ttl = id, granted
	s.mu.Lock()
	if now, ok := s.openings.get(key); ok && now.id == want {
		l.shared = now.shared
		s.keepOpening(key, l)
	}
	s.mu.Unlock()
	return l, retried, nil
}

// keepOpening keeps the id for retries. s.mu is held.
func (s *Store) keepOpening(key openingKey, l opening) {
	if key.attempt != "" {
		s.openings.put(key, l)
	}
}

// openAs opens the session under its id, or finds the attempt's living session.
func (s *Store) openAs(ctx context.Context, rules []Cond, d described, o store.OpenOptions, opening openingKey, retried bool) (store.Session, error) {
	lid, key := s.leaseOf(d.ID), attemptAt+d.attempt
	p := plan{
		// A session that ended under this id leaves its key behind.
		guard:  append([]Cond{{sessionKey(d.ID), 0}}, rules...),
		first:  []Write{{Key: sessionKey(d.ID), Value: encodeSession(d), Lease: lid}},
		decide: []step{{Cond{beatKey(d.ID), 0}, Write{Key: beatKey(d.ID), Value: alive, Lease: lid}}},
		read:   []string{sessionKey(d.ID)},
		show:   []string{rulesKey},
	}
	if d.attempt != "" {
		if s.caps.Keys == 1 { // otherwise the transaction compares the key
			items, err := s.read(ctx, key)
			if err != nil || items[0].Version != 0 {
				return s.found(ctx, items, d, o, opening, err)
			}
		}
		// With one key per transaction, the attempt's key is written before the session begins.
		p.decide = slices.Insert(p.decide, 0, step{Cond{key, 0}, Write{Key: key, Value: []byte(d.ID), Lease: lid}})
		p.show = []string{key, rulesKey}
	}
	r, err := s.run(ctx, p)
	if err != nil && d.attempt == "" {
		s.revoke(d.ID) // there is no retry without an attempt
	}
	switch {
	case err != nil:
		return store.Session{}, err
	case !r.OK && d.attempt != "" && (r.Items[1].Version != 0 || !p.outdated(r.Items)):
		return s.found(ctx, r.Items[1:2], d, o, opening, nil)
	case !r.OK && p.outdated(r.Items):
		s.abandon(opening, d.ID)
		return store.Session{}, store.ErrRules
	case !r.OK:
		// The driver retried a commit that had succeeded, or the lease ended.
		return s.renewFound(ctx, d.ID, d, o)
	case r.Items[0].Version == 0:
		return store.Session{}, errReplaced
	}
	d.Opened = r.Items[0].Created
	s.sessions.put(d.ID, d)
	s.own.put(d.ID, true)
	s.mu.Lock()
	err = s.engineFailed(r)
	s.mu.Unlock()
	if err != nil || !retried {
		return d.Session, err
	}
	return s.renewFound(ctx, d.ID, d, o) // a part of its TTL may have passed
}

// found returns the session that the attempt's key names.
func (s *Store) found(ctx context.Context, attempt []Item, d described, o store.OpenOptions, opening openingKey, err error) (store.Session, error) {
	if err != nil {
		return store.Session{}, err
	}
	if attempt[0].Version == 0 {
		return store.Session{}, errReplaced // the lease or the session has ended
	}
	id := store.SessionID(attempt[0].Value)
	session, err := s.renewFound(ctx, id, d, o)
	if errors.Is(err, errReplaced) {
		if begun, err := s.prevent(ctx, id); err != nil || begun {
			return store.Session{}, cmp.Or(err, errReplaced)
		}
		// Delete the attempt's key, so that the next try can use a new id.
		if _, err := s.commit(ctx, Txn{If: []Cond{{attempt[0].Key, attempt[0].Version}}, Then: []Write{{Key: attempt[0].Key}}}); err != nil {
			return store.Session{}, err
		}
	}
	if id != d.ID {
		s.abandon(opening, d.ID)
	}
	return session, err
}

// prevent makes sure that a session which has not begun never begins. With one key per
// transaction this is necessary, because another try may be about to write the beat. It reports
// whether the session has begun meanwhile.
func (s *Store) prevent(ctx context.Context, id store.SessionID) (begun bool, err error) {
	if s.caps.Keys > 1 {
		return false, nil
	}
	items, err := s.read(ctx, sessionKey(id), beatKey(id))
	if err != nil {
		return false, err
	}
	session, beat := items[0], items[1]
	if session.Version == 0 || beat.Version == 0 { // after a loss of data there may be a beat without a session
		end := Write{Key: beat.Key, Value: encode(beatJSON{Ended: store.Closed})}
		r, err := s.commit(ctx, Txn{If: []Cond{{beat.Key, beat.Version}}, Then: []Write{end}, Else: []string{beat.Key}})
		return err == nil && !r.OK && r.Items[0].Version != 0, err
	}
	return true, nil
}

// abandon revokes the lease of an opening, unless another call uses it.
func (s *Store) abandon(opening openingKey, id store.SessionID) {
	s.mu.Lock()
	l, ok := s.openings.get(opening)
	alone := ok && l.id == string(id) && !l.shared
	if alone {
		s.openings.drop(opening) // no later call gets this id
	}
	s.mu.Unlock()
	if alone {
		s.revoke(id)
	}
}

// leaseOf is the lease of a session's keys, or "" if the engine has no leases.
func (s *Store) leaseOf(id store.SessionID) string {
	if s.leaser == nil {
		return ""
	}
	return string(id)
}

// renewFound checks that the attempt's session is the one that the caller wants, and renews it,
// because the caller counts its TTL from the beginning of this call.
func (s *Store) renewFound(ctx context.Context, id store.SessionID, d described, o store.OpenOptions) (store.Session, error) {
	session, err := s.Session(ctx, id)
	if err == nil {
		if err := session.SameOpening(d.Candidate, o); err != nil {
			return store.Session{}, err
		}
		if s.cfg.plant.Has(plant.AdoptUnrenewed) {
			return session, nil
		}
		var beat store.Beat
		beat, err = s.KeepAlive(ctx, id)
		session.TTL = beat.TTL
	}
	switch {
	case errors.Is(err, store.ErrSessionDead):
		return store.Session{}, errReplaced
	case err != nil:
		return store.Session{}, err
	}
	s.own.put(id, true)
	return session, nil
}

// revoke ends an unused lease in the background. If that fails, the lease expires.
func (s *Store) revoke(id store.SessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaser == nil || s.revoking == maxRevoking {
		return
	}
	started := s.start(func() {
		ctx, cancel := context.WithTimeout(s.ctx, revokeTimeout)
		defer cancel()
		_ = s.leaser.Revoke(ctx, string(id))
		s.mu.Lock()
		s.revoking--
		s.mu.Unlock()
	})
	if started {
		s.revoking++
	}
}

// maxRevoking bounds the leases that are being revoked at once.
const maxRevoking = 64

const revokeTimeout = 5 * time.Second

// Session implements store.Store.
func (s *Store) Session(ctx context.Context, id store.SessionID) (store.Session, error) {
	items, err := s.read(ctx, sessionKey(id), beatKey(id))
	if err != nil {
		return store.Session{}, err
	}
	if items[0].Version == 0 || items[1].Version == 0 {
		return store.Session{}, dead(id)
	}
	d, err := s.parsedSessions.get(items[0])
	if err != nil {
		return store.Session{}, err
	}
	if d.ended != "" {
		return store.Session{}, dead(id)
	}
	s.sessions.put(id, d)
	s.observe(id, items[1].Version, d.TTL)
	return d.Session, nil
}

// Describe implements store.Ruled.
func (s *Store) Describe(ctx context.Context, id store.SessionID) (store.Session, error) {
	d, err := s.describe(ctx, id)
	return d.Session, err
}

// describe returns a session as it was opened. It may be dead by now.
func (s *Store) describe(ctx context.Context, id store.SessionID) (described, error) {
	if d, ok := s.sessions.get(id); ok {
		return d, nil
	}
	if _, err := s.Session(ctx, id); err != nil {
		return described{}, err
	}
	d, _ := s.sessions.get(id)
	return d, nil
}

// KeepAlive implements store.Store.
func (s *Store) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	for _, g := range groups {
		if err := store.CheckGroup(g); err != nil {
			return store.Beat{}, err
		}
	}
	if len(groups) > s.batch() {
		return store.Beat{}, &store.ArgumentError{Field: "groups", Value: len(groups), Rule: fmt.Sprintf("at most %d in one keep-alive", s.batch())}
	}
	reads := []string{beatKey(id), metaKey, requestsKey(id)}
	holders := s.holders(groups)
	for _, h := range holders {
		reads = append(reads, beatKey(h))
	}
	for _, g := range groups {
		reads = append(reads, recordKey(g))
	}
	ttl, items, err := s.renew(ctx, id, reads)
	if errors.Is(err, store.ErrSessionDead) && s.cfg.plant.Has(plant.KeepAliveRevives) {
		s.revive(ctx, id)
		ttl, items, err = s.renew(ctx, id, reads)
	}
	if err != nil {
		return store.Beat{}, err
	}
	if err := s.checkMeta(ctx, items[1]); err != nil && !s.cfg.plant.Has(plant.BeatRewound) {
		return store.Beat{}, err
	}
	beat := store.Beat{TTL: ttl, Requests: s.waiting(id, items[2])}
	beats, records := items[3:3+len(holders)], items[3+len(holders):]
	for _, i := range records {
		r, _ := s.parsedRecords.get(i) // of a newer format: only group and version
		if h := slices.Index(holders, r.Holder); h >= 0 && beats[h].Version == 0 {
			// The beat was gone before the record was read: the holder is dead.
			r.Record = s.view(r.Record, false).Record
		}
		beat.Records = append(beat.Records, r.Record)
	}
	return beat, nil
}

// holders returns the sessions that hold the groups according to the cache.
func (s *Store) holders(groups []string) []store.SessionID {
	var holders []store.SessionID
	for _, g := range groups {
		if r, ok := s.records.get(g); ok && r.Holder != "" && !slices.Contains(holders, r.Holder) {
			holders = append(holders, r.Holder)
		}
	}
	return holders
}

// revive creates a dead session again. It is a planted bug, see plant.KeepAliveRevives.
func (s *Store) revive(ctx context.Context, id store.SessionID) {
	d, ok := s.sessions.get(id)
	if !ok {
		return
	}
	if s.leaser != nil {
		_, _, _ = s.leaser.Grant(ctx, string(id), d.TTL)
	}
	for key, value := range map[string][]byte{sessionKey(id): encodeSession(d), beatKey(id): alive} {
		_, _ = s.commit(ctx, Txn{Then: []Write{{Key: key, Value: value, Lease: s.leaseOf(id)}}})
	}
}

// renew extends the session, and reads keys at a moment when it was alive.
func (s *Store) renew(ctx context.Context, id store.SessionID, reads []string) (time.Duration, []Item, error) {
	if s.leaser != nil {
		if s.ctx.Err() != nil {
			return 0, nil, ErrClosed
		}
		base := s.baseline(reads)
		ttl, r, err := s.leaser.Renew(ctx, string(id), reads)
		if err == nil {
			s.markEnded(r.Items)
			s.checkAnswer(r, base)
		}
		switch {
		case errors.Is(err, ErrNoLease):
			return 0, nil, dead(id)
		case err != nil:
			return 0, nil, err
		case r.Items[0].Version == 0:
			return 0, nil, dead(id) // closed, but its lease is not revoked yet
		}
		return ttl, r.Items, nil
	}
	d, err := s.describe(ctx, id)
	if err != nil {
		return 0, nil, err
	}
	t := Txn{If: []Cond{{beatKey(id), Any}}, Then: []Write{{Key: beatKey(id), Value: alive, Quiet: true}}, Read: reads}
	if s.caps.Keys == 1 {
		// Read first: if a record names the session and the session is alive afterwards, it led.
		items, err := s.read(ctx, reads...)
		if err == nil {
			_, err = s.rewrite(ctx, t.Then[0], items[0].Version)
		}
		return d.TTL, items, err
	}
	r, err := s.commit(ctx, t)
	switch {
	case err != nil:
		return 0, nil, err
	case !r.OK:
		return 0, nil, dead(id)
	}
	return d.TTL, r.Items, nil
}

// rewrite replaces the beat of a living session, from the version that was read or a later one,
// if a transaction has only one key. It returns the new version.
func (s *Store) rewrite(ctx context.Context, w Write, version uint64) (uint64, error) {
	for range beatTries {
		if version == 0 {
			return 0, dead(store.SessionID(strings.TrimPrefix(w.Key, beatAt)))
		}
		r, err := s.commit(ctx, Txn{If: []Cond{{w.Key, version}}, Then: []Write{w}, Else: []string{w.Key}})
		switch {
		case err != nil:
			return 0, err
		case r.OK:
			return r.Versions[0], nil
		}
		version = r.Items[0].Version
	}
	return 0, errBeat
}

// beatTries bounds how often a session may be renewed while its beat is written.
const beatTries = 10

// End implements store.Store.
func (s *Store) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	if len(seen) > 0 {
		if err := store.CheckBatch(s.Caps(), seen); err != nil {
			return err
		}
	}
	d, err := s.describe(ctx, id)
	switch {
	case errors.Is(err, store.ErrSessionDead):
		return nil
	case err != nil:
		return err
	case why == store.Suspected && !d.Fenced && !s.cfg.plant.Has(plant.HintUnfenced):
		return &store.ArgumentError{Field: "reason", Value: why, Rule: "only sessions that were opened as fenced end on suspicion"}
	}
	for range beatTries {
		beat := uint64(Any)
		if s.caps.Keys == 1 {
			beat, err = s.closeIfUnchanged(ctx, id, seen)
		}
		if err == nil {
			err = s.end(ctx, d, beat, cmp.Or(why, store.Closed), seen)
		}
		if !errors.Is(err, errBeat) {
			break
		}
	}
	if errors.Is(err, store.ErrSessionDead) {
		return nil
	}
	return err
}

// end ends a session if its beat has the given version, and stores the reason. It succeeds if
// the session is already dead.
func (s *Store) end(ctx context.Context, d described, beat uint64, why store.Reason, seen []store.Record) error {
	d.ended = why
	p := plan{
		decide: []step{{Cond{beatKey(d.ID), beat}, Write{Key: beatKey(d.ID)}}},
		show:   []string{beatKey(d.ID)},
	}
	switch {
	case s.caps.Keys > 1:
		p.first = []Write{{Key: sessionKey(d.ID), Value: encodeSession(d)}}
	case !s.cfg.plant.Has(plant.BeatDeleted):
		p.decide[0].Value = encode(beatJSON{Ended: why})
	}
	if d.attempt != "" {
		p.last = append(p.last, Write{Key: attemptAt + d.attempt})
	}
	for _, r := range seen {
		if s.caps.Keys > 1 {
			p.guard = append(p.guard, Cond{recordKey(r.Group), r.Version})
		}
	}
	r, err := s.run(ctx, p)
	if err != nil {
		if len(seen) == 0 {
			s.revoke(d.ID) // a second way to end it
		}
		return err
	}
	if r.OK {
		s.noteEnd(d.ID, why)
		s.revoke(d.ID)
		return nil
	}
	if r.Items[0].Version == 0 {
		return nil
	}
	if beat != Any && r.Items[0].Version != beat {
		return errBeat
	}
	return cmp.Or(s.changed(ctx, seen), error(&store.ConflictError{}))
}

// errBeat means that the session was renewed meanwhile.
var errBeat = errors.New("kv: the session was renewed")

// closeIfUnchanged prepares a close if a transaction has only one key, and returns the version of
// the beat that the close must compare. If the close depends on records, it first marks the beat
// as closing: from then on the session can acquire nothing. An acquire reads the beat after it
// has made the grant, so the records that are read after the mark are final.
func (s *Store) closeIfUnchanged(ctx context.Context, id store.SessionID, seen []store.Record) (uint64, error) {
	items, err := s.read(ctx, beatKey(id))
	if err != nil {
		return 0, err
	}
	if items[0].Version == 0 {
		return 0, dead(id)
	}
	if len(seen) == 0 {
		return items[0].Version, nil
	}
	mark := Write{Key: beatKey(id), Value: encode(beatJSON{Closing: true}), Lease: s.leaseOf(id)}
	beat, err := s.rewrite(ctx, mark, items[0].Version)
	if err != nil {
		return 0, err
	}
	conflict := s.changed(ctx, seen)
	if conflict == nil {
		return beat, nil
	}
	mark.Value = alive
	_, err = s.commit(ctx, Txn{If: []Cond{{mark.Key, beat}}, Then: []Write{mark}})
	return 0, cmp.Or(err, conflict)
}

// Sessions implements store.Store.
func (s *Store) Sessions(ctx context.Context, scope store.Scope, p store.Page) ([]store.Session, error) {
	limit, err := p.Size()
	if err := errors.Join(err, scope.Validate()); err != nil {
		return nil, err
	}
	all, err := s.allSessions(ctx)
	if err != nil {
		return nil, err
	}
	var line []store.Session
	for _, d := range all {
		if d.Scope.Overlaps(scope) {
			line = append(line, d.Session)
		}
	}
	slices.SortFunc(line, store.InLine)
	if p.After != "" {
		i := slices.IndexFunc(line, func(l store.Session) bool { return string(l.ID) == p.After })
		line = line[i+1:] // all of it, if that session has died since
	}
	return line[:min(limit, len(line))], nil
}

// allSessions lists the living sessions.
func (s *Store) allSessions(ctx context.Context) (map[store.SessionID]described, error) {
	described, err := s.list(ctx, sessionAt)
	if err != nil {
		return nil, err
	}
	beats, err := s.list(ctx, beatAt) // after the sessions: one without a beat has died
	if err != nil {
		return nil, err
	}
	return s.alive(described, beats), nil
}

// alive returns the sessions that have a beat.
func (s *Store) alive(items, beats []Item) map[store.SessionID]described {
	versions := map[string]uint64{}
	for _, b := range beats {
		versions[b.Key[len(beatAt):]] = b.Version
	}
	all := map[store.SessionID]described{}
	for _, i := range items {
		d, err := s.parsedSessions.get(i)
		if d.ended != "" {
			s.noteEnd(d.ID, d.ended)
			continue
		}
		if version := versions[string(d.ID)]; version > 0 && err == nil { // not those of a newer format
			all[d.ID] = d
			s.sessions.put(d.ID, d)
			s.observe(d.ID, version, d.TTL)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.silences {
		if versions[string(id)] == 0 {
			delete(s.silences, id)
		}
	}
	return all
}

// list reads all keys below a prefix.
func (s *Store) list(ctx context.Context, prefix string) ([]Item, error) {
	const page = 1000
	var all []Item
	after := ""
	for {
		if s.ctx.Err() != nil {
			return nil, ErrClosed
		}
		sent := s.sends()
		items, err := s.driver.List(ctx, prefix, after, page)
		if err != nil {
			return nil, err
		}
		s.markEnded(items)
		s.readSent(sent)
		all = append(all, items...)
		if len(items) < page {
			return all, nil
		}
		after = items[len(items)-1].Key
	}
}

// listRecords reads all records, and notes a loss of data if a known record is missing.
func (s *Store) listRecords(ctx context.Context) ([]Item, error) {
	s.mu.Lock()
	epoch, before := s.epoch, maps.Clone(s.records.m)
	s.mu.Unlock()
	items, err := s.list(ctx, recordAt)
	if err != nil {
		return nil, err
	}
	for _, i := range items {
		_, _ = s.parsedRecords.get(i) // fills the cache before s.mu is locked, which every call needs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != epoch {
		return items, nil
	}
	for _, i := range items {
		group := strings.TrimPrefix(i.Key, recordAt)
		s.sawRecord(i, before[group])
		delete(before, group)
	}
	for _, group := range slices.Sorted(maps.Keys(before)) {
		s.sawRecord(Item{Key: recordKey(group)}, before[group])
	}
	return items, nil
}
