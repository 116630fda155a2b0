package storeapi

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
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
	// May returns nil if the caller has the verb on every group in the scope. An empty
	// scope asks whether it has the verb on any group at all.
	//
	// A *httpapi.Problem from Own or May is the answer. Any other error becomes a 403.
	May func(r *http.Request, verb auth.Verb, scope store.Scope) error
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

// Route is one row for the service's table: POST to Method.Path(). The handler checks the verb
// for the groups in the body.
type Route struct {
	Method wire.Method
	auth.Rule
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
	row := func(m wire.Method, verb auth.Verb, h http.HandlerFunc) Route {
		return Route{Method: m, Rule: auth.Rule{Verb: verb, Groups: auth.AnyGroup}, Handle: h}
	}
	renewal := func(r Route) Route { r.Renewal = true; return r }
	campaign := func(r Route) Route { r.Campaign = true; return r }
	watch := row(wire.Watch, auth.Observe, a.watch)
	watch.Stream, watch.Waits = true, auth.Always
	set := row(wire.SetAttributes, auth.Admin, serve(a, wire.SetAttributes, a.setAttributes))
	set.Or = []auth.Verb{auth.Campaign} // candidates write marks of what they did
	epoch := row(wire.RaiseEpoch, auth.Admin, serve(a, wire.RaiseEpoch, a.raiseEpoch))
	epoch.Groups = nil // it concerns all of them
	return []Route{
		row(wire.Caps, auth.Observe, serve(a, wire.Caps, a.caps)),
		campaign(row(wire.Open, auth.Campaign, serve(a, wire.Open, a.open))),
		row(wire.FindSession, auth.Observe, serve(a, wire.FindSession, a.session)),
		renewal(row(wire.KeepAlive, auth.Campaign, serve(a, wire.KeepAlive, a.keepAlive))),
		renewal(row(wire.Close, auth.Campaign, serve(a, wire.Close, a.close))),
		campaign(row(wire.Acquire, auth.Campaign, serve(a, wire.Acquire, a.acquire))),
		renewal(row(wire.Release, auth.Campaign, serve(a, wire.Release, a.release))),
		row(wire.Ask, auth.StepDown, serve(a, wire.Ask, a.ask)),
		renewal(row(wire.Answer, auth.Campaign, serve(a, wire.Answer, a.answer))),
		row(wire.Answered, auth.StepDown, serve(a, wire.Answered, a.answered)),
		row(wire.Read, auth.Observe, serve(a, wire.Read, a.read)),
		watch,
		row(wire.Groups, auth.Observe, serve(a, wire.Groups, a.groups)),
		row(wire.Sessions, auth.Observe, serve(a, wire.Sessions, a.sessions)),
		row(wire.History, auth.Observe, serve(a, wire.History, a.history)),
		row(wire.Meta, auth.Observe, serve(a, wire.Meta, a.meta)),
		epoch,
		row(wire.Suspect, auth.Campaign, serve(a, wire.Suspect, a.suspect)),
		row(wire.Attributes, auth.Observe, serve(a, wire.Attributes, a.attributes)),
		row(wire.ListAttributes, auth.Observe, serve(a, wire.ListAttributes, a.listAttributes)),
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
