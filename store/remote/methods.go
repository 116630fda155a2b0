package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// Open implements store.Store.
func (s *Store) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	in := wire.OpenCall{Candidate: c, TTL: wire.Asked(ttl), Scope: o.Scope, Instance: o.Instance, Attempt: o.Attempt, Fenced: o.Fenced, Successor: o.Successor}
	a, err := call[wire.Session](ctx, s, wire.Open, in)
	var bad *store.ArgumentError
	if errors.As(err, &bad) && bad.Field == "body" {
		// An older service does not know these fields and has refused the call.
		in.Instance, in.Attempt, in.Fenced, in.Successor = "", "", false, false
		a, err = call[wire.Session](ctx, s, wire.Open, in)
	}
	return a.Lease(), err
}

// Session implements store.Store.
func (s *Store) Session(ctx context.Context, id store.SessionID) (store.Session, error) {
	a, err := call[wire.Session](ctx, s, wire.FindSession, wire.SessionCall{Session: id})
	return a.Lease(), err
}

// KeepAlive implements store.Store.
func (s *Store) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	a, err := call[wire.Beat](ctx, s, wire.KeepAlive, wire.KeepAliveCall{Session: id, Groups: groups})
	if err == nil {
		err = count(wire.KeepAlive, a.Records, len(groups))
	}
	if err != nil {
		return store.Beat{}, err
	}
	return a.Lease(), nil
}

// End implements store.Store.
func (s *Store) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	_, err := call[wire.Nothing](ctx, s, wire.Close, wire.CloseCall{Session: id, Reason: why, Seen: wire.Each(seen, wire.SeenOf)})
	return err
}

// Acquire implements store.Store.
func (s *Store) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	return s.records(ctx, wire.Acquire, wire.AcquireCall{Session: id, Seen: wire.Each(seen, wire.SeenOf)}, len(seen))
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	return s.records(ctx, wire.Release, wire.ReleaseCall{Session: id, Held: wire.Each(held, wire.SeenOf), To: to, Reason: why}, len(held))
}

// records makes a call whose answer must have so many records.
func (s *Store) records(ctx context.Context, m wire.Method, in any, want int) ([]store.Record, error) {
	a, err := call[wire.RecordsAnswer](ctx, s, m, in)
	if err == nil {
		err = count(m, a.Records, want)
	}
	if err != nil {
		return nil, err
	}
	return a.Records, nil
}

func count(m wire.Method, got []store.Record, want int) error {
	if len(got) != want {
		return fmt.Errorf("remote: %s: the answer has %d records, want %d", m, len(got), want)
	}
	return nil
}

// Ask implements store.Store.
func (s *Store) Ask(ctx context.Context, id store.SessionID, r store.Request) error {
	_, err := call[wire.Nothing](ctx, s, wire.Ask, wire.AskCall{Session: id, Request: wire.RequestOf(r)})
	return err
}

// Answer implements store.Store.
func (s *Store) Answer(ctx context.Context, id store.SessionID, request string, a store.Answer) error {
	_, err := call[wire.Nothing](ctx, s, wire.Answer, wire.AnswerCall{Session: id, Request: request, Outcome: a.Outcome, Detail: a.Detail})
	return err
}

// Answered implements store.Store.
func (s *Store) Answered(ctx context.Context, id store.SessionID, request string) (store.Answer, error) {
	return call[store.Answer](ctx, s, wire.Answered, wire.AnsweredCall{Session: id, Request: request})
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, group string) (store.View, error) {
	a, err := call[wire.View](ctx, s, wire.Read, wire.ReadCall{Group: group})
	if err != nil {
		return store.View{}, err
	}
	v, err := a.Lease()
	return v, wrap(wire.Read, err)
}

// Groups implements store.Store.
func (s *Store) Groups(ctx context.Context, scope store.Scope, p store.Page) ([]store.View, error) {
	a, err := call[wire.GroupsAnswer](ctx, s, wire.Groups, wire.ListCall{Scope: scope, Page: wire.Page(p)})
	if err != nil {
		return nil, err
	}
	views, err := wire.LeaseViews(a.Groups)
	return views, wrap(wire.Groups, err)
}

// Sessions implements store.Store.
func (s *Store) Sessions(ctx context.Context, scope store.Scope, p store.Page) ([]store.Session, error) {
	a, err := call[wire.SessionsAnswer](ctx, s, wire.Sessions, wire.ListCall{Scope: scope, Page: wire.Page(p)})
	return wire.Each(a.Sessions, wire.Session.Lease), err
}

// History implements store.Store.
func (s *Store) History(ctx context.Context, group string, p store.Page) ([]store.Term, error) {
	a, err := call[wire.HistoryAnswer](ctx, s, wire.History, wire.HistoryCall{Group: group, Page: wire.Page(p)})
	return a.Terms, err
}

// Meta implements store.Store.
func (s *Store) Meta(ctx context.Context) (store.Meta, error) {
	return call[store.Meta](ctx, s, wire.Meta, wire.Nothing{})
}

// RaiseEpoch implements store.Store.
func (s *Store) RaiseEpoch(ctx context.Context, to uint64) (store.Meta, error) {
	return call[store.Meta](ctx, s, wire.RaiseEpoch, wire.EpochCall{To: to})
}

// Suspect implements store.Store.
func (s *Store) Suspect(ctx context.Context, group string, seen fence.Token) error {
	_, err := call[wire.Nothing](ctx, s, wire.Suspect, wire.SuspectCall{Group: group, Seen: seen})
	return err
}

// Attributes implements store.Store.
func (s *Store) Attributes(ctx context.Context, name string) (store.Attributes, error) {
	return call[store.Attributes](ctx, s, wire.Attributes, wire.AttributesCall{Name: name})
}

// ListAttributes implements store.Store.
func (s *Store) ListAttributes(ctx context.Context, prefix string, p store.Page) ([]store.Attributes, error) {
	a, err := call[wire.AttributesAnswer](ctx, s, wire.ListAttributes, wire.ListAttributesCall{Prefix: prefix, Page: wire.Page(p)})
	return a.Attributes, err
}

// SetAttributes implements store.Store.
func (s *Store) SetAttributes(ctx context.Context, seen store.Attributes) (store.Attributes, error) {
	return call[store.Attributes](ctx, s, wire.SetAttributes, seen)
}
