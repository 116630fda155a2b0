package mem_test

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
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/lease/storetest"
	"github.com/tenurehq/tenure/store/mem"
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
		storetest.OneWinner:          func(s lease.Store) lease.Store { return twoWinners{s} },
		storetest.EpochRaised:        func(s lease.Store) lease.Store { return forgetsEpoch{s} },
		storetest.SuspectStops:       func(s lease.Store) lease.Store { return ignoresReports{s} },
		storetest.TTLKept:            func(s lease.Store) lease.Store { return expiresLate{s} },
		storetest.TokensSurviveStart: nil, // see below: it is the restart that breaks it
	}
}

// Every promise can be seen broken: by a store that breaks it here, or by a bug
// that is planted.
func TestSuiteCanFail(t *testing.T) {
	for promise, bend := range bent() {
		t.Run(string(promise), func(t *testing.T) {
			t.Parallel()
			s := mem.New(mem.Options{})
			t.Cleanup(s.Shutdown)
			empty := s.Snapshot()
			e := storetest.Engine{
				Open:     func(*testing.T) lease.Store { return s },
				TTL:      300 * time.Millisecond,
				Settle:   200 * time.Millisecond,
				Restart:  func(*testing.T) { s.Restore(empty) },
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

func (s losesReasons) Release(ctx context.Context, id lease.SessionID, held lease.Record, to lease.SessionID, _ lease.Reason) (lease.Record, error) {
	return s.Store.Release(ctx, id, held, to, "")
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

func (s closesOnce) Close(ctx context.Context, id lease.SessionID, why lease.Reason) error {
	if _, err := s.Store.KeepAlive(ctx, id); err != nil {
		return err
	}
	return s.Store.Close(ctx, id, why)
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

// bentWatch turns each view into others. snapshot says that it is still part of
// the beginning.
type bentWatch struct {
	lease.Store
	bend func(v lease.View, snapshot bool) []lease.View
}

func (s bentWatch) Watch(ctx context.Context, scope lease.Scope) iter.Seq2[lease.View, error] {
	return func(yield func(lease.View, error) bool) {
		snapshot := true
		for v, err := range s.Store.Watch(ctx, scope) {
			if err != nil {
				yield(v, err)
				return
			}
			views := []lease.View{v}
			if v.Group == "" {
				snapshot = false
			} else {
				views = s.bend(v, snapshot)
			}
			for _, v := range views {
				if !yield(v, nil) {
					return
				}
			}
		}
	}
}

func ledOnly(v lease.View, snapshot bool) []lease.View {
	if snapshot && v.State == tenure.Vacant {
		return nil
	}
	return []lease.View{v}
}

func lastTerm(v lease.View, _ bool) []lease.View {
	v.Terms = v.Terms[len(v.Terms)-1:]
	return []lease.View{v}
}

// falseVacancy takes the end of the giver's session for the end of the term.
func falseVacancy(v lease.View, snapshot bool) []lease.View {
	if snapshot {
		return []lease.View{v}
	}
	early := v
	early.State = tenure.Vacant
	return []lease.View{early, v}
}

func losesOne(v lease.View, _ bool) []lease.View {
	if strings.HasSuffix(v.Group, "0777") {
		return nil
	}
	return []lease.View{v}
}

type newestFirst struct{ lease.Store }

func (s newestFirst) KeepAlive(ctx context.Context, id lease.SessionID) (lease.Beat, error) {
	b, err := s.Store.KeepAlive(ctx, id)
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

func (s expiresLate) KeepAlive(ctx context.Context, id lease.SessionID) (lease.Beat, error) {
	b, err := s.Store.KeepAlive(ctx, id)
	b.TTL /= 4
	return b, err
}
