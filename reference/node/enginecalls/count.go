// Package enginecalls counts the calls to a store.
package enginecalls

import (
	"context"
	"iter"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/store"
)

// Count returns the store. It reports each call before it is made: what an election costs the
// engine.
func Count(st store.Store, called func(what string)) store.Store { return counted{st, called} }

type counted struct {
	store.Store
	called func(what string)
}

func (c counted) Open(ctx context.Context, who tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	c.called(api.CallOpen)
	return c.Store.Open(ctx, who, ttl, o)
}

func (c counted) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	c.called(api.CallKeepAlive)
	return c.Store.KeepAlive(ctx, id, groups...)
}

func (c counted) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	c.called(api.CallClose)
	return c.Store.End(ctx, id, why, seen...)
}

func (c counted) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	c.called(api.CallAcquire)
	return c.Store.Acquire(ctx, id, seen...)
}

func (c counted) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	c.called(api.CallRelease)
	return c.Store.Release(ctx, id, to, why, held...)
}

func (c counted) Read(ctx context.Context, group string) (store.View, error) {
	c.called(api.CallRead)
	return c.Store.Read(ctx, group)
}

func (c counted) Sessions(ctx context.Context, scope store.Scope, p store.Page) ([]store.Session, error) {
	c.called(api.CallLine)
	return c.Store.Sessions(ctx, scope, p)
}

func (c counted) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	c.called(api.CallWatch)
	return c.Store.Watch(ctx, scope)
}
