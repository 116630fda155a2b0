package service

import (
	"context"
	"errors"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// engine is the store of an instance. It bounds and measures calls.
type engine struct {
	store.Store
	s *Service
}

func bounded[T any](ctx context.Context, e engine, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := e.s.call(ctx)
	defer cancel()
	sent := e.s.clock.Now()
	got, err := f(ctx)
	e.s.metrics.EngineCall(e.s.clock.Now().Sub(sent), err)
	return got, err
}

func (e engine) Session(ctx context.Context, id store.SessionID) (store.Session, error) {
	return bounded(ctx, e, func(ctx context.Context) (store.Session, error) { return e.Store.Session(ctx, id) })
}

func (e engine) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	sent := e.s.clock.Now()
	beat, err := bounded(ctx, e, func(ctx context.Context) (store.Beat, error) { return e.Store.KeepAlive(ctx, id, groups...) })
	if err == nil {
		e.s.sessions.Beaten(id, sent, beat.TTL)
	}
	return beat, err
}

func (e engine) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	_, err := bounded(ctx, e, func(ctx context.Context) (any, error) { return nil, e.Store.End(ctx, id, why, seen...) })
	if err == nil {
		e.s.sessions.Closed(id)
	}
	return err
}

func (e engine) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	granted, err := bounded(ctx, e, func(ctx context.Context) ([]store.Record, error) { return e.Store.Acquire(ctx, id, seen...) })
	e.s.spans.Granted(granted...)
	return granted, err
}

func (e engine) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	released, err := bounded(ctx, e, func(ctx context.Context) ([]store.Record, error) { return e.Store.Release(ctx, id, to, why, held...) })
	if to != "" {
		e.s.spans.Granted(released...)
	}
	return released, err
}

func (e engine) Answer(ctx context.Context, id store.SessionID, request string, a store.Answer) error {
	_, err := bounded(ctx, e, func(ctx context.Context) (any, error) { return nil, e.Store.Answer(ctx, id, request, a) })
	return err
}

// Read shares reads of a group.
func (e engine) Read(ctx context.Context, group string) (store.View, error) {
	a, err := e.s.reader.Read(ctx, group)
	return a.View, err
}

// open opens a session and caches it. asked is the TTL that the client asked for, ttl the one
// that it gets.
func (s *Service) open(ctx context.Context, c tenure.Candidate, asked, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	sent := s.clock.Now()
	session, err := bounded(ctx, s.engine, func(ctx context.Context) (store.Session, error) { return s.store.Open(ctx, c, ttl, o) })
	var argument *store.ArgumentError
	if errors.As(err, &argument) && argument.Field == "attempt" || err == nil && !s.sessions.Opened(session, sent, asked, ttl) {
		return store.Session{}, instanceReused(c.ID)
	}
	if err == nil {
		err = registered(ctx, session)
	}
	return session, err
}

// leaders returns who leads each group, and how many groups each node with a living session leads.
func (s *Service) leaders() (leaders map[string]string, nodes map[string]int) {
	leaders, nodes = s.feed.Leaders()
	s.sessions.Nodes(func(node string) { nodes[node] += 0 })
	return leaders, nodes
}
