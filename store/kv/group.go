package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, group string) (store.View, error) {
	if err := store.CheckGroup(group); err != nil {
		return store.View{}, err
	}
	views, meta, err := s.viewsAndMeta(ctx, []string{group}, true)
	if err != nil {
		return store.View{}, err
	}
	if views[0].State == tenure.Led && s.openedHere(views[0].Holder) {
		// A caller that confirms its own leadership must not rely on an engine that lost data.
		if err := s.checkMeta(ctx, meta); err != nil {
			return store.View{}, err
		}
	}
	return views[0], nil
}

// views reads groups and whether their holders are alive.
func (s *Store) views(ctx context.Context, groups []string) ([]store.View, error) {
	views, _, err := s.viewsAndMeta(ctx, groups, true)
	return views, err
}

// viewsAndMeta reads groups and whether their holders are alive. It reads the beat of the
// expected holder before the record, so one call is enough if the record names that holder:
// a beat that is gone never returns, so the group is vacant; and if the beat was there, the
// group was led at that moment, or when the record was granted to the holder later. A group
// that is granted between two reads of one call was led at that moment, so two reads are
// enough however often its leader changes.
//
// With settle it completes or cancels the prepared grants that it finds. Callers that rely on
// the answer need this: otherwise such a grant could take effect later and contradict it.
func (s *Store) viewsAndMeta(ctx context.Context, groups []string, settle bool) ([]store.View, Item, error) {
	views := make([]store.View, len(groups))
	expected, open := s.holders(groups), groups
	expired := s.leaser != nil        // silent sessions were ended, or the engine does it
	first := map[string]fence.Token{} // tokens from the first read of groups with an unexpected holder
	for range viewTries {
		var keys []string
		for _, h := range expected {
			keys = append(keys, beatKey(h), sessionKey(h))
		}
		for _, g := range open {
			keys = append(keys, recordKey(g))
		}
		items, err := s.read(ctx, append(keys, metaKey)...)
		if err != nil {
			return nil, Item{}, err
		}
		meta := items[len(items)-1]
		living := map[store.SessionID]bool{}
		for i, h := range expected {
			living[h] = items[2*i].Version != 0
			s.sawSession(h, items[2*i], items[2*i+1])
		}
		if !expired && len(s.silent()) > 0 {
			expired = true // once per call: a session that falls silent later stays alive for now
			if err := s.expire(ctx); err != nil {
				return nil, Item{}, err
			}
			continue // one of the holders may be among the ended sessions
		}
		items = items[2*len(expected):]
		var left []string
		for i, g := range open {
			r, err := s.parsedRecords.get(items[i])
			if err == nil && settle {
				r, err = s.settle(ctx, r)
			}
			if err != nil {
				return nil, Item{}, err
			}
			alive, looked := living[r.Holder]
			if was, again := first[g]; again && r.Holder != "" && r.Token > was {
				alive, looked = true, true
			}
			if r.Holder != "" && !looked {
				left = append(left, g)
				first[g] = r.Token
				if !slices.Contains(expected, r.Holder) {
					expected = append(expected, r.Holder)
				}
				continue
			}
			views[slices.Index(groups, g)] = s.view(r.Record, alive)
		}
		if open = left; len(open) == 0 {
			return views, meta, nil
		}
	}
	return nil, Item{}, errUnstable
}

var errUnstable = errors.New("kv: the group's leader changes faster than the group can be read")

// viewTries bounds the reads of a group. Three are enough in an engine that loses no data.
const viewTries = 10

// view returns the view of a record. If the holder is dead, the view shows the end of its term,
// although the stored record does not have it yet.
func (s *Store) view(r store.Record, alive bool) store.View {
	if alive {
		return store.View{Record: r, State: tenure.Led}
	}
	if r.Holder != "" {
		r.Terms = closeTerm(r.Terms, s.cfg.Wall().UTC(), s.reason(r.Holder))
	}
	return store.View{Record: r, State: tenure.Vacant}
}

// reason is why a dead session ended: Expired, unless this process knows better.
func (s *Store) reason(id store.SessionID) store.Reason {
	why, _ := s.ended.get(id)
	return cmp.Or(why, store.Expired)
}

// sawSession notes what the two keys of a session say.
func (s *Store) sawSession(id store.SessionID, beat, session Item) {
	if session.Version == 0 {
		return
	}
	d, err := s.parsedSessions.get(session)
	if err != nil {
		return
	}
	switch {
	case d.ended != "":
		s.noteEnd(id, d.ended)
	case beat.Version != 0:
		s.sessions.put(id, d)
		s.observe(id, beat.Version, d.TTL)
	}
}

// known returns the records in the versions that the caller saw, from memory if possible. A
// record in another version is a conflict, except with the planted bug.
func (s *Store) known(ctx context.Context, seen []store.Record, unless plant.Bug) ([]record, error) {
	out := make([]record, len(seen))
	var missing []int
	for i, want := range seen {
		r, ok := s.records.get(want.Group)
		switch {
		case s.cfg.plant.Has(unless):
			missing = append(missing, i)
		case ok && r.Version == want.Version && r.next == nil:
			out[i] = r
		case want.Version == 0 && !ok:
			out[i] = record{Record: store.Record{Group: want.Group}} // the transaction checks that there is none
		default:
			missing = append(missing, i)
		}
	}
	if len(missing) == 0 {
		return out, nil
	}
	keys := make([]string, len(missing))
	for k, i := range missing {
		keys[k] = recordKey(seen[i].Group)
	}
	items, err := s.read(ctx, keys...)
	if err != nil {
		return nil, err
	}
	for k, i := range missing {
		if out[i], err = s.parsedRecords.get(items[k]); err == nil {
			out[i], err = s.settle(ctx, out[i])
		}
		if err != nil {
			return nil, err
		}
		if out[i].Version != seen[i].Version && !s.cfg.plant.Has(unless) {
			return nil, cmp.Or(s.conflict(ctx, seen), error(&store.ConflictError{}))
		}
	}
	return out, nil
}

// conflict returns a ConflictError with the records that have changed or are not vacant, or nil.
func (s *Store) conflict(ctx context.Context, seen []store.Record) error {
	return s.compare(ctx, seen, func(v store.View) bool { return v.State == tenure.Led })
}

// changed returns a ConflictError with the records that have changed, or nil.
func (s *Store) changed(ctx context.Context, seen []store.Record) error {
	return s.compare(ctx, seen, func(store.View) bool { return false })
}

func (s *Store) compare(ctx context.Context, seen []store.Record, also func(store.View) bool) error {
	views, err := s.views(ctx, groupsOf(seen))
	if err != nil {
		return err
	}
	c := &store.ConflictError{}
	for i, v := range views {
		if v.Version != seen[i].Version || also(v) {
			c.Current = append(c.Current, v)
		}
	}
	if len(c.Current) == 0 {
		return nil
	}
	return c
}

func groupsOf(records []store.Record) []string {
	groups := make([]string, len(records))
	for i, r := range records {
		groups[i] = r.Group
	}
	return groups
}

// granted returns the record after a grant to the session. It adds writes to the plan that move
// old terms to the history and prove that the group has a record.
func (s *Store) granted(p *plan, r record, floor fence.Token, to store.Session, epoch uint64, why store.Reason) (record, error) {
	token, err := s.nextToken(r, floor, epoch)
	if err != nil {
		return record{}, err
	}
	now := s.cfg.Wall().UTC()
	next := record{count: r.count + 1, Record: store.Record{Group: r.Group, Token: token, Holder: to.ID, Candidate: to.Candidate}}
	next.Terms = append(slices.Clone(closeTerm(r.Terms, now, why)), store.Term{Token: token, Candidate: to.Candidate.ID, Session: to.ID, Begin: now})
	for len(next.Terms) > store.TermsKept {
		n := next.count - uint64(len(next.Terms))
		p.first = append(p.first, Write{Key: historyKey(r.Group, n), Value: encode(termJSON(next.Terms[0])), Quiet: true})
		next.Terms = next.Terms[1:]
	}
	// With one key per transaction this write could come after a Retire, and look like lost data.
	if removable := floorKey(r.Group) != "" && s.caps.Keys == 1; !removable && (r.Version == 0 || r.Token.Epoch() < epoch) {
		p.last = append(p.last, Write{Key: grantKey(r.Group), Value: encode(grantJSON{Format: Format, Deployment: to.Deployment, Epoch: epoch}), Quiet: true})
	}
	return next, nil
}

// Acquire implements store.Store. It grants if the records are as seen, their holders are dead,
// the session is alive and the epoch has not changed. A group without a record must not have
// been granted in this epoch: otherwise its record was deleted.
func (s *Store) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	return s.acquire(ctx, nil, id, seen)
}

// acquire is Acquire with further conditions.
func (s *Store) acquire(ctx context.Context, rules []Cond, id store.SessionID, seen []store.Record) ([]store.Record, error) {
	if err := store.CheckBatch(s.Caps(), seen); err != nil {
		return nil, err
	}
	before := map[string]uint64{} // versions of the grant keys of earlier epochs
	for range acquireTries {
		d, err := s.describe(ctx, id)
		if err != nil {
			return nil, err
		}
		records, err := s.known(ctx, seen, plant.AcquireAnyVersion)
		if err != nil {
			s.grantRest(ctx, id, seen, err)
			return nil, err
		}
		if err := s.learnEnds(ctx, records); err != nil {
			return nil, err
		}
		floors, unchanged, err := s.floorsOf(ctx, records)
		if err != nil {
			return nil, err
		}
		m, err := s.grantMeta(ctx)
		if err != nil {
			return nil, err
		}
		p := plan{guard: []Cond{{beatKey(id), Any}}, under: slices.Concat([]Cond{{metaKey, m.version}}, rules, unchanged), show: []string{beatKey(id), metaKey, rulesKey}}
		out := make([]record, len(records))
		for i, r := range records {
			if out[i], err = s.granted(&p, r, floors[floorKey(r.Group)], d.Session, m.Epoch, s.reason(r.Holder)); err != nil {
				return nil, err
			}
			p.decide = append(p.decide, s.write(p, r, out[i]))
			if h := (Cond{beatKey(r.Holder), 0}); r.Holder != "" && !slices.Contains(p.guard, h) && !s.cfg.plant.Has(plant.AcquireFromLiving) {
				p.guard = append(p.guard, h)
			}
			if r.Version == 0 {
				p.guard = append(p.guard, Cond{grantKey(r.Group), before[r.Group]})
			}
		}
		granted, err := s.decide(ctx, p, records, out, id, m)
		if errors.Is(err, store.ErrConflict) {
			if err := s.findDeleted(ctx, records, m, before); err != nil {
				return nil, err
			}
			if err = s.conflict(ctx, seen); err == nil {
				continue // vacant again, or granted only in an earlier epoch
			}
			s.grantRest(ctx, id, seen, err)
		}
		if !errors.Is(err, errMeta) {
			return granted, err
		}
	}
	return nil, fmt.Errorf("%w: %w", store.ErrBusy, errMetaBusy)
}

// acquireTries bounds how often the epoch or a token floor may change during one Acquire.
const acquireTries = 10

// grantRest grants the groups that did not conflict. It is a planted bug.
func (s *Store) grantRest(ctx context.Context, id store.SessionID, seen []store.Record, err error) {
	var c *store.ConflictError
	if !s.cfg.plant.Has(plant.TornBatch) || len(seen) == 1 || !errors.As(err, &c) {
		return
	}
	for _, r := range seen {
		if !slices.ContainsFunc(c.Current, func(v store.View) bool { return v.Group == r.Group }) {
			_, _ = s.Acquire(ctx, id, r)
		}
	}
}

// learnEnds reads why the holders of the records ended, unless this process knows it.
func (s *Store) learnEnds(ctx context.Context, records []record) error {
	var holders []store.SessionID
	var keys []string
	for _, r := range records {
		if _, ok := s.ended.get(r.Holder); r.Holder != "" && !ok && !slices.Contains(holders, r.Holder) {
			holders = append(holders, r.Holder)
			keys = append(keys, beatKey(r.Holder), sessionKey(r.Holder))
		}
	}
	items, err := s.read(ctx, keys...)
	if err != nil {
		return err
	}
	for i, h := range holders {
		beat, session := items[2*i], items[2*i+1]
		s.sawSession(h, beat, session)
		if beat.Version == 0 && session.Version == 0 { // it held a group, so it has ended
			s.noteEnd(h, store.Expired)
		}
	}
	return nil
}

// findDeleted returns an error if a group without a record was granted in this epoch: its record
// was deleted. It puts the versions of the grant keys of earlier epochs into before.
func (s *Store) findDeleted(ctx context.Context, records []record, m *meta, before map[string]uint64) error {
	var groups, keys []string
	for _, r := range records {
		if r.Version == 0 {
			groups = append(groups, r.Group)
			keys = append(keys, grantKey(r.Group)) // read before the record, which is never deleted
		}
	}
	for _, g := range groups {
		keys = append(keys, recordKey(g))
	}
	items, err := s.read(ctx, keys...)
	if err != nil {
		return err
	}
	for i, g := range groups {
		proof, record := items[i], items[len(groups)+i]
		if proof.Version == 0 || record.Version != 0 {
			continue
		}
		var j grantJSON
		if err := decode(proof, &j); err != nil {
			return err
		}
		if floorKey(g) != "" {
			// Retire removes the grant key no later than the record.
			again, err := s.read(ctx, proof.Key)
			if err != nil {
				return err
			}
			if again[0].Version != proof.Version {
				continue
			}
		}
		if before[g] = proof.Version; j.Epoch >= m.Epoch {
			s.mu.Lock()
			if s.epoch == m.Epoch {
				s.noteLoss("the record of group %q was deleted", g)
			}
			s.mu.Unlock()
		}
	}
	if err := s.report(ctx); err != nil {
		return err
	}
	_, err = s.grantMeta(ctx)
	return err
}

// errMeta means that the deployment's description changed during the call.
var errMeta = errors.New("kv: the epoch changed during the call")

// write returns the step that replaces the record by the next one, or prepares the grant of it.
func (s *Store) write(p plan, r, next record) step {
	w := Write{Key: recordKey(r.Group)}
	if s.caps.Keys == 1 && p.under != nil {
		w.Value = s.encodeUnchanged(r, &prepared{p.under, next})
	} else {
		w.Value = s.encodeRecord(next)
	}
	return step{Cond{w.Key, r.stored}, w}
}

// decide runs a plan and returns the records with their new versions. The plan must show the
// session's beat and, for a grant, meta.
func (s *Store) decide(ctx context.Context, p plan, records, out []record, id store.SessionID, m *meta) ([]store.Record, error) {
	epoch := s.baseline().epoch
	r, err := s.run(ctx, p)
	if err == nil && r.OK && s.caps.Keys == 1 && p.under != nil {
		r, err = s.confirm(ctx, p, records[0], out[0], r, id)
	}
	switch {
	case err != nil:
		return nil, err
	case !r.OK && r.Items[0].Version == 0:
		return nil, dead(id)
	case !r.OK && len(r.Items) > 1 && r.Items[1].Key == metaKey && r.Items[1].Version != m.version:
		s.forgetMeta()
		return nil, errMeta
	case !r.OK && p.outdated(r.Items):
		return nil, store.ErrRules
	case !r.OK:
		return nil, &store.ConflictError{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.engineFailed(r); err != nil && m != nil {
		return nil, err
	}
	made := make([]store.Record, len(out))
	for i := range out {
		out[i].Version, out[i].stored = r.Versions[i], r.Versions[i]
		s.cacheWritten(out[i], epoch)
		made[i] = out[i].Record
	}
	return made, nil
}

// cacheWritten caches a record that was written by a call which began in the epoch. s.mu is held.
func (s *Store) cacheWritten(r record, epoch uint64) {
	r.next, r.read = nil, true
	if known, _ := s.records.get(r.Group); known.stored < r.stored && s.epoch == epoch {
		s.records.put(r.Group, r)
	}
}

// outdated reports whether the rules have another version than in the plan.
func (p plan) outdated(read []Item) bool {
	return slices.ContainsFunc(slices.Concat(p.guard, p.under), func(g Cond) bool {
		return g.Key == rulesKey && slices.ContainsFunc(read, func(i Item) bool { return i.Key == rulesKey && !g.Holds(i.Version) })
	})
}

// settle completes or cancels the grant that is prepared in a record, and returns the new
// record. The process that prepared the grant calls it, and so does every process that reads
// the record before that. The first write wins.
func (s *Store) settle(ctx context.Context, r record) (record, error) {
	for range viewTries {
		if r.next == nil {
			return r, nil
		}
		if s.cfg.plant.Has(plant.BeginOnPrepared) {
			to := r.next.to
			to.Version, to.stored = r.stored, r.stored
			return to, nil
		}
		epoch := s.baseline().epoch
		ok, err := s.stillHolds(ctx, r.next.under)
		if err != nil {
			return r, err
		}
		after, w := r, Write{Key: recordKey(r.Group)}
		if ok {
			after = r.next.to
			w.Value = s.encodeRecord(after)
		} else {
			w.Value = s.encodeUnchanged(r, nil)
		}
		c, err := s.commit(ctx, Txn{If: []Cond{{w.Key, r.stored}}, Then: []Write{w}, Else: []string{w.Key}})
		if err != nil {
			return r, err
		}
		if c.OK {
			after.stored, after.next = c.Versions[0], nil
			if ok {
				after.Version = after.stored
			}
			s.mu.Lock()
			s.cacheWritten(after, epoch)
			s.mu.Unlock()
			return after, nil
		}
		if r, err = s.parsedRecords.get(c.Items[0]); err != nil {
			return r, err
		}
	}
	return r, errUnstable
}

// stillHolds reports whether the conditions of a prepared grant hold and the engine is known to
// have lost no data.
func (s *Store) stillHolds(ctx context.Context, under []Cond) (bool, error) {
	ok, err := s.hold(ctx, under)
	s.mu.Lock()
	sure := s.meta != nil
	s.mu.Unlock()
	if !ok || sure {
		return ok, err
	}
	m, err := s.loadMeta(ctx)
	return err == nil && !m.Rewound && slices.Contains(under, Cond{metaKey, m.version}), err
}

// confirm completes the grant that a plan has prepared. It returns the result that the plan
// would have had as one transaction.
func (s *Store) confirm(ctx context.Context, p plan, r, to record, prep Result, id store.SessionID) (Result, error) {
	r.stored, r.next = prep.Versions[0], &prepared{p.under, to}
	r, err := s.settle(ctx, r)
	if err != nil {
		return Result{}, err
	}
	made := r.next == nil && r.Holder == to.Holder && r.Token == to.Token
	if made && to.Holder == id {
		// If the session was closed meanwhile, the grant does not count: see closeIfUnchanged.
		if made, err = s.hold(ctx, []Cond{{beatKey(id), Any}}); err != nil {
			return Result{}, err
		}
	}
	if !made {
		items, err := s.read(ctx, p.show...)
		return Result{Items: items}, err
	}
	s.finish(ctx, p)
	prep.Versions = []uint64{r.stored}
	return prep, nil
}

// rewritten reports whether a key was written meanwhile without a change of its record.
func (s *Store) rewritten(records []record) bool {
	return slices.ContainsFunc(records, func(r record) bool {
		known, _ := s.records.get(r.Group)
		return known.Version == r.Version && known.stored > r.stored
	})
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	return s.release(ctx, nil, id, to, why, held)
}

// release is Release with further conditions.
func (s *Store) release(ctx context.Context, rules []Cond, id, to store.SessionID, why store.Reason, held []store.Record) ([]store.Record, error) {
	if err := store.CheckBatch(s.Caps(), held); err != nil {
		return nil, err
	}
	for range 3 {
		records, err := s.known(ctx, held, plant.ReleaseAnyVersion)
		if errors.Is(err, store.ErrConflict) {
			if _, dead := s.Session(ctx, id); dead != nil {
				err = dead
			}
		}
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			if r.Holder != id && !s.cfg.plant.Has(plant.ReleaseAnyVersion) {
				return nil, s.notHeld(ctx, id, held)
			}
		}
		p := plan{guard: []Cond{{beatKey(id), Any}}, show: []string{beatKey(id)}}
		out := make([]record, len(records))
		var m *meta
		if to == "" {
			for i, r := range records {
				out[i] = r
				out[i].Holder = ""
				out[i].Terms = closeTerm(r.Terms, s.cfg.Wall().UTC(), cmp.Or(why, store.Resigned))
			}
		} else if m, err = s.handover(ctx, &p, rules, records, out, id, to, cmp.Or(why, store.Transferred)); err != nil {
			return nil, err
		}
		for i, r := range records {
			p.decide = append(p.decide, s.write(p, r, out[i]))
		}
		released, err := s.decide(ctx, p, records, out, id, m)
		if errors.Is(err, store.ErrConflict) {
			if err = s.whyNot(ctx, to, held); s.rewritten(records) {
				continue
			}
		}
		if !errors.Is(err, errMeta) {
			return released, err
		}
	}
	return nil, errMetaBusy
}

// handover adds the grant of the records to the successor to the plan.
func (s *Store) handover(ctx context.Context, p *plan, rules []Cond, records, out []record, id, to store.SessionID, why store.Reason) (*meta, error) {
	m, err := s.grantMeta(ctx)
	if err != nil {
		return nil, err
	}
	next, err := s.describe(ctx, to)
	if err != nil && !errors.Is(err, store.ErrSessionDead) {
		return nil, err
	}
	unchecked := s.cfg.plant.Has(plant.SuccessorUnchecked)
	if unchecked {
		next.ID, err = to, nil
	}
	for i, r := range records {
		if (err != nil || to == id || !next.Scope.Covers(r.Group)) && !unchecked {
			return nil, cannotTake(to, r.Group)
		}
		if out[i], err = s.granted(p, r, 0, next.Session, m.Epoch, why); err != nil {
			return nil, err
		}
		if s.cfg.plant.Has(plant.TokenNotRaised) {
			out[i].Token = r.Token
		}
	}
	p.under = append([]Cond{{metaKey, m.version}}, rules...)
	if !unchecked { // if the successor dies before the grant, the group is vacant
		p.guard = append(p.guard, Cond{beatKey(to), Any})
	}
	p.show = append(p.show, metaKey, rulesKey)
	return m, nil
}

func cannotTake(to store.SessionID, group string) error {
	return fmt.Errorf("kv: session %q cannot take group %q: %w", to, group, store.ErrSuccessor)
}

// whyNot explains a release that was refused although its session is alive.
func (s *Store) whyNot(ctx context.Context, to store.SessionID, held []store.Record) error {
	c := &store.ConflictError{}
	if err := s.changed(ctx, held); err != nil || to == "" {
		return cmp.Or(err, error(c)) // an empty one if nothing has changed
	}
	return cannotTake(to, held[0].Group)
}

// notHeld is the error of a release of groups that the session does not hold.
func (s *Store) notHeld(ctx context.Context, id store.SessionID, held []store.Record) error {
	if _, err := s.Session(ctx, id); err != nil {
		return err
	}
	views, err := s.views(ctx, groupsOf(held))
	if err != nil {
		return err
	}
	return &store.ConflictError{Current: slices.DeleteFunc(views, func(v store.View) bool { return v.Holder == id })}
}

// Groups implements store.Store.
func (s *Store) Groups(ctx context.Context, scope store.Scope, p store.Page) ([]store.View, error) {
	limit, err := p.Size()
	if err := errors.Join(err, scope.Validate()); err != nil {
		return nil, err
	}
	items, err := s.listRecords(ctx)
	if err != nil {
		return nil, err
	}
	var groups []string
	for _, i := range items {
		if g := i.Key[len(recordAt):]; g > p.After && scope.Covers(g) {
			groups = append(groups, g)
		}
	}
	var views []store.View
	for part := range slices.Chunk(groups, max(1, s.caps.Keys/3)) {
		some, err := s.views(ctx, part)
		if err != nil {
			return nil, err
		}
		views = append(views, slices.DeleteFunc(some, func(v store.View) bool { return v.Version == 0 })...) // never granted
		if len(views) >= limit {
			return views[:limit], nil
		}
	}
	return views, nil
}

// History implements store.Store. Recent terms are in the record, older ones in keys of their own.
func (s *Store) History(ctx context.Context, group string, p store.Page) ([]store.Term, error) {
	limit, err := p.Size()
	if err := errors.Join(err, store.CheckGroup(group)); err != nil {
		return nil, err
	}
	before := fence.MaxToken + 1
	if p.After != "" {
		if before, err = fence.ParseToken(p.After); err != nil {
			return nil, &store.ArgumentError{Field: "page after", Value: p.After, Rule: "must be the token of a term"}
		}
	}
	views, err := s.views(ctx, []string{group})
	if err != nil {
		return nil, err
	}
	v := views[0]
	terms := slices.Clone(v.Terms) // the cached record shares them
	if len(terms) == store.TermsKept {
		items, err := s.list(ctx, historyAt+group+"/")
		if err != nil {
			return nil, err
		}
		for _, i := range items {
			var t termJSON
			if err := decode(i, &t); err != nil {
				return nil, err
			}
			if t.Token < v.Terms[0].Token { // a failed grant may have copied a term that is still in the record
				terms = append(terms, store.Term(t))
			}
		}
	}
	slices.SortFunc(terms, func(a, b store.Term) int { return cmp.Compare(b.Token, a.Token) })
	terms = slices.DeleteFunc(terms, func(t store.Term) bool { return t.Token >= before })
	return terms[:min(limit, len(terms))], nil
}
