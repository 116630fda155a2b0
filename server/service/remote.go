package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/openapi"
	"github.com/tenurehq/tenure/server/storeapi"
	"github.com/tenurehq/tenure/store"
)

// served is the store for store/remote, with the longest TTL and the quotas of the service.
type served struct {
	store.Store
	s *Service
}

func (c served) Caps() store.Caps {
	l := c.Store.Caps()
	l.MaxTTL = min(l.MaxTTL, c.s.cfg.MaxTTL)
	return l
}

// Open implements store.Store.
func (c served) Open(ctx context.Context, who tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	if most := c.s.cfg.MaxTTL; ttl > most {
		return store.Session{}, ttlProblem(ttl.Milliseconds(), c.s.store.Caps().MinTTL, most)
	}
	if err := c.s.sessions.Room(who.ID, o); err != nil {
		return store.Session{}, err
	}
	l, err := c.Store.Open(ctx, who, ttl, o)
	if err == nil {
		c.s.sessions.Opened(l, c.s.clock.Now(), 0, 0)
		err = registered(ctx, l)
	}
	return l, barProblem(err)
}

// Acquire implements store.Store. If a rule or a quota refuses a batch, the answer is a conflict
// without records: the caller then tries the groups one by one and learns which of them are
// refused.
func (c served) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	l, err := c.s.sessions.Find(ctx, id)
	if err == nil {
		err = c.s.checkGroupQuota(auth.From(ctx), l.Candidate.ID, len(seen))
	}
	var granted []store.Record
	if err == nil {
		granted, err = c.Store.Acquire(ctx, id, seen...)
	}
	var p *httpapi.Problem
	if err = barProblem(err); errors.As(err, &p) && len(seen) > 1 {
		return nil, fmt.Errorf("%w: %s", &store.ConflictError{}, p.Detail)
	}
	c.s.spans.Granted(granted...)
	return granted, err
}

// Release implements store.Store.
func (c served) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	if to == "" {
		return c.Store.Release(ctx, id, to, why, held...)
	}
	next, err := c.s.sessions.Find(ctx, to)
	if err != nil && !errors.Is(err, store.ErrSessionDead) { // the store refuses a dead successor
		return nil, err
	}
	if err := c.s.checkGroupQuota(auth.From(ctx), next.Candidate.ID, len(held)); err != nil {
		return nil, fmt.Errorf("%w: %s", store.ErrSuccessor, err.Error())
	}
	released, err := c.Store.Release(ctx, id, to, why, held...)
	c.s.spans.Granted(released...)
	return released, err
}

// storeRoutes are the routes of store/remote, behind the same gate.
func (s *Service) storeRoutes() ([]Route, error) {
	api, err := storeapi.New(storeapi.Config{
		Store: served{s.store, s}, Session: s.sessions.Find,
		Own: func(r *http.Request, candidate string) error { return auth.Is(r.Context(), candidate) },
		May: func(r *http.Request, verb auth.Verb, scope store.Scope) error {
			id := auth.From(r.Context())
			// A stream outlives many credentials.
			if err := s.gate.Recheck(id, verb, auth.SomeGroup); err != nil {
				return err
			}
			return s.covers(id, verb, scope)
		},
		Heard: func(r *http.Request, h storeapi.Heard) {
			s.record(r.Context(), "store "+string(h.Method), strings.Join(h.Groups[:min(len(h.Groups), 8)], ","), fence.Token(h.Token), h.Err, h.Reason)
		},
		Suspected:    s.metrics.Suspected,
		WriteTimeout: s.cfg.WriteTimeout,
		Stopping:     s.ctx.Done(),
	})
	if err != nil {
		return nil, err
	}
	var out []Route
	for _, row := range api.Routes() {
		out = append(out, Route{
			Method: http.MethodPost, Path: row.Method.Path(), Rule: row.Rule, Handle: row.Handle,
			Doc: openapi.Operation{
				Summary: "store.Store over HTTP, for store/remote: " + string(row.Method) + ".", In: openapi.Object,
				Out: openapi.Answers{200: openapi.Object, 404: nil, 409: nil, 421: nil}, Stream: row.Stream, Lines: row.Stream,
			},
		})
	}
	return out, nil
}
