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
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/openapi"
	"github.com/tenurehq/tenure/server/storeapi"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// served is the store that store/remote gets: its longest TTL is that of the service.
type served struct {
	lease.Store
	s *Service
}

func (c served) Caps() lease.Caps {
	l := c.Store.Caps()
	l.MaxTTL = min(l.MaxTTL, c.s.cfg.MaxTTL)
	return l
}

// Open implements lease.Store.
func (c served) Open(ctx context.Context, who tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	s, err := c.Store.Open(ctx, who, ttl, o)
	return s, barProblem(err)
}

// Acquire implements lease.Store. If a rule refuses some groups of a batch, the answer is a
// conflict without records: the caller then tries the groups one by one and learns which of
// them are refused.
func (c served) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	granted, err := c.Store.Acquire(ctx, id, seen...)
	if bar := (*lease.BarError)(nil); errors.As(err, &bar) && len(seen) > 1 {
		return nil, fmt.Errorf("%w: %s", &lease.ConflictError{}, bar.Detail)
	}
	c.s.spans.granted(granted...)
	return granted, barProblem(err)
}

// Release implements lease.Store.
func (c served) Release(ctx context.Context, id, to lease.SessionID, why lease.Reason, held ...lease.Record) ([]lease.Record, error) {
	released, err := c.Store.Release(ctx, id, to, why, held...)
	if to != "" {
		c.s.spans.granted(released...)
	}
	return released, err
}

// quotas implements storeapi.Policy. The store enforces the rules of operators.
type quotas struct{ s *Service }

// Opens implements storeapi.Policy.
func (b quotas) Opens(_ context.Context, candidate string, ttl time.Duration, o lease.OpenOptions) error {
	if most := b.s.cfg.MaxTTL; ttl > most {
		return ttlProblem(ttl.Milliseconds(), b.s.store.Caps().MinTTL, most)
	}
	return b.s.sessions.room(candidate, o)
}

// Opened implements storeapi.Policy.
func (b quotas) Opened(l lease.Session) { b.s.sessions.opened(l, b.s.clock.Now(), 0, 0) }

// Begins implements storeapi.Policy.
func (b quotas) Begins(ctx context.Context, l lease.Session, groups ...string) error {
	return b.s.room(auth.From(ctx), l.Candidate.ID, len(groups))
}

// storeRoutes are the routes of store/remote, behind the same gate.
func (s *Service) storeRoutes() ([]Route, error) {
	api, err := storeapi.New(storeapi.Config{
		Store: served{s.store, s}, Session: s.sessions.find,
		Own: func(r *http.Request, candidate string) error { return auth.From(r.Context()).Is(candidate) },
		May: func(r *http.Request, right storeapi.Right, scope lease.Scope) error {
			id := auth.From(r.Context())
			// A stream outlives many credentials.
			if err := s.gate.Recheck(id, auth.Verb(right), auth.SomeGroup); err != nil {
				return err
			}
			return s.covers(id, auth.Verb(right), scope)
		},
		Policy: quotas{s},
		Heard: func(r *http.Request, h storeapi.Heard) {
			s.record(r.Context(), "store "+string(h.Method), strings.Join(h.Groups[:min(len(h.Groups), 8)], ","), fence.Token(h.Token), h.Err, h.Reason)
		},
		Suspected:    s.metrics.suspected,
		WriteTimeout: s.cfg.WriteTimeout,
		Stopping:     s.ctx.Done(),
	})
	if err != nil {
		return nil, err
	}
	var out []Route
	for _, row := range api.Routes() {
		r := Route{
			Method: http.MethodPost, Path: row.Path, Verb: auth.Verb(row.Right), Groups: someGroup, Renewal: row.Renewal, Campaign: row.Campaign, Handle: row.Handle,
			Doc: openapi.Operation{
				Summary: "lease.Store over HTTP, for store/remote: " + string(row.Method) + ".", In: openapi.Object,
				Out: openapi.Answers{200: openapi.Object, 404: nil, 409: nil, 421: nil}, Stream: row.Stream, Lines: row.Stream,
			},
		}
		if row.Or != "" {
			r.Or = []auth.Verb{auth.Verb(row.Or)}
		}
		if row.Stream {
			r.Waits = always
		}
		if row.Method == wire.RaiseEpoch {
			r.Groups = nil // it concerns all of them
		}
		out = append(out, r)
	}
	return out, nil
}
