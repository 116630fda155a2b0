package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

func dead(id lease.SessionID) error {
	return fmt.Errorf("kv: session %q: %w", id, lease.ErrSessionDead)
}

// Open implements lease.Store.
func (s *Store) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	return s.begin(ctx, nil, c, ttl, o)
}

// begin opens a session while the rules hold too.
func (s *Store) begin(ctx context.Context, rules []Cond, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	if err := errors.Join(lease.CheckCandidate(c), o.Validate(), lease.CheckTTL(s.Caps(), ttl)); err != nil {
		return lease.Session{}, err
	}
	if _, err := s.fresh(ctx); err != nil {
		return lease.Session{}, err
	}
	c.Metadata = maps.Clone(c.Metadata)
	d := described{attempt: o.AttemptDigest(c.ID), Session: lease.Session{
		Candidate: c, Instance: lease.InstanceDigest(o.Instance), Scope: slices.Clone(o.Scope), TTL: max(ttl, s.caps.MinTTL),
		Fenced: o.Fenced, Deployment: s.deployment(),
	}}
	for range 3 {
		session, err := s.open(ctx, rules, d, o)
		if !errors.Is(err, errReplaced) {
			return session, err
		}
	}
	return lease.Session{}, errReplaced
}

// errReplaced: the attempt's key names a session that has died; it was in the way.
var errReplaced = errors.New("kv: the session of the attempt ended during the call")

func (s *Store) open(ctx context.Context, rules []Cond, d described, o lease.OpenOptions) (lease.Session, error) {
	id, err := s.grant(ctx, &d)
	if err != nil {
		return lease.Session{}, err
	}
	d.ID = lease.SessionID(id)
	lid := s.leaseOf(d.ID)
	p := plan{
		guard:  rules,
		first:  []Write{{Key: sessionKey(d.ID), Value: encodeSession(d), Lease: lid}},
		decide: []step{{Cond{beatKey(d.ID), 0}, Write{Key: beatKey(d.ID), Value: []byte("{}"), Lease: lid}}},
		read:   []string{sessionKey(d.ID)},
		show:   []string{rulesKey},
	}
	if d.attempt != "" {
		key := attemptAt + d.attempt
		taken, err := s.attempt(ctx, key, d, o)
		if err != nil || taken.session.ID != "" {
			return taken.session, err
		}
		// In a store with one key per step the attempt is taken before the session begins.
		p.decide = slices.Insert(p.decide, 0, step{Cond{key, taken.version}, Write{Key: key, Value: []byte(id), Lease: lid}})
	}
	r, err := s.run(ctx, p)
	switch {
	case err != nil:
		return lease.Session{}, err
	case !r.OK && p.outdated(r.Items):
		if d.attempt == "" {
			s.revoke(d.ID) // the next try has another
		}
		return lease.Session{}, lease.ErrRules
	case !r.OK && d.attempt == "":
		// A retry inside the driver found its own first try.
	case !r.OK:
		return s.opened(ctx, d, o)
	}
	if r.Items[0].Version == 0 {
		return lease.Session{}, dead(d.ID)
	}
	d.Opened = r.Items[0].Created
	s.mu.Lock()
	s.sessions.put(d.ID, d)
	s.own.put(d.ID, true)
	delete(s.opening.m, d.attempt)
	lost := s.lost
	s.mu.Unlock()
	if lost != "" {
		return lease.Session{}, fmt.Errorf("kv: %s: %w", lost, errBehind)
	}
	return d.Session, nil
}

// errBehind: the engine lost data during the call. What it said about a grant is not to be
// relied on, and what became of it is unknown.
var errBehind = errors.New("the engine lost data during the call")

// grant gets an id for a session. The same attempt gets the same one until it is opened, so
// that a lost reply leaves no lease behind.
func (s *Store) grant(ctx context.Context, d *described) (string, error) {
	s.mu.Lock()
	want, ok := s.opening.get(d.attempt)
	if !ok || d.attempt == "" {
		want = s.cfg.random()
		if d.attempt != "" {
			s.opening.put(d.attempt, want)
		}
	}
	s.mu.Unlock()
	if s.leaser == nil {
		return want, nil
	}
	id, granted, err := s.leaser.Grant(ctx, want, d.TTL)
	if err != nil {
		return "", err
	}
	d.TTL = granted
	if id != want && d.attempt != "" {
		s.mu.Lock()
		s.opening.put(d.attempt, id)
		s.mu.Unlock()
	}
	return id, nil
}

// leaseOf is the lease that the keys of a session are bound to, where the engine has leases.
func (s *Store) leaseOf(id lease.SessionID) string {
	if s.leaser == nil {
		return ""
	}
	return string(id)
}

type taken struct {
	session lease.Session
	version uint64 // of the attempt's key
}

// attempt looks where more than one step is needed to open: the attempt may have a session.
func (s *Store) attempt(ctx context.Context, key string, d described, o lease.OpenOptions) (taken, error) {
	if s.caps.Keys > 1 {
		return taken{}, nil // the transaction compares
	}
	items, err := s.read(ctx, key)
	if err != nil || items[0].Version == 0 {
		return taken{}, err
	}
	session, err := s.living(ctx, lease.SessionID(items[0].Value), d, o)
	if errors.Is(err, lease.ErrSessionDead) {
		return taken{version: items[0].Version}, nil
	}
	return taken{session: session}, err
}

// opened returns the living session of an attempt whose key is there already.
func (s *Store) opened(ctx context.Context, d described, o lease.OpenOptions) (lease.Session, error) {
	key := attemptAt + d.attempt
	items, err := s.read(ctx, key)
	if err != nil {
		return lease.Session{}, err
	}
	id := lease.SessionID(items[0].Value)
	session, err := s.living(ctx, id, d, o)
	if errors.Is(err, lease.ErrSessionDead) {
		// What it left behind is in the way. An id is never used again, not even this one.
		if _, err := s.commit(ctx, Txn{If: []Cond{{key, items[0].Version}}, Then: []Write{{Key: key}}}); err != nil {
			return lease.Session{}, err
		}
		err = errReplaced
	}
	if id != d.ID {
		s.revoke(d.ID)
	}
	s.mu.Lock()
	delete(s.opening.m, d.attempt)
	s.mu.Unlock()
	return session, err
}

// living renews the session that an attempt has, if it is the one that is asked for.
func (s *Store) living(ctx context.Context, id lease.SessionID, d described, o lease.OpenOptions) (lease.Session, error) {
	session, err := s.Session(ctx, id)
	if err != nil {
		return lease.Session{}, err
	}
	if err := session.SameOpening(d.Candidate, o); err != nil {
		return lease.Session{}, err
	}
	beat, err := s.KeepAlive(ctx, id)
	session.TTL = beat.TTL
	return session, err
}

// revoke ends a lease that nobody needs, beside everything else.
func (s *Store) revoke(id lease.SessionID) {
	if s.leaser == nil || id == "" {
		return
	}
	s.cfg.spawn(func() {
		ctx, cancel := context.WithTimeout(s.ctx, revokeTimeout)
		defer cancel()
		_ = s.leaser.Revoke(ctx, string(id)) // it expires otherwise
	})
}

const revokeTimeout = 5 * time.Second

// Session implements lease.Store.
func (s *Store) Session(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	items, err := s.read(ctx, sessionKey(id), beatKey(id))
	if err != nil {
		return lease.Session{}, err
	}
	if items[0].Version == 0 || items[1].Version == 0 {
		return lease.Session{}, dead(id)
	}
	d, err := decodeSession(items[0])
	if err != nil {
		return lease.Session{}, err
	}
	if d.ended != "" {
		return lease.Session{}, dead(id)
	}
	s.mu.Lock()
	s.sessions.put(id, d)
	s.mu.Unlock()
	s.observe(id, items[1].Version, d.TTL)
	return d.Session, nil
}

// describe is what a session said when it was opened. It may be dead.
func (s *Store) describe(ctx context.Context, id lease.SessionID) (described, error) {
	s.mu.Lock()
	d, ok := s.sessions.get(id)
	s.mu.Unlock()
	if ok {
		return d, nil
	}
	if _, err := s.Session(ctx, id); err != nil {
		return described{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d, _ = s.sessions.get(id)
	return d, nil
}

// KeepAlive implements lease.Store.
func (s *Store) KeepAlive(ctx context.Context, id lease.SessionID, groups ...string) (lease.Beat, error) {
	for _, g := range groups {
		if err := lease.CheckGroup(g); err != nil {
			return lease.Beat{}, err
		}
	}
	if len(groups) > s.batch() {
		return lease.Beat{}, &lease.ArgumentError{Field: "groups", Value: len(groups), Rule: fmt.Sprintf("at most %d in one keep-alive", s.batch())}
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
	if err != nil {
		return lease.Beat{}, err
	}
	if err := s.stands(ctx, items[1]); err != nil {
		return lease.Beat{}, err
	}
	beat := lease.Beat{TTL: ttl, Requests: s.waiting(id, items[2])}
	beats, records := items[3:3+len(holders)], items[3+len(holders):]
	for _, i := range records {
		r, _ := decodeRecord(i) // of one that a newer program wrote, what can be read
		if h := slices.Index(holders, r.Holder); h >= 0 && beats[h].Version == 0 {
			// Its beat was gone before the record was read: it is dead.
			r.Record = s.view(r.Record, false).Record
		}
		beat.Records = append(beat.Records, r.Record)
	}
	return beat, nil
}

// holders are the sessions that hold the groups, as far as it is known here.
func (s *Store) holders(groups []string) []lease.SessionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var holders []lease.SessionID
	for _, g := range groups {
		if r, ok := s.records.get(g); ok && r.Holder != "" && !slices.Contains(holders, r.Holder) {
			holders = append(holders, r.Holder)
		}
	}
	return holders
}

// renew extends the session, and reads at a moment when it lived.
func (s *Store) renew(ctx context.Context, id lease.SessionID, reads []string) (time.Duration, []Item, error) {
	if s.leaser != nil {
		if s.ctx.Err() != nil {
			return 0, nil, ErrShutdown
		}
		s.mu.Lock()
		known, before := s.high, s.versions(reads)
		s.mu.Unlock()
		ttl, r, err := s.leaser.Renew(ctx, string(id), reads)
		switch {
		case errors.Is(err, ErrNoLease):
			return 0, nil, dead(id)
		case err != nil:
			return 0, nil, err
		case r.Items[0].Version == 0:
			return 0, nil, dead(id) // closed, and its lease is about to be revoked
		}
		s.saw(r.Index, known)
		for i, item := range r.Items {
			s.sawItem(item, before[i])
		}
		return ttl, r.Items, nil
	}
	d, err := s.describe(ctx, id)
	if err != nil {
		return 0, nil, err
	}
	p := plan{
		decide: []step{{Cond{beatKey(id), Any}, Write{Key: beatKey(id), Value: []byte("{}"), Quiet: true}}},
		read:   reads,
	}
	var items []Item
	if s.caps.Keys == 1 {
		// Read first: a record that named a session which lived later was led by it.
		p.read = nil
		if items, err = s.read(ctx, reads...); err != nil {
			return 0, nil, err
		}
	}
	r, err := s.run(ctx, p)
	switch {
	case err != nil:
		return 0, nil, err
	case !r.OK:
		return 0, nil, dead(id)
	}
	return d.TTL, append(items, r.Items...), nil
}

// Close implements lease.Store.
func (s *Store) Close(ctx context.Context, id lease.SessionID, why lease.Reason, seen ...lease.Record) error {
	if len(seen) > 0 {
		if err := lease.CheckBatch(s.Caps(), seen); err != nil {
			return err
		}
	}
	d, err := s.describe(ctx, id)
	switch {
	case errors.Is(err, lease.ErrSessionDead):
		return nil
	case err != nil:
		return err
	}
	beat := uint64(Any)
	if s.caps.Keys == 1 && len(seen) > 0 {
		if beat, err = s.closeIfUnchanged(ctx, id, seen); err != nil || beat == 0 {
			return err
		}
	}
	return s.end(ctx, d, beat, cmp.Or(why, lease.Closed), seen)
}

// end ends a session whose beat has the version, and leaves the reason behind. A session
// that is dead already has ended.
func (s *Store) end(ctx context.Context, d described, beat uint64, why lease.Reason, seen []lease.Record) error {
	d.ended = why
	p := plan{
		first:  []Write{{Key: sessionKey(d.ID), Value: encodeSession(d)}},
		decide: []step{{Cond{beatKey(d.ID), beat}, Write{Key: beatKey(d.ID)}}},
		show:   []string{beatKey(d.ID)},
	}
	if s.caps.Keys == 1 {
		// Only after the decision: until then the session lives.
		p.first, p.last = nil, p.first
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
		return err
	}
	if r.OK {
		s.mu.Lock()
		s.ended.put(d.ID, why)
		s.mu.Unlock()
		s.revoke(d.ID)
		return nil
	}
	if r.Items[0].Version == 0 {
		return nil
	}
	if beat != Any && r.Items[0].Version != beat {
		return errBeat
	}
	return cmp.Or(s.changed(ctx, seen), error(&lease.ConflictError{}))
}

// errBeat: the session was renewed meanwhile.
var errBeat = errors.New("kv: the session was renewed")

// closing marks a beat in stores with one key per step: the session cannot win any more,
// but what it won before is not known yet.
var closing = []byte(`{"closing":true}`)

// closeIfUnchanged prepares a conditional close where a step has one key only. An acquire
// looks at the beat after it has written the record. So once the beat is marked, no further
// acquire succeeds; what the records say then is final.
// It returns the version of the marked beat, 0 if the session is dead already.
func (s *Store) closeIfUnchanged(ctx context.Context, id lease.SessionID, seen []lease.Record) (uint64, error) {
	lid := s.leaseOf(id)
	r, err := s.commit(ctx, Txn{If: []Cond{{beatKey(id), Any}}, Then: []Write{{Key: beatKey(id), Value: closing, Lease: lid}}})
	if err != nil || !r.OK {
		return 0, err
	}
	beat := r.Versions[0]
	conflict := s.changed(ctx, seen)
	if conflict == nil {
		return beat, nil
	}
	_, err = s.commit(ctx, Txn{If: []Cond{{beatKey(id), beat}}, Then: []Write{{Key: beatKey(id), Value: []byte("{}"), Lease: lid}}})
	return 0, cmp.Or(err, conflict)
}

// Sessions implements lease.Store.
func (s *Store) Sessions(ctx context.Context, scope lease.Scope, p lease.Page) ([]lease.Session, error) {
	limit, err := p.Size()
	if err := errors.Join(err, scope.Validate()); err != nil {
		return nil, err
	}
	all, err := s.allSessions(ctx)
	if err != nil {
		return nil, err
	}
	var line []lease.Session
	for _, d := range all {
		if d.Scope.Overlaps(scope) {
			line = append(line, d.Session)
		}
	}
	slices.SortFunc(line, lease.InLine)
	if p.After != "" {
		i := slices.IndexFunc(line, func(l lease.Session) bool { return string(l.ID) == p.After })
		line = line[i+1:] // one that died since: begin again
	}
	return line[:min(limit, len(line))], nil
}

// allSessions lists the living sessions.
func (s *Store) allSessions(ctx context.Context) (map[lease.SessionID]described, error) {
	described, err := s.list(ctx, sessionAt)
	if err != nil {
		return nil, err
	}
	beats, err := s.list(ctx, beatAt) // after them: what is missing here has died
	if err != nil {
		return nil, err
	}
	return s.alive(described, beats), nil
}

// alive joins sessions with their beats.
func (s *Store) alive(items, beats []Item) map[lease.SessionID]described {
	lives := map[string]uint64{}
	for _, b := range beats {
		lives[b.Key[len(beatAt):]] = b.Version
	}
	all := map[lease.SessionID]described{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range items {
		d, err := decodeSession(i)
		if d.ended != "" {
			s.ended.put(d.ID, d.ended)
			continue
		}
		if version := lives[string(d.ID)]; version > 0 && err == nil { // a newer program's waits in its own line
			all[d.ID] = d
			s.sessions.put(d.ID, d)
			s.observeLocked(d.ID, version, d.TTL)
		}
	}
	return all
}

// list reads everything below a prefix.
func (s *Store) list(ctx context.Context, prefix string) ([]Item, error) {
	const page = 1000
	var all []Item
	after := ""
	for {
		if s.ctx.Err() != nil {
			return nil, ErrShutdown
		}
		items, err := s.driver.List(ctx, prefix, after, page)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if len(items) < page {
			return all, nil
		}
		after = items[len(items)-1].Key
	}
}
