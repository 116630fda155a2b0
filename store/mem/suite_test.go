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
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/lease/storetest"
)

// planted names, for each bug of a store, the promise that is about it. Others
// may see it as well.
func planted() map[plant.Bug]storetest.Promise {
	return map[plant.Bug]storetest.Promise{
		plant.TokenReset:         storetest.TokensSurvive,
		plant.TokenNotRaised:     storetest.TokensIncrease,
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
func bent() map[storetest.Promise]func(lease.Store) lease.Store {
	return map[storetest.Promise]func(lease.Store) lease.Store{
		storetest.SessionAsOpened:    func(s lease.Store) lease.Store { return dropsMetadata{s} },
		storetest.OpenRetried:        func(s lease.Store) lease.Store { return forgetsAttempts{s} },
		storetest.SessionIDsUnique:   func(s lease.Store) lease.Store { return &repeatsIDs{Store: s} },
		storetest.DeadNeverLeads:     func(s lease.Store) lease.Store { return opensAnew{s} },
		storetest.RecordsTellTerms:   func(s lease.Store) lease.Store { return losesReasons{s} },
		storetest.ConflictShows:      func(s lease.Store) lease.Store { return hidesConflicts{s} },
		storetest.LostRepliesResolve: func(s lease.Store) lease.Store { return closesOnce{s} },
		storetest.CancelNoOrphan:     func(s lease.Store) lease.Store { return deniesCancelled{s} },
		storetest.ContextObeyed:      func(s lease.Store) lease.Store { return deafRead{s} },
		storetest.UnknownNotVacant:   func(s lease.Store) lease.Store { return vacantOnError{s} },
		storetest.ReadsLinearizable:  func(s lease.Store) lease.Store { return &oneBehind{Store: s} },
		storetest.ArgumentsRefused:   func(s lease.Store) lease.Store { return anyTTL{s} },
		storetest.WatchSnapshot:      func(s lease.Store) lease.Store { return bentWatch{s, ledOnly} },
		storetest.WatchMissesNoTerm:  func(s lease.Store) lease.Store { return bentWatch{s, lastTerm} },
		storetest.WatchTransfer:      func(s lease.Store) lease.Store { return bentWatch{s, falseVacancy} },
		storetest.OneCloseVacatesAll: func(s lease.Store) lease.Store { return bentWatch{s, losesOne} },
		storetest.RequestsArrive:     func(s lease.Store) lease.Store { return newestFirst{s} },
		storetest.RequestsEnd:        func(s lease.Store) lease.Store { return neverBusy{s} },
		storetest.ListsInOrder:       func(s lease.Store) lease.Store { return unordered{s} },
		storetest.HistoryReaches:     func(s lease.Store) lease.Store { return shortHistory{s} },
		storetest.AttributesCompared: func(s lease.Store) lease.Store { return lastWriterWins{s} },
		storetest.AttributesListed:   func(s lease.Store) lease.Store { return unpagedAttributes{s} },
		storetest.OneWinner:          func(s lease.Store) lease.Store { return twoWinners{s} },
		storetest.EpochRaised:        func(s lease.Store) lease.Store { return forgetsEpoch{s} },
		storetest.SuspectStops:       func(s lease.Store) lease.Store { return ignoresReports{s} },
		storetest.TTLKept:            func(s lease.Store) lease.Store { return expiresLate{s} },
		storetest.SessionRead: func(s lease.Store) lease.Store {
			return &remembersSessions{Store: s, all: map[lease.SessionID]lease.Session{}}
		},
		storetest.BeatShowsRecords:   func(s lease.Store) lease.Store { return lastRecordFirst{s} },
		storetest.CloseCompares:      func(s lease.Store) lease.Store { return closesAnyway{s} },
		storetest.ReleaseBatch:       func(s lease.Store) lease.Store { return releasesSingly{s} },
		storetest.TokenFromStore:     func(s lease.Store) lease.Store { return believesCallers{s} },
		storetest.WatchSessions:      func(s lease.Store) lease.Store { return bentWatch{s, neverEnds} },
		storetest.WatchLinearizable:  func(s lease.Store) lease.Store { return &staleWatch{Store: s, views: map[string]lease.View{}} },
		storetest.RulesCompared:      func(s lease.Store) lease.Store { return ignoresRules{s.(lease.Ruled)} },
		storetest.NoGrantAgainstRule: func(s lease.Store) lease.Store { return ignoresRules{s.(lease.Ruled)} },
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
			t.Cleanup(s.Shutdown)
			var empty *Snapshot
			s.Driver.Do(func(_ clock.Instant, e *Engine) { empty = e.Snapshot() })
			e := storetest.Engine{
				Open:     func(*testing.T) lease.Store { return s },
				TTL:      300 * time.Millisecond,
				Settle:   200 * time.Millisecond,
				Restart:  func(*testing.T) { s.Driver.Do(func(now clock.Instant, e *Engine) { e.Restore(now, empty) }) },
				Patience: 2 * time.Second,
			}
			if bend != nil {
				e.Open = func(*testing.T) lease.Store { return bend(s) }
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

type ignoresRules struct{ lease.Ruled }

func (s ignoresRules) Under(uint64) lease.Store { return s.Ruled }

type dropsMetadata struct{ lease.Store }

func (s dropsMetadata) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	c.Metadata = nil
	return s.Store.Open(ctx, c, ttl, o)
}

type forgetsAttempts struct{ lease.Store }

func (s forgetsAttempts) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	o.Attempt = ""
	return s.Store.Open(ctx, c, ttl, o)
}

type repeatsIDs struct {
	lease.Store
	mu    sync.Mutex
	first lease.Session
}

func (s *repeatsIDs) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first.ID != "" {
		return s.first, nil
	}
	n, err := s.Store.Open(ctx, c, ttl, o)
	s.first = n
	return n, err
}

type opensAnew struct{ lease.Store }

func (s opensAnew) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	granted, err := s.Store.Acquire(ctx, id, seen...)
	if !errors.Is(err, lease.ErrSessionDead) {
		return granted, err
	}
	n, err := s.Store.Open(ctx, tenure.Candidate{ID: "again"}, time.Minute, lease.OpenOptions{Scope: lease.Scope{"*"}})
	if err != nil {
		return nil, err
	}
	return s.Store.Acquire(ctx, n.ID, seen...)
}

type losesReasons struct{ lease.Store }

func (s losesReasons) Release(ctx context.Context, id, to lease.SessionID, _ lease.Reason, held ...lease.Record) ([]lease.Record, error) {
	return s.Store.Release(ctx, id, to, "", held...)
}

type hidesConflicts struct{ lease.Store }

func (s hidesConflicts) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	granted, err := s.Store.Acquire(ctx, id, seen...)
	if errors.Is(err, lease.ErrConflict) {
		err = &lease.ConflictError{}
	}
	return granted, err
}

type closesOnce struct{ lease.Store }

func (s closesOnce) Close(ctx context.Context, id lease.SessionID, why lease.Reason, seen ...lease.Record) error {
	if _, err := s.Store.KeepAlive(ctx, id); err != nil {
		return err
	}
	return s.Store.Close(ctx, id, why, seen...)
}

// deniesCancelled makes the call and then says for certain that it did not.
type deniesCancelled struct{ lease.Store }

func (s deniesCancelled) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	granted, err := s.Store.Acquire(context.WithoutCancel(ctx), id, seen...)
	if ctx.Err() != nil {
		return nil, lease.ErrConflict
	}
	return granted, err
}

type deafRead struct{ lease.Store }

func (s deafRead) Read(ctx context.Context, group string) (lease.View, error) {
	return s.Store.Read(context.WithoutCancel(ctx), group)
}

type vacantOnError struct{ lease.Store }

func (s vacantOnError) Read(ctx context.Context, group string) (lease.View, error) {
	v, err := s.Store.Read(ctx, group)
	if err != nil {
		return lease.View{Record: lease.Record{Group: group}, State: tenure.Vacant}, nil
	}
	return v, nil
}

// oneBehind answers with what it read the time before.
type oneBehind struct {
	lease.Store
	last lease.View
}

func (s *oneBehind) Read(ctx context.Context, group string) (lease.View, error) {
	v, err := s.Store.Read(ctx, group)
	if old := s.last; old.Group == group {
		s.last = v
		return old, err
	}
	s.last = v
	return v, err
}

type anyTTL struct{ lease.Store }

func (s anyTTL) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	return s.Store.Open(ctx, c, max(ttl, time.Second), o)
}

// bentWatch turns each update into others. snapshot says that it is still part of the
// beginning.
type bentWatch struct {
	lease.Store
	bend func(u lease.Update, snapshot bool) []lease.Update
}

func (s bentWatch) Watch(ctx context.Context, scope lease.Scope) iter.Seq2[lease.Update, error] {
	return func(yield func(lease.Update, error) bool) {
		snapshot := true
		for u, err := range s.Store.Watch(ctx, scope) {
			if err != nil {
				yield(u, err)
				return
			}
			updates := []lease.Update{u}
			if u.Kind == lease.Synced {
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

func ledOnly(u lease.Update, snapshot bool) []lease.Update {
	if snapshot && u.View.State == tenure.Vacant {
		return nil
	}
	return []lease.Update{u}
}

func lastTerm(u lease.Update, _ bool) []lease.Update {
	if u.Kind == lease.GroupChanged {
		u.View.Terms = u.View.Terms[len(u.View.Terms)-1:]
	}
	return []lease.Update{u}
}

// falseVacancy takes the end of the giver's session for the end of the term.
func falseVacancy(u lease.Update, snapshot bool) []lease.Update {
	if snapshot || u.Kind != lease.GroupChanged {
		return []lease.Update{u}
	}
	early := u
	early.View.State = tenure.Vacant
	return []lease.Update{early, u}
}

func losesOne(u lease.Update, _ bool) []lease.Update {
	if strings.HasSuffix(u.View.Group, "0777") {
		return nil
	}
	return []lease.Update{u}
}

func neverEnds(u lease.Update, _ bool) []lease.Update {
	if u.Kind == lease.SessionEnded {
		return nil
	}
	return []lease.Update{u}
}

// staleWatch begins with the first view that a watch had of a group.
type staleWatch struct {
	lease.Store
	mu    sync.Mutex
	views map[string]lease.View
}

func (s *staleWatch) Watch(ctx context.Context, scope lease.Scope) iter.Seq2[lease.Update, error] {
	return bentWatch{s.Store, func(u lease.Update, snapshot bool) []lease.Update {
		s.mu.Lock()
		defer s.mu.Unlock()
		if old, ok := s.views[u.View.Group]; ok && snapshot {
			u.View = old
		} else if u.Kind == lease.GroupChanged {
			s.views[u.View.Group] = u.View
		}
		return []lease.Update{u}
	}}.Watch(ctx, scope)
}

// remembersSessions answers from memory.
type remembersSessions struct {
	lease.Store
	mu  sync.Mutex
	all map[lease.SessionID]lease.Session
}

func (s *remembersSessions) Session(ctx context.Context, id lease.SessionID) (lease.Session, error) {
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

type lastRecordFirst struct{ lease.Store }

func (s lastRecordFirst) KeepAlive(ctx context.Context, id lease.SessionID, groups ...string) (lease.Beat, error) {
	b, err := s.Store.KeepAlive(ctx, id, groups...)
	slices.Reverse(b.Records)
	return b, err
}

type closesAnyway struct{ lease.Store }

func (s closesAnyway) Close(ctx context.Context, id lease.SessionID, why lease.Reason, _ ...lease.Record) error {
	return s.Store.Close(ctx, id, why)
}

type releasesSingly struct{ lease.Store }

func (s releasesSingly) Release(ctx context.Context, id, to lease.SessionID, why lease.Reason, held ...lease.Record) ([]lease.Record, error) {
	var all []lease.Record
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
type believesCallers struct{ lease.Store }

func (s believesCallers) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	granted, err := s.Store.Acquire(ctx, id, seen...)
	for i := range granted {
		granted[i].Token = seen[i].Token + 1
	}
	return granted, err
}

type newestFirst struct{ lease.Store }

func (s newestFirst) KeepAlive(ctx context.Context, id lease.SessionID, groups ...string) (lease.Beat, error) {
	b, err := s.Store.KeepAlive(ctx, id, groups...)
	slices.Reverse(b.Requests)
	return b, err
}

type neverBusy struct{ lease.Store }

func (s neverBusy) Ask(ctx context.Context, id lease.SessionID, r lease.Request) error {
	if err := s.Store.Ask(ctx, id, r); !errors.Is(err, lease.ErrBusy) {
		return err
	}
	return nil
}

type unordered struct{ lease.Store }

func (s unordered) Groups(ctx context.Context, scope lease.Scope, p lease.Page) ([]lease.View, error) {
	views, err := s.Store.Groups(ctx, scope, p)
	if len(views) > 2 {
		views[0], views[1] = views[1], views[0]
	}
	return views, err
}

type shortHistory struct{ lease.Store }

func (s shortHistory) History(ctx context.Context, group string, p lease.Page) ([]lease.Term, error) {
	terms, err := s.Store.History(ctx, group, p)
	return terms[:min(lease.TermsKept, len(terms))], err
}

type lastWriterWins struct{ lease.Store }

func (s lastWriterWins) SetAttributes(ctx context.Context, seen lease.Attributes) (lease.Attributes, error) {
	now, err := s.Store.Attributes(ctx, seen.Name)
	if err != nil {
		return now, err
	}
	seen.Version = now.Version
	return s.Store.SetAttributes(ctx, seen)
}

type unpagedAttributes struct{ lease.Store }

func (s unpagedAttributes) ListAttributes(ctx context.Context, prefix string, p lease.Page) ([]lease.Attributes, error) {
	return s.Store.ListAttributes(ctx, prefix, lease.Page{Limit: p.Limit})
}

// twoWinners tells one who came too late that it won.
type twoWinners struct{ lease.Store }

func (s twoWinners) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	granted, err := s.Store.Acquire(ctx, id, seen...)
	var conflict *lease.ConflictError
	if errors.As(err, &conflict) && len(conflict.Current) == 1 {
		return []lease.Record{conflict.Current[0].Record}, nil
	}
	return granted, err
}

type ignoresReports struct{ lease.Store }

func (ignoresReports) Suspect(context.Context, string, fence.Token) error { return nil }

type forgetsEpoch struct{ lease.Store }

func (s forgetsEpoch) RaiseEpoch(ctx context.Context, to uint64) (lease.Meta, error) {
	m, err := s.Store.Meta(ctx)
	m.Epoch = to
	return m, err
}

type expiresLate struct{ lease.Store }

func (s expiresLate) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	return s.Store.Open(ctx, c, 4*ttl, o)
}

func (s expiresLate) KeepAlive(ctx context.Context, id lease.SessionID, groups ...string) (lease.Beat, error) {
	b, err := s.Store.KeepAlive(ctx, id, groups...)
	b.TTL /= 4
	return b, err
}
