package storeapi

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// Right is what a caller must be allowed to do with groups.
type Right string

// The rights.
const (
	Campaign Right = "campaign"
	Observe  Right = "observe"
	StepDown Right = "step-down"
	Admin    Right = "admin"
)

// Config is what the service supplies. Store, Own and May are required.
type Config struct {
	// Store is the store. A *httpapi.Problem in an error of it is the answer.
	Store store.Store
	// Session returns a session. A cached session may have ended since. ErrSessionDead is
	// definite. Default: Store.Session.
	Session func(context.Context, store.SessionID) (store.Session, error)
	// Own returns nil if the caller may act as the candidate.
	Own func(r *http.Request, candidate string) error
	// May returns nil if the caller has the right to every group in the scope. An empty
	// scope asks whether it has the right to any group at all.
	//
	// A *httpapi.Problem from Own or May is the answer. Any other error becomes a 403.
	May func(r *http.Request, right Right, scope store.Scope) error
	// Heard, if set, gets every call that changed something or was denied.
	Heard func(r *http.Request, h Heard)
	// Suspected, if set, gets every report that stopped all grants.
	Suspected func(group string, seen fence.Token)
	// WriteTimeout ends a stream whose reader takes nothing for so long. Default 10 s.
	WriteTimeout time.Duration
	// Stopping, when closed, ends the streams, so that their callers go to another
	// instance before this one stops. Optional.
	Stopping <-chan struct{}
}

// Heard describes a call for the audit log.
type Heard struct {
	Method    wire.Method
	Candidate string // that the caller acted as
	Session   store.SessionID
	Groups    store.Scope
	Token     uint64 // of the first group: the one in the call, or the one granted
	Reason    string
	Err       error // nil: the call succeeded
}

// Route is one row for the service's table. Each is a POST.
type Route struct {
	Method wire.Method
	Path   string // without /v1
	// Right that a caller needs for at least one group. The handler checks it for the groups
	// in the body.
	Right Right
	// Or is another right that is enough for part of the route.
	Or Right
	// Renewal: the route keeps terms alive or ends them in order. Campaign: it may begin
	// terms. The service prefers renewals under load.
	Renewal, Campaign bool
	// Stream: the answer does not end by itself.
	Stream bool
	Handle http.HandlerFunc
}

// API serves a Store.
type API struct {
	cfg        Config
	deployment atomic.Pointer[string]
}

// New returns the API.
func New(cfg Config) (*API, error) {
	switch {
	case cfg.Store == nil:
		return nil, &store.ArgumentError{Field: "store", Rule: "is needed"}
	case cfg.Own == nil || cfg.May == nil:
		return nil, &store.ArgumentError{Field: "own and may", Rule: "are needed"}
	}
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = defaultWrite
	}
	if cfg.Session == nil {
		cfg.Session = cfg.Store.Session
	}
	return &API{cfg: cfg}, nil
}

const (
	// maxCall bounds every call.
	maxCall = 30 * time.Second
	// defaultCall bounds a call without a timeout.
	defaultCall = 10 * time.Second
	// maxBody is enough for the largest scope, metadata and batch.
	maxBody = 256 << 10
)

// Routes returns all routes.
func (a *API) Routes() []Route {
	row := func(m wire.Method, right Right, h http.HandlerFunc) Route {
		return Route{Method: m, Path: m.Path(), Right: right, Handle: h}
	}
	renewal := func(r Route) Route { r.Renewal = true; return r }
	campaign := func(r Route) Route { r.Campaign = true; return r }
	watch, set := row(wire.Watch, Observe, a.watch), row(wire.SetAttributes, Admin, serve(a, wire.SetAttributes, a.setAttributes))
	watch.Stream, set.Or = true, Campaign // candidates write marks of what they did
	return []Route{
		row(wire.Caps, Observe, serve(a, wire.Caps, a.caps)),
		campaign(row(wire.Open, Campaign, serve(a, wire.Open, a.open))),
		row(wire.FindSession, Observe, serve(a, wire.FindSession, a.session)),
		renewal(row(wire.KeepAlive, Campaign, serve(a, wire.KeepAlive, a.keepAlive))),
		renewal(row(wire.Close, Campaign, serve(a, wire.Close, a.close))),
		campaign(row(wire.Acquire, Campaign, serve(a, wire.Acquire, a.acquire))),
		renewal(row(wire.Release, Campaign, serve(a, wire.Release, a.release))),
		row(wire.Ask, StepDown, serve(a, wire.Ask, a.ask)),
		renewal(row(wire.Answer, Campaign, serve(a, wire.Answer, a.answer))),
		row(wire.Answered, StepDown, serve(a, wire.Answered, a.answered)),
		row(wire.Read, Observe, serve(a, wire.Read, a.read)),
		watch,
		row(wire.Groups, Observe, serve(a, wire.Groups, a.groups)),
		row(wire.Sessions, Observe, serve(a, wire.Sessions, a.sessions)),
		row(wire.History, Observe, serve(a, wire.History, a.history)),
		row(wire.Meta, Observe, serve(a, wire.Meta, a.meta)),
		row(wire.RaiseEpoch, Admin, serve(a, wire.RaiseEpoch, a.raiseEpoch)),
		row(wire.Suspect, Campaign, serve(a, wire.Suspect, a.suspect)),
		row(wire.Attributes, Observe, serve(a, wire.Attributes, a.attributes)),
		row(wire.ListAttributes, Observe, serve(a, wire.ListAttributes, a.listAttributes)),
		set,
	}
}

// servedDeployment returns the deployment of the store, which never changes.
func (a *API) servedDeployment(ctx context.Context) (string, error) {
	if known := a.deployment.Load(); known != nil {
		return *known, nil
	}
	m, err := a.cfg.Store.Meta(ctx)
	if err == nil {
		a.deployment.Store(&m.Deployment)
	}
	return m.Deployment, err
}
