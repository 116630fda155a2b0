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

// capped is a store with the longest TTL that the service grants.
type capped struct {
	lease.Store
	most time.Duration
}

func (c capped) Caps() lease.Caps {
	l := c.Store.Caps()
	l.MaxTTL = min(l.MaxTTL, c.most)
	return l
}

// Open implements lease.Store.
func (c capped) Open(ctx context.Context, who tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	s, err := c.Store.Open(ctx, who, ttl, o)
	return s, said(err)
}

// Acquire implements lease.Store. A batch of which some may not be led is a conflict that
// shows nothing: its caller tries them one by one, and learns which, while the others are not
// held up.
func (c capped) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	granted, err := c.Store.Acquire(ctx, id, seen...)
	if bar := (*lease.BarError)(nil); errors.As(err, &bar) && len(seen) > 1 {
		return nil, fmt.Errorf("%w: %s", &lease.ConflictError{}, bar.Detail)
	}
	return granted, said(err)
}

// said turns a bar into the problem that it is in every other route.
func said(err error) error {
	if bar := (*lease.BarError)(nil); errors.As(err, &bar) {
		return barred(bar)
	}
	return err
}

// storeRoutes are those of store/remote, under the same gate.
func (s *Service) storeRoutes() ([]Route, error) {
	api, err := storeapi.New(storeapi.Config{
		Store: capped{s.created, s.cfg.MaxTTL}, Session: s.sessions.find,
		Own: func(r *http.Request, candidate string) error { return auth.From(r.Context()).Is(candidate) },
		May: func(r *http.Request, right storeapi.Right, scope lease.Scope) error {
			return s.allowed(r, auth.Verb(right), scope)
		},
		Policy: binding{s},
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
			r.Groups = nil // it concerns them all
		}
		out = append(out, r)
	}
	return out, nil
}
