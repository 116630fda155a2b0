package mem

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/storetest"
)

// planted names, for each bug of a store, the promise that is about it. Others
// may see it as well.
func planted() map[plant.Bug]storetest.Promise {
	return map[plant.Bug]storetest.Promise{
		plant.TokenReset:         storetest.TokensSurvive,
		plant.TokenNotRaised:     storetest.TokensIncrease,
		plant.HintUnfenced:       storetest.SuspectedIsFenced,
		plant.KeepAliveRevives:   storetest.DeathIsFinal,
		plant.AcquireAnyVersion:  storetest.LateCopiesHarmless,
		plant.AcquireFromLiving:  storetest.LivingHolderKeeps,
		plant.ReleaseAnyVersion:  storetest.LateCopiesHarmless,
		plant.SuccessorUnchecked: storetest.TransferChecked,
		plant.GrantRewound:       storetest.RewindRefused,
		plant.BeatRewound:        storetest.RewindRefused,
		plant.ExpireEarly:        storetest.TTLKept,
		plant.TornBatch:          storetest.BatchAllOrNothing,
		plant.WatchForgetsDeath:  storetest.WatchVacancy,
		plant.EpochIgnored:       storetest.EpochRaised,
	}
}

// bent names, for each promise without a planted bug, a store that breaks it.
func bent() map[storetest.Promise]func(store.Store) store.Store {
	return map[storetest.Promise]func(store.Store) store.Store{
		storetest.SessionAsOpened:    func(s store.Store) store.Store { return dropsMetadata{s} },
		storetest.OpenRetried:        func(s store.Store) store.Store { return forgetsAttempts{s} },
		storetest.SessionIDsUnique:   func(s store.Store) store.Store { return &repeatsIDs{Store: s} },
		storetest.DeadNeverLeads:     func(s store.Store) store.Store { return opensAnew{s} },
		storetest.RecordsTellTerms:   func(s store.Store) store.Store { return losesReasons{s} },
		storetest.ConflictShows:      func(s store.Store) store.Store { return hidesConflicts{s} },
		storetest.LostRepliesResolve: func(s store.Store) store.Store { return closesOnce{s} },
		storetest.CancelNoOrphan:     func(s store.Store) store.Store { return deniesCancelled{s} },
		storetest.ContextObeyed:      func(s store.Store) store.Store { return deafRead{s} },
		storetest.UnknownNotVacant:   func(s store.Store) store.Store { return vacantOnError{s} },
		storetest.ReadsLinearizable:  func(s store.Store) store.Store { return &oneBehind{Store: s} },
		storetest.ArgumentsRefused:   func(s store.Store) store.Store { return anyTTL{s} },
		storetest.WatchSnapshot:      func(s store.Store) store.Store { return bentWatch{s, ledOnly} },
		storetest.WatchMissesNoTerm:  func(s store.Store) store.Store { return bentWatch{s, lastTerm} },
		storetest.WatchTransfer:      func(s store.Store) store.Store { return bentWatch{s, falseVacancy} },
		storetest.OneCloseVacatesAll: func(s store.Store) store.Store { return bentWatch{s, losesOne} },
		storetest.RequestsArrive:     func(s store.Store) store.Store { return newestFirst{s} },
		storetest.RequestsEnd:        func(s store.Store) store.Store { return neverBusy{s} },
		storetest.ListsInOrder:       func(s store.Store) store.Store { return unordered{s} },
		storetest.HistoryReaches:     func(s store.Store) store.Store { return shortHistory{s} },
		storetest.AttributesCompared: func(s store.Store) store.Store { return lastWriterWins{s} },
		storetest.AttributesRemoved:  func(s store.Store) store.Store { return keepsRemoved{s} },
		storetest.AttributesListed:   func(s store.Store) store.Store { return unpagedAttributes{s} },
		storetest.OneWinner:          func(s store.Store) store.Store { return twoWinners{s} },
		storetest.EpochRaised:        func(s store.Store) store.Store { return forgetsEpoch{s} },
		storetest.SuspectStops:       func(s store.Store) store.Store { return ignoresReports{s} },
		storetest.TTLKept:            func(s store.Store) store.Store { return expiresLate{s} },
		storetest.SessionRead: func(s store.Store) store.Store {
			return &remembersSessions{Store: s, all: map[store.SessionID]store.Session{}}
		},
		storetest.BeatShowsRecords:   func(s store.Store) store.Store { return lastRecordFirst{s} },
		storetest.CloseCompares:      func(s store.Store) store.Store { return closesAnyway{s} },
		storetest.ReleaseBatch:       func(s store.Store) store.Store { return releasesSingly{s} },
		storetest.TokenFromStore:     func(s store.Store) store.Store { return believesCallers{s} },
		storetest.WatchSessions:      func(s store.Store) store.Store { return bentWatch{s, neverEnds} },
		storetest.WatchLinearizable:  func(s store.Store) store.Store { return &staleWatch{Store: s, views: map[string]store.View{}} },
		storetest.RulesCompared:      func(s store.Store) store.Store { return ignoresRules{s.(store.Ruled)} },
		storetest.NoGrantAgainstRule: func(s store.Store) store.Store { return ignoresRules{s.(store.Ruled)} },
		storetest.TokensOutliveNames: func(s store.Store) store.Store { return dropsFloors{s.(*Store)} },
		storetest.RetireCompares:     func(s store.Store) store.Store { return retiresAny{s.(*Store)} },
		storetest.TokensSurviveStart: nil, // see below: it is the restart that breaks it
	}
}

// Every promise can be seen broken: by a store that breaks it here, or by a bug
// that is planted.
func TestSuiteCanFail(t *testing.T) {
	for promise, bend := range bent() {
		t.Run(string(promise), func(t *testing.T) {
			t.Parallel()
			s := New(Options{})
			t.Cleanup(s.Close)
			var empty *Snapshot
			s.Driver.Do(func(_ clock.Instant, e *Engine) { empty = e.Snapshot() })
			e := storetest.Engine{
				Open:     func(*testing.T) store.Store { return s },
				TTL:      300 * time.Millisecond,
				Settle:   200 * time.Millisecond,
				Restart:  func(*testing.T) { s.Driver.Do(func(now clock.Instant, e *Engine) { e.Restore(now, empty) }) },
				Patience: 2 * time.Second,
			}
			if bend != nil {
				e.Open = func(*testing.T) store.Store { return bend(s) }
			}
			seen := storetest.Check(t, e, promise)[promise]
			if seen == nil {
				t.Fatal("not seen broken")
			}
			first, _, _ := strings.Cut(seen.Error(), "\n")
			t.Log(first)
		})
	}
	covered := bent()
	for _, promise := range planted() {
		covered[promise] = nil
	}
	for _, promise := range storetest.Promises() {
		if _, ok := covered[promise]; !ok {
			t.Errorf("nothing shows that %q can be seen broken", promise)
		}
	}
}

type ignoresRules struct{ store.Ruled }

func (s ignoresRules) Under(uint64) store.Store { return s.Ruled }

// dropsFloors removes a record without a floor.
type dropsFloors struct{ *Store }

func (s dropsFloors) Retire(ctx context.Context, seen store.Record) error {
	s.Driver.Do(func(now clock.Instant, e *Engine) {
		e.Commit(now, kv.Txn{Then: []kv.Write{{Key: "record/" + seen.Group}, {Key: "grant/" + seen.Group}}})
	})
	return nil
}

// retiresAny removes a record in any version.
type retiresAny struct{ *Store }

func (s retiresAny) Retire(ctx context.Context, seen store.Record) error {
	v, err := s.Read(ctx, seen.Group)
	if err != nil {
		return err
	}
	return s.Store.Retire(ctx, v.Record)
}

type dropsMetadata struct{ store.Store }

func (s dropsMetadata) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	c.Metadata = nil
	return s.Store.Open(ctx, c, ttl, o)
}

type forgetsAttempts struct{ store.Store }

func (s forgetsAttempts) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	o.Attempt = ""
	return s.Store.Open(ctx, c, ttl, o)
}

type repeatsIDs struct {
	store.Store
	mu    sync.Mutex
	first store.Session
}

func (s *repeatsIDs) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first.ID != "" {
		return s.first, nil
	}
	n, err := s.Store.Open(ctx, c, ttl, o)
	s.first = n
	return n, err
}

type opensAnew struct{ store.Store }

func (s opensAnew) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	granted, err := s.Store.Acquire(ctx, id, seen...)
	if !errors.Is(err, store.ErrSessionDead) {
		return granted, err
	}
	n, err := s.Store.Open(ctx, tenure.Candidate{ID: "again"}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		return nil, err
	}
	return s.Store.Acquire(ctx, n.ID, seen...)
}

type losesReasons struct{ store.Store }

func (s losesReasons) Release(ctx context.Context, id, to store.SessionID, _ store.Reason, held ...store.Record) ([]store.Record, error) {
	return s.Store.Release(ctx, id, to, "", held...)
}

type hidesConflicts struct{ store.Store }

func (s hidesConflicts) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	granted, err := s.Store.Acquire(ctx, id, seen...)
	if errors.Is(err, store.ErrConflict) {
		err = &store.ConflictError{}
	}
	return granted, err
}

type closesOnce struct{ store.Store }

func (s closesOnce) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	if _, err := s.Store.KeepAlive(ctx, id); err != nil {
		return err
	}
	return s.Store.End(ctx, id, why, seen...)
}

// deniesCancelled makes the call and then says for certain that it did not.
type deniesCancelled struct{ store.Store }

func (s deniesCancelled) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	granted, err := s.Store.Acquire(context.WithoutCancel(ctx), id, seen...)
	if ctx.Err() != nil {
		return nil, store.ErrConflict
	}
	return granted, err
}

type deafRead struct{ store.Store }

func (s deafRead) Read(ctx context.Context, group string) (store.View, error) {
	return s.Store.Read(context.WithoutCancel(ctx), group)
}

type vacantOnError struct{ store.Store }

func (s vacantOnError) Read(ctx context.Context, group string) (store.View, error) {
	v, err := s.Store.Read(ctx, group)
	if err != nil {
		return store.View{Record: store.Record{Group: group}, State: tenure.Vacant}, nil
	}
	return v, nil
}

// oneBehind answers with what it read the time before.
type oneBehind struct {
	store.Store
	last store.View
}

func (s *oneBehind) Read(ctx context.Context, group string) (store.View, error) {
	v, err := s.Store.Read(ctx, group)
	if old := s.last; old.Group == group {
		s.last = v
		return old, err
	}
	s.last = v
	return v, err
}

type anyTTL struct{ store.Store }

func (s anyTTL) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	return s.Store.Open(ctx, c, max(ttl, time.Second), o)
}

// bentWatch turns each update into others. snapshot says that it is still part of the
// beginning.
type bentWatch struct {
	store.Store
	bend func(u store.Update, snapshot bool) []store.Update
}

func (s bentWatch) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		snapshot := true
		for u, err := range s.Store.Watch(ctx, scope) {
			if err != nil {
				yield(u, err)
				return
			}
			updates := []store.Update{u}
			if u.Kind == store.Synced {
				snapshot = false
			} else {
				updates = s.bend(u, snapshot)
			}
			for _, u := range updates {
				if !yield(u, nil) {
					return
				}
			}
		}
	}
}

func ledOnly(u store.Update, snapshot bool) []store.Update {
	if snapshot && u.View.State == tenure.Vacant {
		return nil
	}
	return []store.Update{u}
}

func lastTerm(u store.Update, _ bool) []store.Update {
	if u.Kind == store.GroupChanged {
		u.View.Terms = u.View.Terms[len(u.View.Terms)-1:]
	}
	return []store.Update{u}
}

// falseVacancy takes the end of the giver's session for the end of the term.
func falseVacancy(u store.Update, snapshot bool) []store.Update {
	if snapshot || u.Kind != store.GroupChanged {
		return []store.Update{u}
	}
	early := u
	early.View.State = tenure.Vacant
	return []store.Update{early, u}
}

func losesOne(u store.Update, _ bool) []store.Update {
	if strings.HasSuffix(u.View.Group, "0777") {
		return nil
	}
	return []store.Update{u}
}

func neverEnds(u store.Update, _ bool) []store.Update {
	if u.Kind == store.SessionEnded {
		return nil
	}
	return []store.Update{u}
}

// staleWatch begins with the first view that a watch had of a group.
type staleWatch struct {
	store.Store
	mu    sync.Mutex
	views map[string]store.View
}

func (s *staleWatch) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	return bentWatch{s.Store, func(u store.Update, snapshot bool) []store.Update {
		s.mu.Lock()
		defer s.mu.Unlock()
		if old, ok := s.views[u.View.Group]; ok && snapshot {
			u.View = old
		} else if u.Kind == store.GroupChanged {
			s.views[u.View.Group] = u.View
		}
		return []store.Update{u}
	}}.Watch(ctx, scope)
}

// remembersSessions answers from memory.
type remembersSessions struct {
	store.Store
	mu  sync.Mutex
	all map[store.SessionID]store.Session
}

func (s *remembersSessions) Session(ctx context.Context, id store.SessionID) (store.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.all[id]; ok {
		return known, nil
	}
	n, err := s.Store.Session(ctx, id)
	if err == nil {
		s.all[id] = n
	}
	return n, err
}

type lastRecordFirst struct{ store.Store }

func (s lastRecordFirst) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	b, err := s.Store.KeepAlive(ctx, id, groups...)
	slices.Reverse(b.Records)
	return b, err
}

type closesAnyway struct{ store.Store }

func (s closesAnyway) End(ctx context.Context, id store.SessionID, why store.Reason, _ ...store.Record) error {
	return s.Store.End(ctx, id, why)
}

type releasesSingly struct{ store.Store }

func (s releasesSingly) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	var all []store.Record
	for _, r := range held {
		released, err := s.Store.Release(ctx, id, to, why, r)
		if err != nil {
			return nil, err
		}
		all = append(all, released...)
	}
	return all, nil
}

// believesCallers counts on from the token that the caller says it saw.
type believesCallers struct{ store.Store }

func (s believesCallers) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	granted, err := s.Store.Acquire(ctx, id, seen...)
	for i := range granted {
		granted[i].Token = seen[i].Token + 1
	}
	return granted, err
}

type newestFirst struct{ store.Store }

func (s newestFirst) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	b, err := s.Store.KeepAlive(ctx, id, groups...)
	slices.Reverse(b.Requests)
	return b, err
}

type neverBusy struct{ store.Store }

func (s neverBusy) Ask(ctx context.Context, id store.SessionID, r store.Request) error {
	if err := s.Store.Ask(ctx, id, r); !errors.Is(err, store.ErrBusy) {
		return err
	}
	return nil
}

type unordered struct{ store.Store }

func (s unordered) Groups(ctx context.Context, scope store.Scope, p store.Page) ([]store.View, error) {
	views, err := s.Store.Groups(ctx, scope, p)
	if len(views) > 2 {
		views[0], views[1] = views[1], views[0]
	}
	return views, err
}

type shortHistory struct{ store.Store }

func (s shortHistory) History(ctx context.Context, group string, p store.Page) ([]store.Term, error) {
	terms, err := s.Store.History(ctx, group, p)
	return terms[:min(store.TermsKept, len(terms))], err
}

type lastWriterWins struct{ store.Store }

func (s lastWriterWins) SetAttributes(ctx context.Context, seen store.Attributes) (store.Attributes, error) {
	now, err := s.Store.Attributes(ctx, seen.Name)
	if err != nil {
		return now, err
	}
	seen.Version = now.Version
	return s.Store.SetAttributes(ctx, seen)
}

// keepsRemoved keeps a removed attribute.
type keepsRemoved struct{ store.Store }

func (s keepsRemoved) SetAttributes(ctx context.Context, a store.Attributes) (store.Attributes, error) {
	if len(a.Values) == 0 {
		a.Values = map[string]string{"removed": "yes"}
	}
	return s.Store.SetAttributes(ctx, a)
}

type unpagedAttributes struct{ store.Store }

func (s unpagedAttributes) ListAttributes(ctx context.Context, prefix string, p store.Page) ([]store.Attributes, error) {
	return s.Store.ListAttributes(ctx, prefix, store.Page{Limit: p.Limit})
}

// twoWinners tells one who came too late that it won.
type twoWinners struct{ store.Store }

func (s twoWinners) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	granted, err := s.Store.Acquire(ctx, id, seen...)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) && len(conflict.Current) == 1 {
		return []store.Record{conflict.Current[0].Record}, nil
	}
	return granted, err
}

type ignoresReports struct{ store.Store }

func (ignoresReports) Suspect(context.Context, string, fence.Token) error { return nil }

type forgetsEpoch struct{ store.Store }

func (s forgetsEpoch) RaiseEpoch(ctx context.Context, to uint64) (store.Meta, error) {
	m, err := s.Store.Meta(ctx)
	m.Epoch = to
	return m, err
}

type expiresLate struct{ store.Store }

func (s expiresLate) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	return s.Store.Open(ctx, c, 4*ttl, o)
}

func (s expiresLate) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	b, err := s.Store.KeepAlive(ctx, id, groups...)
	b.TTL /= 4
	return b, err
}
