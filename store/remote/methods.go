package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// Open implements lease.Store.
func (s *Store) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	in := wire.OpenCall{Candidate: c, TTL: wire.Asked(ttl), Scope: o.Scope, Instance: o.Instance, Attempt: o.Attempt, Fenced: o.Fenced}
	a, err := call[wire.Session](ctx, s, wire.Open, in)
	var bad *lease.ArgumentError
	if errors.As(err, &bad) && bad.Field == "body" {
		// A service of the version before knows no instances, and has done nothing.
		in.Instance, in.Attempt, in.Fenced = "", "", false
		a, err = call[wire.Session](ctx, s, wire.Open, in)
	}
	if err != nil {
		return lease.Session{}, err
	}
	return a.Lease(), nil
}

// Session implements lease.Store.
func (s *Store) Session(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	a, err := call[wire.Session](ctx, s, wire.FindSession, wire.SessionCall{Session: id})
	if err != nil {
		return lease.Session{}, err
	}
	return a.Lease(), nil
}

// KeepAlive implements lease.Store.
func (s *Store) KeepAlive(ctx context.Context, id lease.SessionID, groups ...string) (lease.Beat, error) {
	a, err := call[wire.Beat](ctx, s, wire.KeepAlive, wire.KeepAliveCall{Session: id, Groups: groups})
	if err == nil && len(a.Records) != len(groups) {
		err = fmt.Errorf("remote: keep-alive: %d records are answered for %d groups", len(a.Records), len(groups))
	}
	if err != nil {
		return lease.Beat{}, err
	}
	return a.Lease(), nil
}

// Close implements lease.Store.
func (s *Store) Close(ctx context.Context, id lease.SessionID, why lease.Reason, seen ...lease.Record) error {
	_, err := call[wire.Nothing](ctx, s, wire.Close, wire.CloseCall{Session: id, Reason: why, Seen: wire.SeenAll(seen)})
	return err
}

// Acquire implements lease.Store.
func (s *Store) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	return s.records(ctx, wire.Acquire, wire.AcquireCall{Session: id, Seen: wire.SeenAll(seen)}, len(seen))
}

// Release implements lease.Store.
func (s *Store) Release(ctx context.Context, id, to lease.SessionID, why lease.Reason, held ...lease.Record) ([]lease.Record, error) {
	return s.records(ctx, wire.Release, wire.ReleaseCall{Session: id, Held: wire.SeenAll(held), To: to, Reason: why}, len(held))
}

// records makes a call that answers with so many records.
func (s *Store) records(ctx context.Context, m wire.Method, in any, want int) ([]lease.Record, error) {
	a, err := call[wire.RecordsAnswer](ctx, s, m, in)
	if err != nil {
		return nil, err
	}
	if len(a.Records) != want {
		return nil, fmt.Errorf("remote: %s: %d records are answered for %d", m, len(a.Records), want)
	}
	return wire.LeaseRecords(a.Records), nil
}

// Ask implements lease.Store.
func (s *Store) Ask(ctx context.Context, id lease.SessionID, r lease.Request) error {
	_, err := call[wire.Nothing](ctx, s, wire.Ask, wire.AskCall{Session: id, Request: wire.RequestOf(r)})
	return err
}

// Answer implements lease.Store.
func (s *Store) Answer(ctx context.Context, id lease.SessionID, request string, a lease.Answer) error {
	_, err := call[wire.Nothing](ctx, s, wire.Answer, wire.AnswerCall{Session: id, Request: request, Outcome: a.Outcome, Detail: a.Detail})
	return err
}

// Answered implements lease.Store.
func (s *Store) Answered(ctx context.Context, id lease.SessionID, request string) (lease.Answer, error) {
	a, err := call[wire.AnsweredAnswer](ctx, s, wire.Answered, wire.AnsweredCall{Session: id, Request: request})
	if err != nil {
		return lease.Answer{}, err
	}
	return lease.Answer(a), nil
}

// Read implements lease.Store.
func (s *Store) Read(ctx context.Context, group string) (lease.View, error) {
	a, err := call[wire.View](ctx, s, wire.Read, wire.ReadCall{Group: group})
	if err != nil {
		return lease.View{}, err
	}
	v, err := a.Lease()
	return v, wrap(wire.Read, err)
}

// Groups implements lease.Store.
func (s *Store) Groups(ctx context.Context, scope lease.Scope, p lease.Page) ([]lease.View, error) {
	a, err := call[wire.GroupsAnswer](ctx, s, wire.Groups, wire.ListCall{Scope: scope, After: p.After, Limit: p.Limit})
	if err != nil {
		return nil, err
	}
	views, err := wire.LeaseViews(a.Groups)
	return views, wrap(wire.Groups, err)
}

// Sessions implements lease.Store.
func (s *Store) Sessions(ctx context.Context, scope lease.Scope, p lease.Page) ([]lease.Session, error) {
	a, err := call[wire.SessionsAnswer](ctx, s, wire.Sessions, wire.ListCall{Scope: scope, After: p.After, Limit: p.Limit})
	if err != nil {
		return nil, err
	}
	return wire.LeaseSessions(a.Sessions), nil
}

// History implements lease.Store.
func (s *Store) History(ctx context.Context, group string, p lease.Page) ([]lease.Term, error) {
	a, err := call[wire.HistoryAnswer](ctx, s, wire.History, wire.HistoryCall{Group: group, After: p.After, Limit: p.Limit})
	if err != nil {
		return nil, err
	}
	return wire.LeaseTerms(a.Terms), nil
}

// Meta implements lease.Store.
func (s *Store) Meta(ctx context.Context) (lease.Meta, error) {
	a, err := call[wire.MetaAnswer](ctx, s, wire.Meta, wire.Nothing{})
	if err != nil {
		return lease.Meta{}, err
	}
	return lease.Meta(a), nil
}

// RaiseEpoch implements lease.Store.
func (s *Store) RaiseEpoch(ctx context.Context, to uint64) (lease.Meta, error) {
	a, err := call[wire.MetaAnswer](ctx, s, wire.RaiseEpoch, wire.EpochCall{To: to})
	if err != nil {
		return lease.Meta{}, err
	}
	return lease.Meta(a), nil
}

// Suspect implements lease.Store.
func (s *Store) Suspect(ctx context.Context, group string, seen fence.Token) error {
	_, err := call[wire.Nothing](ctx, s, wire.Suspect, wire.SuspectCall{Group: group, Seen: seen})
	return err
}

// Attributes implements lease.Store.
func (s *Store) Attributes(ctx context.Context, name string) (lease.Attributes, error) {
	a, err := call[wire.AttributesBody](ctx, s, wire.Attributes, wire.AttributesCall{Name: name})
	if err != nil {
		return lease.Attributes{}, err
	}
	return a.Lease(), nil
}

// SetAttributes implements lease.Store.
func (s *Store) SetAttributes(ctx context.Context, seen lease.Attributes) (lease.Attributes, error) {
	a, err := call[wire.AttributesBody](ctx, s, wire.SetAttributes, wire.AttributesOf(seen))
	if err != nil {
		return lease.Attributes{}, err
	}
	return a.Lease(), nil
}
