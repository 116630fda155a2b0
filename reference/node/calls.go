package node

import (
	"context"
	"iter"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/store"
)

// counted counts and traces the calls to a store: what an election costs the engine.
type counted struct {
	store.Store
	n *Node
}

func (c counted) calls(what string) {
	c.n.metrics.calls.WithLabelValues(what).Inc()
	c.n.trace(Event{Kind: api.TraceCall, At: c.n.host.Now(), What: what})
}

func (c counted) Open(ctx context.Context, who tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	c.calls(api.CallOpen)
	return c.Store.Open(ctx, who, ttl, o)
}

func (c counted) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	c.calls(api.CallKeepAlive)
	return c.Store.KeepAlive(ctx, id, groups...)
}

func (c counted) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	c.calls(api.CallClose)
	return c.Store.End(ctx, id, why, seen...)
}

func (c counted) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	c.calls(api.CallAcquire)
	return c.Store.Acquire(ctx, id, seen...)
}

func (c counted) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	c.calls(api.CallRelease)
	return c.Store.Release(ctx, id, to, why, held...)
}

func (c counted) Read(ctx context.Context, group string) (store.View, error) {
	c.calls(api.CallRead)
	return c.Store.Read(ctx, group)
}

func (c counted) Sessions(ctx context.Context, scope store.Scope, p store.Page) ([]store.Session, error) {
	c.calls(api.CallLine)
	return c.Store.Sessions(ctx, scope, p)
}

func (c counted) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	c.calls(api.CallWatch)
	return c.Store.Watch(ctx, scope)
}
